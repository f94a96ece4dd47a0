// Package reconcile is the loop of a controller: it takes keys from a work queue, calls a
// function with each key, and retries, delays or drops the key by the error that the
// function returns.
//
// It replaces the worker functions that controllers on client-go write around
// Get, Done, Forget and AddRateLimited. The queue and the informers stay client-go's, or
// others with their methods.
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
// Most callers set these fields and Timeout, and return errors as they are: [Result] has
// the class of each error. An error that no retry can cure
// wraps [ErrTerminal]. Run has the shape func(context.Context) error, for a leader elector
// or shutdown group: the informers run on every replica, and Handle fills the queue only
// while Run runs.
//
// # Hot loops
//
// A Func that writes something new each time, such as the time of day, makes an event for
// its own key. R9 bounds that: faster events are folded into one call, and a line of log
// names the key and its [Triggers].
//
// # What wakes a key
//
// An event of another's write runs its key at once, also while the key fails. The events of the
// writes that a call made itself do not, if the Gate is a consistency.Store and the key comes from
// a [Source]: after a success they run the key once more, after a failure it waits for its
// deadline, and after a terminal error or a parked key for 10 to 15 minutes. So a Func that writes a new
// text into the status at each failure still backs off.
//
// # Guarantees
//
//   - R1: If a call ends, it has one class of the table, one log line, one result and one
//     Done of its key.
//   - R2: If a Func panics, the loop counts and retries the call, and other keys and the
//     worker continue.
//   - R3: Until a call of a key in this Run succeeds or is terminal, or its object has a new
//     generation, at most five of its conflicts without RequeueAfter are retried without the rate
//     limiter.
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
//   - R11: A failing key runs once at each deadline, which its last counted failure has set, and
//     once for each event of others. If the call of such an event ends before the deadline, it
//     neither counts nor moves the deadline. RequeueAfter, Retry-After, conflicts and stale
//     results keep their own delays.
//   - R12: If an event of another's write comes with its object, a call follows it that has read
//     that version or a newer one: at once, or, if a new watch or a write that changed nothing
//     let it pass for an own write, after 15 minutes at most.
//   - R13: The events of a call's own writes run its key at most once after a success, when the
//     cache shows all of them, and not before the deadline after a failure.
//
// # Caveats
//
//   - Of the deletions that a standby sees, the latest 4096 are sure to be kept.
//   - Run waits for calls that ignore their context, without a limit, and logs their keys.
//   - With client-go's queue, keys that wait for a delay are lost when Run returns.
//   - With a queue without When, such as client-go's, each failure counts (R11).
//   - A version is known as an own write for at least a minute after the key's last write.
//   - A panic in Gate, Hook, Keys, Metrics or the queue is not recovered.
package reconcile
