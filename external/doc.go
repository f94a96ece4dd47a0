// Package external creates the one thing outside of the cluster, such as a bucket or an
// account, that belongs to an object.
//
// The usual way is to call the service, and then to store the id in an annotation. After a
// crash, a lost response or a stale cache between the two, a second thing is created, and
// the first one is never deleted. [Once] first stores an intent.
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
// Create gets a token, to use as the thing's name or idempotency token. Most callers put
// a finalizer on the object first. Cleanup then finds the thing by the same [Token], also if
// a crash kept its id from being stored.
//
// # How it works
//
// The annotation holds an intent, and later the id, as JSON:
//
//	{"token":"0a1b...","since":"2026-01-31T12:00:00Z"}
//	{"token":"0a1b...","id":"i-123"}
//
// [ID] reads it. Once stores the intent before it calls Create, so that a process that finds an
// intent without an id asks the service first:
//
//   - If the annotation has the id, Once returns it and sends no request. Once does not
//     check that the thing still exists.
//   - If the object has no annotation, Once stores the intent, finds or creates the
//     thing, and stores the id.
//   - If the annotation has an intent alone, Once calls Find. If Find finds no thing, Once
//     calls Create if the intent is older than VisibleAfter, and otherwise returns how long
//     to wait.
//
// # Guarantees
//
//   - EX1: If Once is called until it returns an id, it creates one thing for each object,
//     also if processes crash, or requests or calls fail or lose their responses.
//   - EX2: If the object is stale when Once patches it, Once does not call Create.
//
// # Caveats
//
//   - EX1 needs a VisibleAfter as long as the service can hide a new thing from Find. If a
//     process is suspended right before Create for longer than that, it can create a second
//     thing. Only a service that rejects a second Create with one token prevents this.
//   - Anyone who may edit the object can edit the annotation, and so choose the id. If
//     ids are secret or shared between tenants, check that the thing carries the token.
package external
