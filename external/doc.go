// Package external manages the one thing outside of the cluster, such as a bucket or an
// account, that belongs to an object.
//
// The usual way is to call the service, and then to store the id in an annotation. After a
// crash, a lost response or a stale cache between the two, a second thing is created, and
// the first one is never deleted. [Once] creates one thing. [Ensure] also keeps it as the
// object wants it, and [Delete] is the cleanup.
//
//	held, live, err := finalizer.Ensure(ctx, widgets, widget, "example.com/bucket", func(ctx context.Context, held Held) error {
//		return external.Delete(ctx, widgets, held.Object(), r.bucket(held.Object()))
//	})
//	if err != nil || !live {
//		return reconcile.Result{}, err
//	}
//	widget = held.Object()
//	bucket, err := external.Ensure(ctx, widgets, widget, r.bucket(widget))
//	return reconcile.Result{RequeueAfter: bucket.RequeueAfter}, err
//
// A [Resource] has the calls of the service. Create gets a token, to use as the thing's name
// or idempotency key, by which Find and a cleanup know the thing.
//
// # How it works
//
// The annotation holds an intent, and later the id, as JSON:
//
//	{"token":"0a1b...","since":"2026-01-31T12:00:00Z"}
//	{"token":"0a1b...","id":"i-123"}
//
// [ID] reads it, and [Token] is the same without it. Once stores the intent before it calls
// Create, so that a process that finds an intent without an id asks the service first:
//
//   - If the annotation has the id, Once returns it and sends no request. Only Ensure
//     checks that the thing still exists.
//   - If the object has no annotation, Once stores the intent, finds or creates the
//     thing, and stores the id.
//   - If the annotation has an intent alone, Once calls Find. If Find finds no thing, Once
//     calls Create if the intent is older than VisibleAfter, and otherwise returns a
//     controllerkit.WaitingError.
//
// # Services
//
//   - A service that lists things, or gets them by a name or tag: set Find. If its reads
//     lag, set VisibleAfter.
//   - A service that only recognises idempotency keys: set KeysLast, and no Find. If the
//     outcome of a Create was unknown for too long, a human decides.
//   - A service whose calls end later: Observe returns [Busy] until then.
//
// # Guarantees
//
//   - EX1: If Once is called until it returns an id, it creates one thing for each object,
//     also if processes crash, or requests or calls fail or lose their responses.
//   - EX2: If the object is stale when Once patches it, Once does not call Create.
//   - EX3: If Ensure calls Update or makes another thing, Observe returned Different or Gone,
//     and the object was its newest version.
//   - EX4: If Delete returns nil under the policy Manage, no thing of the object is left or comes
//     later, also if processes crashed, or requests or calls failed or lost their responses.
//   - EX5: If Resource has a Find, Ensure and Delete change only a thing that carries the
//     object's token, and none with the policy ObserveOnly.
//   - EX6: If Resource has a Find and Ensure returns Current or Different, the thing carried
//     the object's token at most an hour before.
//
// # Caveats
//
//   - EX1 and EX4 need a VisibleAfter as long as the service can hide a new thing from its
//     reads. If a process is suspended right before Create for longer than that, it can create
//     a second thing. Only a service that rejects a second Create with one token prevents this.
//   - Anyone who may edit the object can edit the annotation, and so choose the id. If there is a
//     Find, Ensure and Delete then return an error of the class rejected. Once and ID return the
//     chosen id: before it opens another's thing, check that the thing carries the token.
//   - Without a Find, Ensure takes another's thing for the object's if somebody edits the id. If
//     somebody removes the annotation, the thing is lost.
package external
