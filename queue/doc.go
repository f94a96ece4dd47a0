// Package queue is a work queue for controllers: priorities, fairness between groups
// of keys, delays, rate limits, and a drain with a deadline.
//
// It replaces k8s.io/client-go/util/workqueue. A *Queue[K] is a
// workqueue.TypedRateLimitingInterface[K], so it fits into any controller that uses a
// queue of client-go. The rate limiters of both packages fit into the queues of both.
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
// Most callers need [New] and a loop as above, or package reconcile, which has the loop.
// The comment of [Queue] describes the life of a key, and the differences from client-go.
//
// # Guarantees
//
//   - Q1: At most one worker at a time has a key.
//   - Q2: If a key is added before the stop, a worker gets it, or Drain and Pending
//     return it.
//   - Q3: Get returns a ready key of the highest priority, except by Q4.
//   - Q4: If a ready key was passed over for MaxWait, one Get in four serves the lower
//     priority with the oldest key.
//   - Q5: If ready keys of one priority have several groups, the groups take turns key
//     by key, each in the order in which its keys became ready.
//   - Q6: If a key is added with a delay, it becomes ready once, and not early.
//   - Q7: If its context is done, GetContext returns without a key, and no key or
//     wake-up is lost.
//   - Q8: The queue starts no goroutine, and a stop of the queue stops its timers at
//     once.
//   - Q9: The queue stores only ready, delayed and running keys, each in bounded memory
//     plus its texts. After a burst it gives all but a constant amount of memory back.
//   - Q10: Except for the differences listed at [Queue], the queue has the documented
//     behavior and the metrics of client-go's queues.
//
// # Caveats
//
//   - The queue is in memory. Its keys are lost when the process ends.
//   - If a worker never calls Done, its key runs forever. Snapshot and the metric
//     workqueue_longest_running_processor_seconds show the key.
//   - An add after the stop is dropped. If its key is running, Drain and Pending report
//     the key.
package queue
