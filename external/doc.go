// Package external creates the one thing outside of the cluster, such as a bucket or an
// account, that belongs to an object.
//
// It replaces the create call with an annotation written after it: a crash, a lost
// response or a stale cache between the two creates a second thing that is never deleted.
//
//	id, wait, err := external.Once(ctx, widgets, widget, external.Resource{
//		Annotation: "example.com/bucket",
//		Find:       buckets.findByToken,
//		Create:     buckets.create,
//	})
//	if id == "" {
//		return reconcile.Result{RequeueAfter: wait}, err
//	}
//
// Most callers put a finalizer on the object first, and pass the token of [Token] to the
// service as the thing's name or idempotency token. Cleanup then finds the thing by the
// token, also if a crash kept its id from being stored.
//
// # How it works
//
// The annotation holds an intent, and later the id. Once stores the intent before it calls
// Create, so that a process that finds an intent without an id asks the service first:
//
//   - If the annotation has the id, Once returns it and sends no request. Once does not
//     check that the thing still exists.
//   - If the object has no annotation, Once stores the intent, calls Find and Create, and
//     stores the id.
//   - If the annotation has an intent alone, Once calls Find. If Find finds no thing, Once
//     calls Create as soon as VisibleAfter has passed since the intent.
//
// # Guarantees
//
//   - EX1: If processes crash, or requests or calls fail or lose their responses, Once
//     creates one thing for each object and finally returns its id.
//   - EX2: If the object is stale when Once patches it, Once does not call Create.
//
// # Caveats
//
//   - EX1 needs the VisibleAfter that the service needs. If a process stops right before
//     Create for longer than that, it can create a second thing. Only a service that
//     knows tokens can prevent this.
//   - Anyone who may edit the object can edit the annotation, and so choose the id. If
//     ids are secret or shared between tenants, check that the thing carries the token.
package external
