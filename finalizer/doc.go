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
// # Cleanup in steps
//
// A cleanup that is more than one call is a [Plan]: steps that are asked in a
// declared order, each with a timeout and delays of its own. Its method Run is the
// cleanup of Ensure.
//
//	plan := finalizer.Plan[*v1.Widget]{Client: client, Steps: []finalizer.Step[*v1.Widget]{
//		{Name: "children", Run: deleteChildren}, // calls DeleteAll
//		{Name: "volume", Run: deleteVolume, Timeout: 10 * time.Second},
//		{Name: "dns", Run: deleteRecord, AtOnce: true}, // waits for no other
//	}}
//	_, live, err := finalizer.Ensure(ctx, client, widget, name, plan.Run)
//	if blocked, ok := errors.AsType[*finalizer.BlockedError](err); ok {
//		// the place to write blocked.Condition(widget.Generation) to the status
//		return reconcile.Result{RequeueAfter: blocked.After}, blocked.Err
//	}
//
// A step says that it is done, or that it waits, or fails. To wait is no failure:
// blocked.Err is nil then, and the loop counts none. Events of what the step waits
// for may bring the object sooner.
//
// No progress is stored. Every pass asks every step again, from the first, and the
// finalizer goes after a pass in which all of them were done. So there is nothing
// that a crash could lose or a stale copy could get wrong, and a step must be cheap
// when there is nothing to do. The one clock is the deletionTimestamp of the object:
// the delays between tries, the age in Metrics, GiveUpAfter and the
// lastTransitionTime of the condition come from it, and a restart does not set them
// back. They are off by the difference between the clocks of the process and of the
// API server.
//
// What a step deletes it must find by the UID of the object, not by its name alone.
// That something is gone is proven by its source: [Remaining] and [DeleteAll] list
// from the API server.
//
// Client is that of the object's namespace, so make the Plan where Ensure is called. A
// step gets at most nine tenths of the time that the context has left; let the Timeouts
// of all steps fit into that of the reconcile, so that each gets its own.
//
// The steps may change from one version of the controller to the next: a pass asks
// those that there are. Remove a step only when nothing is left that it alone cleans
// up. A finalizer that gets another name stays on the objects that have the old one.
//
// Verbs: patch on the resource of the object, in every case; list and delete on
// those of the children for DeleteAll.
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
//   - F8: A [Plan] is through only after every step said in one pass that it is
//     done, or was given up; no step runs before those that it waits for.
//   - F9: A [Plan] runs no step for an object that is gone, replaced, without the
//     finalizer or not being deleted, however stale the copy; its steps get the
//     object as the API server has it.
//   - F10: A process that dies at any write of an object's life, before the write
//     or after it, leaves nothing that the next one does not bring to the same end:
//     no effect without a finalizer, none left behind, nobody else's touched.
//   - F11: A step is given up only after its GiveUpAfter, after a last try that had at
//     least half of its Timeout, and after GaveUp returned nil; never by default.
//   - F12: What blocks a [Plan] is named with what it says and since when, as error,
//     condition and metric, and told apart by waiting, failing and timing out.
//   - F13: [Delete] and [DeleteAll] delete only the version of the object that was
//     seen: any other is a Conflict, and one that is gone is success.
//   - F14: [Remaining] answers from what the API server stores, all pages of it;
//     [DeleteAll] says done only after such an answer without a child.
//   - F15: Input that can only be a mistake is one error that names it, before any
//     request.
//   - F16: The verb patch suffices for all but [Remaining], [Delete] and [DeleteAll],
//     which need list and delete.
//   - F17: To wait is no failure: with the lines above the loop counts none, and the
//     object comes again after the time that the step asked for.
//   - F18: The look of a [Plan] and of Remove writes nothing, also where admission
//     changes the object at every update.
//
// # Assumptions
//
// Cleanup can run more than once for one object and must succeed when there is
// nothing left to clean. It runs again after any error that follows it, and after
// the object is gone when the copy does not show that yet; a [Plan] looks first.
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
// The look of a [Plan], one in each pass, and that of Remove are dry runs of a patch
// that only tests the UID. They write nothing. Where admission changes the object at
// every update, steps see the object so changed.
//
// An error whose text changes with each try makes each status a new one, and the event
// of that write brings the next pass at once: keep request ids and times out of what is
// written.
//
// With a client of another namespace than the object's, Add is NotFound, and Remove
// takes the object for gone.
//
// client-go's fake clientset answers a failed test with a plain error instead of
// 422 Invalid, and keeps objects whose last finalizer is gone. Objects in it need
// a UID, which the fake does not set.
package finalizer
