// Package finalizer stores a finalizer before the work it guards and removes it
// only after the cleanup succeeded.
//
// client-go has nothing for it: finalizers are a list of strings in the
// metadata of an object, shared by everybody who wants to be asked before the
// object goes. Written with Update or a merge patch, that list is written whole,
// and a stale copy takes a neighbour's entry away or brings it back. This
// package writes JSON patches that touch one entry and fail when the list is not
// the one the caller saw.
//
// Most callers need [Ensure] alone, at the top of their reconcile function:
//
//	held, live, err := finalizer.Ensure(ctx, client, widget, "example.com/bucket",
//		func(ctx context.Context, held finalizer.Held[*v1.Widget]) error {
//			return buckets.Delete(ctx, held.Object().UID) // nil when it is gone already
//		})
//	if err != nil || !live {
//		return err
//	}
//	return buckets.Create(ctx, held) // takes a Held: does not compile without one
//
// client is anything with the Patch method that every typed client, the dynamic
// client and the metadata client have; T is inferred. The identity needs the
// verb patch on the resource.
//
// # What Ensure does
//
//	object                      Ensure                                       returns
//	live, finalizer missing     adds it                                      held, live
//	live, finalizer present     nothing, no request                          held, live
//	deleting, present           runs cleanup, then removes it                not live
//	deleting, missing           nothing, no request                          not live
//
// Every other outcome is an error that names the finalizer and the step, and
// wraps its cause: calling again with a newer copy is always right.
//
// # Guarantees
//
//   - F1: A [Held] exists only once the API server has answered with an object
//     that carries the finalizer, or the caller passed such an object.
//   - F2: No other finalizer is added, removed, repeated or moved, however stale
//     the copy and however the requests of several controllers interleave.
//   - F3: Nothing is added to an object that is being deleted, even when the copy
//     does not show the deletion yet.
//   - F4: Nothing is written to another object of the same name: every patch
//     tests the UID.
//   - F5: The finalizer of an object that is being deleted is removed only after
//     cleanup returned nil. An error, a panic or a crash leaves it in place.
//   - F6: A stale copy is a Conflict: apierrors.IsConflict reports true, and the
//     server's own answer stays in the chain. Validation and admission errors
//     stay what they are.
//   - F7: Remove succeeds when there is nothing left to remove: the object is
//     gone, or replaced by another one of the same name, or somebody was faster.
//
// # Assumptions
//
// Cleanup can run more than once for one object and must succeed when there is
// nothing left to clean. It runs again after any error that follows it.
//
// A copy that shows the finalizer is taken at its word, without a request. Only
// this controller removes its finalizer, so that copy misleads only when it is
// older than the controller's own last Remove. A controller that reads from an
// informer can meet such a copy right after a removal; package consistency of
// this module keeps it away.
//
// # Caveats
//
// What the last removal returns. When the last finalizer of an object that is
// being deleted goes, the API server deletes the object at once and answers with
// the object as it was asked to store it: finalizers empty, resourceVersion the
// old one. Watchers see a DELETED event and no MODIFIED. So do not wait for that
// resourceVersion in a cache, it has been there all along; remember the UID, and
// wait for the deletion.
//
// client-go's fake clientset answers a failed test with a plain error instead of
// 422 Invalid, and keeps objects whose last finalizer is gone. Objects in it need
// a UID, which the fake does not set.
package finalizer
