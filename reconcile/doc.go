// Package reconcile is the loop of a controller: it takes keys from a work queue, calls a
// function with each key, and retries, delays or drops the key by the error that it
// returns.
//
// It replaces the worker functions around Get, Done, Forget and AddRateLimited. The queue and the
// informers stay client-go's, or others with their methods.
//
//	c := &reconcile.Controller[types.NamespacedName]{
//		Name:      "configmaps",
//		Queue:     queue,
//		Reconcile: r.reconcile,
//		Workers:   4,
//		HasSynced: []cache.DoneChecker{informer.HasSyncedChecker()},
//	}
//	_, err := c.Handle(informer, enqueue.Handler(c.Source("configmaps"), keys))
//	...
//	err = c.Run(ctx)
//
// Most callers set these fields and Timeout, and return errors as they are: see [Result]. An error
// that no retry can cure wraps [ErrTerminal]. Run fits a leader elector or shutdown group: the
// informers run on every replica, and Handle fills the queue only while Run runs.
//
// # What wakes a key
//
// An event runs its key at once, also while it fails, but for R13. R9 bounds a Func that writes
// something new each time; the log names its key and [Triggers].
//
// # Guarantees
//
//   - R1: If a call ends, it has one class of the table, one log line, one result and one
//     Done of its key.
//   - R2: If a Func panics, the loop counts and retries the call, and other keys and the
//     worker continue.
//   - R3: Until a call of a key in this Run succeeds or is terminal, or a new generation comes, at
//     most five conflicts without RequeueAfter are retried without the rate limiter.
//   - R4: If the context of Run is done, no call starts; with DrainReady, ready keys run
//     until GracePeriod is over or leadership is lost.
//   - R5: If a stop outlasts GracePeriod or leadership is lost, running calls are
//     cancelled, and context.Cause has the reason.
//   - R6: If the queue has GetContext, keys that were not called, were cancelled or wait
//     for the Gate are in it when Run returns, or after Handle are kept for the next Run.
//   - R7: If Handle added the event handlers, their keys come from Sources and no Run is
//     active, a queue with Clear is empty. The next Run gets the keys of all objects, and of
//     those that were deleted since the former leader's last renewal, except as under Caveats.
//   - R8: If Run has returned, its calls and goroutines have ended.
//   - R9: If a key is queued without pause, it runs 100 times and then 10 times a
//     second; a key with at most 10 events a second is not delayed.
//   - R10: Without events, resyncs, RequeueAfter or a new Run, at most 15 calls of a failing
//     key in an hour are rejected or forbidden.
//   - R11: A failing key runs when its delay is over and at each event of another's write;
//     failures before that time neither count nor move it.
//   - R12: After an event of another client's write, the handler's keys run, with that version of the
//     object or a newer one in the informer.
//   - R13: If the Gate is a consistency.Store and handlers add keys to a [Source], all own writes of a
//     call run its key at most once more: after a success, when the cache shows them; after a failure,
//     not before the retry is due.
//
// # Caveats
//
//   - Of the deletions that a standby sees, the latest 4096 are kept for sure.
//   - Run waits without a limit for calls that ignore their context, and logs their keys.
//   - With client-go's queue, delayed keys are lost when Run returns, and each failure counts.
//   - After a new watch or a write without effect, another's event can pass for an own one,
//     which R13 delays.
//   - A panic in Gate, Hook, Keys, Metrics or the queue is not recovered.
package reconcile
