package queue_test

import (
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// conformance has a case for each promise in the comments and tests of client-go's package
// workqueue, and at the end the differences of the two queues.
func conformance() []conformanceCase {
	return []conformanceCase{
		{
			name: "keys are handed out in the order in which they were added",
			run: func(q *trial) {
				for _, key := range []string{"c", "a", "b"} {
					q.Add(key)
				}
				q.run()
			},
			want: "c a b",
		},
		{
			name: "a key that is added several times before it is handed out is handed out once, in its first place",
			run: func(q *trial) {
				q.Add("a")
				q.Add("b")
				q.Add("a")
				q.note("len ", q.Len())
				q.run()
				q.note("len ", q.Len())
			},
			want: "len 2 a b len 0",
		},
		{
			name: "Len counts what is ready, and neither what runs nor what is delayed",
			run: func(q *trial) {
				q.Add("a")
				q.Add("b")
				q.AddAfter("c", time.Hour)
				q.get()
				q.Add("a")
				q.note("len ", q.Len())
			},
			want: "a len 1",
		},
		{
			name: "a key that is added while it runs is handed out again after Done, once, and to nobody before",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.Add("a")
				q.Add("a")
				q.get()
				q.Done("a")
				q.run()
				q.note("len ", q.Len())
			},
			want: "a none a len 0",
		},
		{
			name: "a key that runs again goes to the end",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.Add("a")
				q.Add("b")
				q.Done("a")
				q.run()
			},
			want: "a b a",
		},
		{
			name: "Done without an add in between is the end",
			run: func(q *trial) {
				q.Add("a")
				q.run()
				q.get()
				q.Add("a")
				q.run()
			},
			want: "a none a",
		},
		{
			name: "Done of a key that was never added does nothing",
			run: func(q *trial) {
				q.Done("a")
				q.get()
			},
			want: "none",
		},
		{
			name: "Get waits for a key",
			run: func(q *trial) {
				q.work()
				time.Sleep(3 * time.Second)
				q.Add("a")
			},
			want: "a@3s",
		},
		{
			name: "several workers get different keys at the same time",
			run: func(q *trial) {
				for range 3 {
					q.workFor(time.Second)
				}
				for _, key := range []string{"a", "b", "c", "d"} {
					q.Add(key)
				}
				time.Sleep(time.Minute)
				q.mu.Lock()
				defer q.mu.Unlock()
				slices.Sort(q.seen) // who was first is chance
			},
			want: "a@0s b@0s c@0s d@1s",
		},
		{
			name: "producers and consumers: each key runs after its last add, never twice at once",
			run: func(q *trial) {
				const keys, producers, consumers = 10, 50, 10
				var mu sync.Mutex
				running, fresh := map[string]bool{}, map[string]bool{}
				var workers, adders sync.WaitGroup
				for range consumers {
					workers.Go(func() {
						for {
							key, shutdown := q.Get()
							if shutdown {
								return
							}
							mu.Lock()
							if running[key] {
								q.note("twice at once: ", key)
							}
							running[key], fresh[key] = true, true
							mu.Unlock()
							time.Sleep(3 * time.Millisecond)
							mu.Lock()
							running[key] = false
							mu.Unlock()
							q.Done(key)
						}
					})
				}
				for p := range producers {
					adders.Go(func() {
						for i := range 50 {
							key := fmt.Sprint((p + i) % keys)
							mu.Lock()
							fresh[key] = false
							q.Add(key)
							mu.Unlock()
							time.Sleep(time.Millisecond)
						}
					})
				}
				adders.Wait()
				q.ShutDown()
				workers.Wait()
				for key, ok := range fresh {
					if !ok {
						q.note("lost: ", key)
					}
				}
				q.note(len(fresh), " keys, len ", q.Len())
			},
			want: "10 keys, len 0",
		},

		{
			name: "ShutDown: what is ready is handed out, then every Get says shutdown; adds are ignored",
			run: func(q *trial) {
				q.Add("a")
				q.Add("b")
				q.note(q.ShuttingDown())
				q.ShutDown()
				q.note(q.ShuttingDown())
				q.Add("c")
				q.AddAfter("c", 0)
				q.AddAfter("c", time.Second)
				q.AddRateLimited("c")
				time.Sleep(time.Minute)
				q.Done(q.get())
				q.Done(q.get())
				q.get()
				q.get()
			},
			want: "false true a b shutdown shutdown",
		},
		{
			name: "ShutDown ends every Get that waits",
			run: func(q *trial) {
				for range 3 {
					go func() {
						_, shutdown := q.Get()
						q.note("shutdown ", shutdown)
					}()
				}
				synctest.Wait()
				q.ShutDown()
			},
			want: "shutdown true shutdown true shutdown true",
		},
		{
			name: "ShutDown does not wait for what runs, and may be called again",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.ShutDown()
				q.ShutDown()
				q.note("back")
				q.Done("a")
			},
			want: "a back",
		},
		{
			name: "ShutDown: what was added before, while it ran, runs again after Done",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.Add("a")
				q.ShutDown()
				q.get()
				q.Done("a")
				q.run()
				q.get()
			},
			want: "a shutdown a shutdown",
		},
		{
			name: "ShutDown: what was delayed does not come",
			run: func(q *trial) {
				q.AddAfter("a", time.Second)
				synctest.Wait()
				q.ShutDown()
				time.Sleep(time.Minute)
				q.get()
			},
			want: "shutdown",
		},
		{
			name: "ShutDownWithDrain waits for what runs",
			run: func(q *trial) {
				q.Add("a")
				q.Add("b")
				q.get()
				q.get()
				q.drain("drained")
				q.get()
				time.Sleep(time.Second)
				q.Done("a")
				time.Sleep(time.Second)
				q.Done("b")
			},
			want: "a b shutdown drained@2s",
		},
		{
			name: "ShutDownWithDrain of an idle queue returns",
			run:  func(q *trial) { q.drain("drained") },
			want: "drained@0s",
		},
		{
			name: "ShutDownWithDrain ignores adds",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.drain("drained")
				q.Add("b")
				q.Done("a")
				q.get()
			},
			want: "a drained@0s shutdown",
		},
		{
			name: "ShutDown ends a ShutDownWithDrain that waits",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.drain("drained")
				time.Sleep(time.Second)
				q.ShutDown()
				synctest.Wait()
				q.note("back")
			},
			want: "a drained@1s back",
		},

		{
			name: "AddAfter adds when the time has passed, not before, once",
			run: func(q *trial) {
				q.AddAfter("a", 50*time.Millisecond)
				time.Sleep(50*time.Millisecond - 1)
				q.get()
				time.Sleep(time.Nanosecond)
				q.run()
				time.Sleep(time.Minute)
				q.get()
			},
			want: "none a none",
		},
		{
			name: "AddAfter of nothing or less adds at once",
			run: func(q *trial) {
				q.AddAfter("a", 0)
				q.AddAfter("b", -time.Second)
				q.run()
			},
			want: "a b",
		},
		{
			name: "of two delays the earlier one counts, whichever came first",
			run: func(q *trial) {
				q.work()
				q.AddAfter("a", 50*time.Millisecond)
				q.AddAfter("a", 70*time.Millisecond)
				q.AddAfter("b", 50*time.Millisecond)
				q.AddAfter("b", 30*time.Millisecond)
				time.Sleep(time.Minute)
			},
			want: "b@30ms a@50ms",
		},
		{
			name: "delays end in the order of their times",
			run: func(q *trial) {
				q.AddAfter("a", time.Second)
				q.AddAfter("b", 500*time.Millisecond)
				q.AddAfter("c", 250*time.Millisecond)
				time.Sleep(2 * time.Second)
				q.run()
			},
			want: "c b a",
		},
		{
			name: "a later delay is not held up by an earlier one, nor one of more than a heartbeat",
			run: func(q *trial) {
				q.work()
				q.AddAfter("a", 25*time.Second)
				q.AddAfter("b", 50*time.Millisecond)
				time.Sleep(time.Second)
				q.AddAfter("c", 2*time.Second)
				time.Sleep(time.Minute)
			},
			want: "b@50ms c@3s a@25s",
		},
		{
			name: "a delay that ends while the key runs takes effect at Done",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.AddAfter("a", time.Second)
				time.Sleep(10 * time.Second)
				q.get()
				q.Done("a")
				q.run()
			},
			want: "a none a",
		},
		{
			name: "a delay that is asked for while the key runs counts from the call",
			run: func(q *trial) {
				q.workFor(4 * time.Second)
				q.Add("a")
				synctest.Wait()
				q.AddAfter("a", 10*time.Second)
				time.Sleep(time.Minute)
			},
			want: "a@0s a@10s",
		},
		{
			name: "AddAfter does not wait, however many keys there are",
			run: func(q *trial) {
				for i := range 5000 {
					q.AddAfter(fmt.Sprint(i), time.Second)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				q.note(q.Len())
			},
			want: "5000",
		},

		{
			name: "AddRateLimited adds after the limiter's delay, NumRequeues counts, Forget starts anew",
			run: func(q *trial) {
				q.work()
				for range 3 {
					q.AddRateLimited("a")
					time.Sleep(10 * time.Second)
				}
				q.note(q.NumRequeues("a"), " and ", q.NumRequeues("b"))
				q.AddRateLimited("b")
				time.Sleep(10 * time.Second)
				q.Forget("a")
				q.note(q.NumRequeues("a"), " and ", q.NumRequeues("b"))
				q.AddRateLimited("a")
				time.Sleep(10 * time.Second)
			},
			want: "a@1s a@12s a@24s 3 and 0 b@31s 0 and 1 a@41s",
		},
		{
			name: "Forget changes what the limiter knows and nothing else",
			run: func(q *trial) {
				q.Add("running")
				q.get()
				q.AddRateLimited("delayed")
				q.Add("ready")
				for _, key := range []string{"running", "delayed", "ready", "unknown"} {
					q.Forget(key)
				}
				q.Add("running")
				q.run()
				time.Sleep(time.Second)
				q.run()
				q.Done("running")
				q.run()
			},
			want: "running ready delayed running",
		},
		{
			name: "neither Add nor AddAfter is a requeue",
			run: func(q *trial) {
				q.Add("a")
				q.AddAfter("a", time.Second)
				q.note(q.NumRequeues("a"))
			},
			want: "0",
		},
		{
			name: "a rate-limited key that runs comes back when both Done was called and the delay is over",
			run: func(q *trial) {
				q.workFor(3 * time.Second)
				q.Add("a")
				synctest.Wait()
				q.AddRateLimited("a")
				time.Sleep(time.Minute)
			},
			want: "a@0s a@3s",
		},
		{
			name: "the limiter is asked after ShutDown too",
			run: func(q *trial) {
				q.ShutDown()
				q.AddRateLimited("a")
				q.note(q.NumRequeues("a"))
			},
			want: "1",
		},

		{
			name: "ShutDownWithDrain waits until all ready keys are processed",
			why:  "client-go documents this and waits for the running ones only",
			run: func(q *trial) {
				for _, key := range []string{"a", "b", "c"} {
					q.Add(key)
				}
				q.drain("drained")
				q.workFor(time.Second)
				time.Sleep(time.Minute)
			},
			want:   "a@0s b@1s c@2s drained@3s",
			theirs: "drained@0s a@0s b@1s c@2s",
		},
		{
			name: "ShutDownWithDrain waits for what is to run again",
			why:  "in client-go's own test of this nobody looks at when it returns",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.Add("a")
				q.drain("drained")
				q.get()
				q.Done("a")
				again := q.get()
				time.Sleep(time.Second)
				q.Done(again)
				synctest.Wait()
				q.get()
			},
			want:   "a shutdown a drained@1s shutdown",
			theirs: "a shutdown drained@0s a shutdown",
		},
		{
			name: "of two ShutDownWithDrain both return",
			why:  "in client-go one of them never does",
			run: func(q *trial) {
				q.Add("a")
				q.get()
				q.drain("drained")
				q.drain("drained")
				q.Done("a")
				time.Sleep(time.Hour)
				q.note("an hour later")
			},
			want:   "a drained@0s drained@0s an hour later",
			theirs: "a drained@0s an hour later drained@1h0m0s", // by ShutDown, at the end of the case
		},
		{
			name: "Add ends a delay",
			why:  "client-go runs the key again when the delay is over",
			run: func(q *trial) {
				q.work()
				q.AddAfter("a", 10*time.Second)
				synctest.Wait()
				q.Add("a")
				time.Sleep(time.Minute)
			},
			want:   "a@0s",
			theirs: "a@0s a@10s",
		},
		{
			name: "AddAfter of a ready key does nothing",
			why:  "client-go runs the key again when the delay is over",
			run: func(q *trial) {
				q.Add("a")
				q.AddAfter("a", 10*time.Second)
				synctest.Wait()
				q.work()
				time.Sleep(time.Minute)
			},
			want:   "a@0s",
			theirs: "a@0s a@10s",
		},
		{
			name: "Add and AddAfter while the key runs are one more run, at once",
			why:  "client-go runs the key once for each",
			run: func(q *trial) {
				q.workFor(time.Second)
				q.Add("a")
				synctest.Wait()
				q.AddAfter("a", 10*time.Second)
				q.Add("a")
				time.Sleep(time.Minute)
			},
			want:   "a@0s a@1s",
			theirs: "a@0s a@1s a@10s",
		},
		{
			name: "Done of a ready key does nothing",
			why:  "client-go puts it into the queue a second time, and hands it to two workers at once",
			run: func(q *trial) {
				q.Add("a")
				q.Done("a")
				q.get()
				q.get()
			},
			want:   "a none",
			theirs: "a a",
		},
		{
			name: "equal delays end in the order in which they were asked for",
			why:  "client-go promises no order",
			run: func(q *trial) {
				for _, key := range []string{"a", "b", "c", "d", "e"} {
					q.AddAfter(key, time.Second)
				}
				time.Sleep(time.Second)
				q.run()
			},
			want:   "a b c d e",
			theirs: "a e d c b",
		},
	}
}
