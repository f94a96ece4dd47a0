// Package reconcile is the loop of a controller: it takes keys from a work
// queue, calls a function with each, and does the right thing with what the
// function returns.
//
// It stands in the place of the worker functions that every controller on
// client-go writes by hand around Get, Done, Forget and AddRateLimited. The queue
// and the informers stay client-go's, or any that have their methods.
//
//	c := &reconcile.Controller[types.NamespacedName]{
//		Name:      "configmaps",
//		Queue:     queue,
//		Reconcile: r.reconcile,
//		Workers:   4,
//		HasSynced: []cache.DoneChecker{informer.HasSyncedChecker(), registration.HasSyncedChecker()},
//	}
//	err := c.Run(ctx)
//
// Most callers set these fields, and Timeout. Run has the shape
// func(context.Context) error, so it is what a leader elector runs, or a part of
// a group that is shut down in order. A Func needs no server to be tested: it is
// called like any function; see the example of Func.
//
// # Results and errors
//
// The error decides how a call is classed, counted and logged; RequeueAfter
// decides when the key runs again. This is every combination of the two. An
// event for the key queues it at once in any row.
//
//	result        returned                             failures  runs again     with RequeueAfter > 0  log
//	success       nil                                  reset     no             see requeue            V(4)
//	requeue       nil                                  reset     see success    RequeueAfter           V(4)
//	conflict      API conflict, 5 in a row             kept      gate, or soon  RequeueAfter           V(4)
//	conflict      API conflict, more in a row          counted   rate limiter   RequeueAfter           error
//	server_delay  API error with Retry-After           kept      1x..1.2x       the longer             error
//	stale         Stale() bool is true, 5 in a row     kept      gate, or soon  RequeueAfter           V(4)
//	stale         Stale() bool is true, more in a row  kept      gate, or soon  RequeueAfter           error
//	terminal      ErrTerminal                          reset     no             RequeueAfter           error
//	not_found     API not found                        counted   rate limiter   RequeueAfter           error
//	rejected      API rejection, 1st of each 10        kept      1s to 15min    RequeueAfter           error
//	rejected      API rejection, others                kept      1s to 15min    RequeueAfter           V(4)
//	forbidden     API forbidden, 1st of each 10        kept      1s to 15min    RequeueAfter           error
//	forbidden     API forbidden, others                kept      1s to 15min    RequeueAfter           V(4)
//	timeout       deadline exceeded                    counted   rate limiter   RequeueAfter           error
//	panic         Func panicked                        counted   rate limiter   RequeueAfter           error
//	cancelled     any error of a call that Run ended   kept      at once        at once                V(4)
//	error         any other error                      counted   rate limiter   RequeueAfter           error
//
// The columns:
//
//   - result is the label that Metrics gets and the class in the log.
//   - failures is the count of the queue's rate limiter, from which it computes
//     the delay: reset is Forget, counted is AddRateLimited. A retry by
//     RequeueAfter counts no failure.
//   - runs again is the delay, drawn at random from the range given.
//   - log is the level of the one line that a call logs.
//
// RequeueAfter of 0 or less is none. Result.Priority is used whenever the key is
// queued again and the queue knows priorities; nil keeps the priority that the
// key had.
//
// The rows in words:
//
//   - conflict is apierrors.IsConflict: somebody else wrote first, which is no
//     failure. With a Gate that is not ready for the key, since the cache has not seen
//     yet what was in the way, the key waits until the gate wakes it; otherwise the
//     delay is 50ms to 250ms. More than five in a row on one key are a failure, and
//     back off. A conflict of server-side apply is no race but lasts, and is classed
//     error.
//   - server_delay is apierrors.SuggestsClientDelay. The delay counts as at least
//     1s and at most 5min, and up to a fifth is added at random.
//   - stale is an error with a method Stale() bool that returns true: the cache is
//     behind. With a Gate that is not ready for the key, the key waits until the
//     gate wakes it; otherwise the delay grows from 100ms to 5s with the number of
//     stale results in a row, and up to half is added at random.
//   - rejected is an error that wraps ErrRejected, or one of the API errors 400, 405,
//     406, 409 AlreadyExists, 413, 415 and 422. The delay doubles from 1s to 10min with
//     the number in a row, and up to half is added at random.
//   - forbidden is an API error 401 or 403: a role or a token is missing, or on its way.
//     The delays are those of rejected. The line of log has deniedGroup, deniedResource
//     and deniedName.
//   - timeout is an error that is context.DeadlineExceeded, or one that would be
//     classed error and comes after the call's Timeout was over.
//   - panic is a *PanicError; the line of log has the stack.
//   - cancelled has precedence over all rows but panic, success and requeue.
//
// An error that panics when it is looked at, such as a nil of a pointer type, is
// classed panic. With MaxAttempts a key whose failures were counted so many times
// since its last success is parked: reset, and run again by an event only. What
// the table cannot know is told by Classify.
//
// In an error that wraps several with %w, the first of panic, terminal, stale, API
// error, timeout decides, so that an API error can be marked terminal; of several
// API errors the first in the text is looked at. The parts of errors.Join, and of apimachinery's
// Aggregate, are classed one by one, and then the first of panic, server_delay,
// error, timeout, not_found, rejected, forbidden, conflict, stale, terminal decides: what
// joins is terminal only if all of it is.
//
// # Why a key runs
//
// A Func is not told of events, but people who read logs want to know. Event handlers
// that add to a [Source] of the controller instead of to its queue leave a note of what
// they saw, which [Triggers] returns, and which the logger of the call and the line of
// log have as triggers:
//
//	pods.AddEventHandler(enqueue.Handler(c.Source("pods"), ownerOf))
//
// # Hot loops
//
// A key runs at most 100 times at once and then 10 times a second; faster events are
// folded into one call. So a Func that writes something new each time, such as the time
// of day, and so makes an event for its own key, does not run as fast as the API server
// lets it. The first line of log names the key and its [Triggers]. A key that waits is a
// delayed key of the queue.
//
// # Queues
//
// What a queue can do beyond client-go's interface is found by its methods:
//
//   - GetContext(context.Context) (key K, priority int, ok bool) returns ok=false
//     once the context is done. Run ends by it, leaves the queue open, and can be
//     called again. Without it Run shuts the queue down when it stops.
//   - Pending() []K lists what is ready, running and delayed, for the last line
//     of log. Without it that line has the keys that were ready, and those whose
//     last call asks for another; the delayed ones of client-go's queue are unknown.
//   - AddWith(struct{Priority int; After time.Duration; RateLimited bool}, ...K)
//     takes priorities; GetWithPriority() (K, int, bool) gives them.
//
// # Guarantees
//
//   - R1: Every call ends in exactly one row of the table, one line of log and
//     one result; Done is called once for every key that the queue gave out.
//   - R2: A panic in the Func is recovered, counted and retried; other keys and
//     the worker go on.
//   - R3: Conflicts on one key never spin: at most five in a row are retried
//     without the rate limiter.
//   - R4: No key is started before all of HasSynced are done; the wait does not
//     poll.
//   - R5: No key is started once the context of Run is done, but for those of R15.
//     Running calls have GracePeriod, then their context is cancelled; at once if leadership is
//     lost. context.Cause says which, and is known as context.Canceled too.
//   - R6: With a queue that has GetContext no key is lost over a stop: what was
//     not done, was cancelled, or waited for the gate, is in the queue when Run
//     returns.
//   - R7: When Run returns, no call and no goroutine of it is running.
//   - R8: The context of a call is done when the call has returned.
//   - R15: With DrainReady the keys that are ready when the context of Run is done
//     are worked off until GracePeriod is over, and Run returns as soon as none is
//     left. None is started once leadership is lost.
//   - R16: If a key is queued too often, by its own writes for example, it runs at most
//     100 times at once and then 10 times a second. A key that is queued at most 10
//     times a second is not delayed.
//   - R17: Triggers names every event that a Source reported for the key since its last
//     call, and no other; at most 64 names, for at most 65,536 keys at once.
//   - R18: With Resync each key of Keys is added once in that time, at a moment of its
//     own that stays the same, and at most a 64th of them wait in the queue for it.
//   - R19: Hook is called once for each call, and its end after it, with the result that
//     Metrics gets.
//   - R22: If the API server rejects a request for good, the key runs at most 15 times in
//     the first hour, unless an event comes for it.
//   - R23: If calls run and none ends for StallTimeout, Check fails until one does.
//
// # Caveats
//
//   - Run waits for calls that ignore their context, for ever if need be. It logs
//     their keys when it cancels them, and once more 5s later.
//   - With client-go's queue, keys that wait for a delay are lost when Run stops.
//     The next start of the process lists everything anyway.
//   - A key held back by the Gate is not a call: it is counted by no metric.
//   - A panic in a Gate, a Hook, Keys, in Metrics or in the queue is not recovered.
//   - Keys are logged; so is the text of errors.
package reconcile
