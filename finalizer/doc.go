// Package finalizer stores a finalizer before the work that it guards, and removes it
// only after the cleanup succeeded, or gave up steps after GiveUpAfter.
//
// client-go has no counterpart. An Update or a merge patch of metadata.finalizers writes
// the whole list, so a stale copy removes or restores the finalizers of other controllers.
// This package sends JSON patches that touch one entry and fail if the list changed.
//
//	held, live, err := finalizer.Ensure(ctx, client, widget, "example.com/bucket",
//		func(ctx context.Context, held finalizer.Held[*v1.Widget]) error {
//			return buckets.Delete(ctx, held.Object().UID) // nil if it does not exist
//		})
//	if err != nil || !live {
//		return err
//	}
//	return buckets.Create(ctx, held) // takes a Held, so it cannot be called too early
//
// Most callers need [Ensure] alone, at the top of their reconcile function. A cleanup of
// several calls is a [Plan].
//
// # Cleanup in steps
//
// The cleanup of Ensure can be [Plan.Run]:
//
//	plan := finalizer.Plan[*v1.Widget]{Client: client, Steps: []finalizer.Step[*v1.Widget]{
//		{Name: "volumes", Run: deleteVolumes},
//		{Name: "account", Run: closeAccount, Timeout: 10 * time.Second}, // once the volumes are gone
//	}}
//	held, live, err := finalizer.Ensure(ctx, client, widget, "example.com/account", plan.Run)
//
// [BlockedError] shows how to return its result. Each pass begins again with the first step.
// No progress is stored, so a crash loses no progress. There is no rollback: a deletion cannot
// be undone, so cleanup only moves forward, and GaveUp lets the object go without a step that
// never succeeds.
//
// # Guarantees
//
//   - F1: A valid [Held] exists only for an object that has the finalizer, in the API
//     server's response or in the caller's copy.
//   - F2: If a copy is stale or controllers interleave, other finalizers stay unchanged.
//   - F3: If an object is being deleted, it gets no finalizer, however stale the copy.
//   - F4: If an object with another uid has taken the name, no function of the package
//     changes it.
//   - F5: If cleanup fails, panics or crashes, the deleted object's finalizer remains.
//   - F6: If the API server refuses a stale copy, the error is a Conflict, and a
//     rejection by validation or admission keeps its class.
//   - F7: If a pass removes the finalizer, every step was done or given up before, in the
//     declared order.
//   - F8: If a [Plan] starts a step, a read after the step before it returned the same
//     object, being deleted and with the finalizer.
//   - F9: If a step is given up, GiveUpAfter has passed by the process's clock, it had a
//     last try with half of its Timeout, and GaveUp returned nil.
//   - F10: If a child changed after it was read, [Delete] returns a Conflict and the
//     child stays.
//   - F11: If [DeleteAll] returns Done, a complete list from the API server had no child.
//
// # Caveats
//
//   - Cleanup can run several times for an object and must succeed if its work is done.
//   - A copy with the finalizer is trusted without a request unless consistency.LiveRead is
//     true. A copy from before a Remove still shows it. With a consistency.Store
//     as Gate, LiveRead knows of such copies, also in a new leader.
//   - A name without a slash can meet another program's. The API server rejects it or
//     returns a Warning, which client-go logs. Ensure and Add refuse orphan and
//     foregroundDeletion, because a deletion removes these before the cleanup.
//   - A DELETE in progress ignores a first finalizer added after its read: see
//     docs/finalizers.md, also for another name.
//   - When the last finalizer is removed, the API server deletes the object and returns it
//     with its previous resourceVersion. Wait for the deletion, not for that version.
//   - A clock ahead of the API server's gives up a step earlier. One behind retries each
//     second.
//   - A Role needs the verb patch, list for [Remaining], and delete for [Delete].
package finalizer
