// Package queue is a work queue for controllers: priorities, fairness between
// groups, delays, rate limits, and a drain with a deadline.
//
// It stands beside k8s.io/client-go/util/workqueue. A *Queue[K] is a
// workqueue.TypedRateLimitingInterface[K], so it takes the place of client-go's
// queue in any controller, and the rate limiters of either package work in the
// queues of both.
//
//	q := queue.New(queue.Config[types.NamespacedName]{Name: "widgets"})
//	informer.AddEventHandler(enqueue.Handler(q, enqueue.KeyOf[*v1.Widget]))
//	...
//	for {
//		key, _, ok := q.GetContext(ctx)
//		if !ok {
//			return
//		}
//		if err := reconcile(ctx, key); err != nil {
//			q.AddRateLimited(key)
//		} else {
//			q.Forget(key)
//		}
//		q.Done(key)
//	}
//
// Most callers need New and a loop as above.
//
// # The life of a key
//
// A key that was added is ready, or delayed until its time has come. Get hands
// out a ready key, which is then running until Done. What is added while it
// runs takes effect at Done. The queue holds a key once, whatever it is added
// for:
//
//	            new key         ready key       delayed key      running key, at Done
//	Add         ready           as it is        ready at once    ready
//	AddAfter    delayed         as it is        the earlier      delayed; the earlier; ready if Add
//	                                            of both times    was called too or the time is over
//	no add      -               -               -                forgotten
//
// AddRateLimited is AddAfter with the limiter's delay; AddWith is any of them
// with a priority. The time of AddAfter counts from the call.
//
// The highest priority asked for wins. Add asks for 0, AddWith for what it is
// told; AddAfter and AddRateLimited ask for none, so that a retry runs at the
// priority that the key had. Forget of a running key ends its priority, so that
// only what was asked for since Get counts; so does Done of a key that was not
// added again.
//
// # Guarantees
//
//   - Q1: A key is never with two workers at once.
//   - Q2: After each add that came before the queue was stopped the key is handed
//     out to a worker, or is among the keys that Drain and Pending return.
//   - Q3: The highest priority goes first; at equal priority groups with ready
//     keys take turns, key by key, so that a key waits for one key of each other
//     group at most, however many those have; in a group keys are handed out in
//     the order in which they became ready at that priority.
//   - Q4: Once the oldest key of a lower priority has been passed over for
//     MaxWait, one Get in four serves the priority that holds it, groups still in
//     turn, until no lower key is older; the highest keeps three in four. Before,
//     lower ones are not served. The time counts from the first Get after the key
//     became ready that passed over lower priorities, and is kept to 1/32 of
//     MaxWait, never less.
//   - Q5: A delay does not end early, and ends once. Equal times end in the order
//     in which they were asked for.
//   - Q6: GetContext returns without a key if its context is done when it is
//     called, and when the context ends while it waits. No key and no wake-up is
//     lost.
//   - Q7: Drain returns once no key is ready or running, when its context is
//     done, or when ShutDown is called; its error is nil in the first case only.
//     What it returns is every unfinished key, once. Any number of callers may
//     drain and shut down at once; each returns as if it were alone.
//   - Q8: The queue has no goroutine of its own. ShutDown, ShutDownWithDrain and
//     Drain stop its timers at once.
//   - Q9: Add, AddAfter, Get, GetContext without waiting, and Done do not
//     allocate in steady use: while no more than 1024 keys, 2048 groups and 8
//     priorities are in use, and all were before.
//   - Q10: A key that is not ready, delayed or running is not held. A ready key
//     takes less than 110 bytes and the key itself, a delayed one less than 140.
//     Of a burst stay less than 3 MiB, a byte for each of its keys and 16 for
//     each of its groups; a key that is still held keeps the room of at most 127
//     others.
//   - Q11: The metrics have client-go's names and values, except that
//     workqueue_retries_total counts rate-limited adds only, and that the gauges
//     of running keys are 0 as soon as none runs.
//   - Q12: The delays of Exponential are uniform in the upper half of the capped
//     doubled delay, at any number of failures; it remembers the keys that failed
//     since Forget and no others.
//   - Q13: TokenBucket gives no delay above its longest, and an overload delays
//     no key that comes after it.
//   - Q14: What client-go documents of its work queues holds for this queue too,
//     but for the differences listed below.
//
// # Differences from client-go
//
//   - Add cancels a pending delay; client-go runs the key twice. AddAfter does
//     nothing to a ready key; client-go runs it again later.
//   - ShutDownWithDrain waits for ready keys as client-go documents, also for
//     those that are to run again, and any number of callers return; client-go
//     waits for the running ones only.
//   - Done of a key that does not run does nothing; client-go hands out a ready
//     key twice at once.
//   - Equal delays end in the order in which they were asked for.
//   - The default rate limiter has jitter and no bucket for all keys together.
//   - Metrics are made by Config.MetricsProvider only, never by the process-wide
//     provider.
//
// # Caveats
//
//   - The queue is in memory: what it holds ends with the process.
//   - An add after the queue was stopped is dropped, except that Drain and
//     Pending report a key that is running then: its worker has not finished it.
//   - As in client-go, Get of a stopped queue returns when no key is ready, also
//     if a running one is to run again: the worker that calls Done must call Get
//     once more.
//   - A worker that never calls Done keeps its key for ever. Snapshot and
//     workqueue_longest_running_processor_seconds show it.
//   - A key that is raised to a higher priority is the youngest there: its wait
//     starts anew.
//   - While groups take turns, a group with more overdue keys than its share waits
//     longer than MaxWait; it does not make others wait.
//   - A key must be equal to itself: a floating-point NaN, which is not, runs for
//     ever. A key that holds a value that cannot be compared panics in the caller,
//     as in a map.
//   - The metrics are called with the queue locked.
//
// # Speed
//
// With two priorities and a hundred groups in use, Add, Get and Done take about
// 0.8 of the time of client-go's queue, AddAfter 0.4, and nothing is allocated.
// bench/RESULTS.md in the repository has the figures, beside controller-runtime's
// too.
package queue
