package queue_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue"
)

var _ workqueue.TypedRateLimitingInterface[string] = (*queue.Queue[string])(nil)

// tester takes keys where the test says that there are some, and never waits
// for one that is not ready: in a bubble that would let time pass.
type tester struct {
	*testing.T
	*queue.Queue[string]
}

func (q tester) take(want string) int {
	q.Helper()
	synctest.Wait()
	if q.Len() == 0 {
		q.Fatalf("no key is ready, want %q", want)
	}
	key, priority, _ := q.GetWithPriority()
	if key != want {
		q.Fatalf("got %q, want %q", key, want)
	}
	return priority
}

func (q tester) takeAt(want string, priority int) {
	q.Helper()
	if got := q.take(want); got != priority {
		q.Fatalf("priority of %q: got %d, want %d", want, got, priority)
	}
}

func (q tester) run(keys ...string) {
	q.Helper()
	for _, key := range keys {
		q.take(key)
		q.Done(key)
	}
}

func (q tester) none() {
	q.Helper()
	synctest.Wait()
	if n := q.Len(); n != 0 {
		key, _ := q.Get()
		q.Fatalf("%d keys are ready, the first is %q, want none", n, key)
	}
}

// gone is that the queue holds nothing at all, now and later.
func (q tester) gone() {
	q.Helper()
	time.Sleep(time.Hour)
	q.none()
	if keys := q.Pending(); len(keys) > 0 {
		q.Fatalf("the queue holds %v, want nothing", keys)
	}
}

// TestSemantics proves Q5.
func TestSemantics(t *testing.T) {
	with := func(priority int) queue.AddOptions { return queue.AddOptions{Priority: priority} }
	for _, tc := range []struct {
		name string
		run  func(q tester)
	}{
		{"first come first served", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.Add("c")
			q.run("a", "b", "c")
		}},
		{"a ready key is handed out once, in its place", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.Add("a")
			q.run("a", "b")
		}},
		{"a running key runs once more after Done", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Add("a")
			q.none()
			q.Done("a")
			q.run("a")
		}},
		{"a key that runs again goes to the end", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Add("b")
			q.Done("a")
			q.run("b", "a")
		}},
		{"Done of a key that is ready, delayed or not there does nothing", func(q tester) {
			q.Add("a")
			q.AddAfter("b", time.Second)
			q.Done("a")
			q.Done("b")
			q.Done("c")
			q.run("a")
			time.Sleep(time.Second)
			q.run("b")
		}},
		{"Done twice does nothing the second time", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Done("a")
			q.Done("a")
			q.run("a")
		}},

		{"AddAfter adds when its time has come", func(q tester) {
			q.AddAfter("a", time.Second)
			time.Sleep(time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},
		{"AddAfter without a delay adds at once", func(q tester) {
			q.AddAfter("a", 0)
			q.AddAfter("b", -time.Second)
			q.run("a", "b")
		}},
		{"delays end in the order of their times", func(q tester) {
			for i := range 50 {
				q.AddAfter(fmt.Sprint(i*37%50), time.Duration(i*37%50+1)*time.Second)
			}
			for i := range 50 {
				time.Sleep(time.Second)
				q.run(fmt.Sprint(i))
				q.none()
			}
		}},
		{"equal delays end in the order in which they were asked for", func(q tester) {
			for i := range 20 {
				q.AddAfter(fmt.Sprint(i), time.Second)
			}
			time.Sleep(time.Second)
			for i := range 20 {
				q.run(fmt.Sprint(i))
			}
		}},
		{"the earlier of two times wins", func(q tester) {
			q.AddAfter("a", 10*time.Second)
			q.AddAfter("b", 10*time.Second)
			q.AddAfter("a", 2*time.Second)
			q.AddAfter("a", 5*time.Second)
			time.Sleep(2 * time.Second)
			q.run("a")
			q.none()
			time.Sleep(8 * time.Second)
			q.run("b")
		}},
		{"Add cancels a delay", func(q tester) {
			q.AddAfter("a", time.Second)
			q.Add("a")
			q.run("a")
		}},
		{"a ready key takes no delay", func(q tester) {
			q.Add("a")
			q.AddAfter("a", time.Second)
			q.AddRateLimited("a")
			q.run("a")
		}},
		{"a delay that passed while the key ran is over at Done", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", time.Second)
			time.Sleep(time.Minute)
			q.none()
			q.Done("a")
			if n := q.Len(); n != 1 { // before any timer could fire
				q.Fatalf("%d keys are ready right after Done, want 1", n)
			}
			q.run("a")
		}},
		{"a delay counts from the call while the key runs too", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 10*time.Second)
			time.Sleep(4 * time.Second)
			q.Done("a")
			q.none()
			time.Sleep(6*time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},
		{"Add before a delay wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.AddAfter("a", 10*time.Second)
			q.Done("a")
			q.run("a")
		}},
		{"Add after a delay wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 10*time.Second)
			q.Add("a")
			q.Done("a")
			q.run("a")
		}},
		{"the earlier of two times wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 5*time.Second)
			q.AddAfter("a", 9*time.Second)
			q.AddAfter("a", 2*time.Second)
			q.Done("a")
			time.Sleep(2 * time.Second)
			q.run("a")
		}},
		{"the longest delay there is does not overflow", func(q tester) {
			q.AddAfter("a", math.MaxInt64)
			q.AddAfter("b", time.Second)
			time.Sleep(time.Second)
			q.run("b")
			q.Add("a")
			q.run("a")
		}},

		{"AddRateLimited waits for the limiter, longer each time", func(q tester) {
			for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				q.AddRateLimited("a")
				time.Sleep(want - 1)
				q.none()
				time.Sleep(time.Nanosecond)
				q.run("a")
			}
			if got := q.NumRequeues("a"); got != 3 {
				q.Fatalf("NumRequeues: got %d, want 3", got)
			}
			q.Forget("a")
			if got := q.NumRequeues("a"); got != 0 {
				q.Fatalf("NumRequeues after Forget: got %d, want 0", got)
			}
			q.AddRateLimited("a")
			time.Sleep(time.Second)
			q.run("a")
		}},
		{"AddWith takes the longer of After and the limiter's delay", func(q tester) {
			q.AddWith(queue.AddOptions{After: 10 * time.Second, RateLimited: true}, "a")
			q.AddWith(queue.AddOptions{After: time.Millisecond, RateLimited: true}, "b")
			time.Sleep(time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("b")
			time.Sleep(9*time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},

		{"higher priority first", func(q tester) {
			q.AddWith(with(-1), "low")
			q.Add("normal")
			q.AddWith(with(7), "high")
			q.takeAt("high", 7)
			q.takeAt("normal", 0)
			q.takeAt("low", -1)
			for _, key := range []string{"high", "normal", "low"} {
				q.Done(key)
			}
		}},
		{"AddWith raises a ready key and never lowers it", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.AddWith(with(5), "b")
			q.AddWith(with(-5), "a", "b")
			q.takeAt("b", 5)
			q.takeAt("a", 0)
			q.Done("a")
			q.Done("b")
		}},
		{"Add raises a key of low priority", func(q tester) {
			q.AddWith(with(-100), "a", "b")
			q.Add("b")
			q.takeAt("b", 0)
			q.takeAt("a", -100)
			q.Done("a")
			q.Done("b")
		}},
		{"AddWith raises a delayed key and keeps its time", func(q tester) {
			q.AddAfter("a", time.Second)
			q.AddWith(queue.AddOptions{Priority: 5, After: time.Minute}, "a")
			time.Sleep(time.Second)
			q.takeAt("a", 5)
			q.Done("a")
		}},
		{"AddAfter keeps the priority of a delayed key", func(q tester) {
			q.AddWith(queue.AddOptions{Priority: -5, After: time.Minute}, "a")
			q.AddAfter("a", time.Second)
			time.Sleep(time.Second)
			q.takeAt("a", -5)
			q.Done("a")
		}},
		{"retries keep the priority", func(q tester) {
			for _, priority := range []int{-100, 7} {
				q.AddWith(with(priority), "a")
				q.takeAt("a", priority)
				q.AddRateLimited("a")
				q.Done("a")
				time.Sleep(time.Second)
				q.takeAt("a", priority)
				q.AddAfter("a", time.Second)
				q.Done("a")
				time.Sleep(time.Second)
				q.takeAt("a", priority)
				q.Done("a") // not added again: the priority ends
				q.Add("a")
				q.takeAt("a", 0)
				q.Forget("a")
				q.Done("a")
			}
		}},
		{"Forget ends the priority of a running key", func(q tester) {
			q.AddWith(with(7), "a")
			q.takeAt("a", 7)
			q.Forget("a")
			q.AddAfter("a", time.Second)
			q.Done("a")
			time.Sleep(time.Second)
			q.takeAt("a", 0)
			q.Done("a")
		}},
		{"Forget does not end what was asked for since Get", func(q tester) {
			q.AddWith(with(7), "a")
			q.take("a")
			q.AddWith(with(3), "a")
			q.Forget("a")
			q.Done("a")
			q.takeAt("a", 3)
			q.Forget("a")
			q.AddWith(with(-100), "a")
			q.Done("a")
			q.takeAt("a", -100)
			q.Done("a")
		}},
		{"Forget of a key that does not run leaves its priority", func(q tester) {
			q.AddWith(with(7), "a")
			q.Forget("a")
			q.takeAt("a", 7)
			q.Done("a")
		}},
		{"an event while a key of low priority runs raises it", func(q tester) {
			q.AddWith(with(-100), "a")
			q.take("a")
			q.Add("a")
			q.Done("a")
			q.takeAt("a", 0)
			q.Done("a")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := tester{t, queue.New(queue.Config[string]{
					RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute),
				})}
				tc.run(q)
				q.gone()
			})
		})
	}
}

func TestGetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		got := make(chan string)
		for range 3 {
			go func() {
				key, shutdown := q.Get()
				if shutdown {
					key = "shutdown"
				}
				got <- key
			}()
		}
		synctest.Wait()
		q.Add("a")
		q.AddAfter("b", time.Minute)
		first, second := <-got, <-got
		q.ShutDown()
		if diff := cmp.Diff([]string{"a", "b", "shutdown"}, []string{first, second, <-got}); diff != "" {
			t.Errorf("what the workers got (-want +got):\n%s", diff)
		}
	})
}

func TestShutDownEndsEveryGet(t *testing.T) {
	for name, stop := range map[string]func(q *queue.Queue[string]){
		"ShutDown":          (*queue.Queue[string]).ShutDown,
		"ShutDownWithDrain": (*queue.Queue[string]).ShutDownWithDrain,
		"Drain":             func(q *queue.Queue[string]) { _, _ = q.Drain(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[string]{})
				var ended atomic.Int32
				for range 5 {
					go func() {
						if _, shutdown := q.Get(); shutdown {
							ended.Add(1)
						}
					}()
				}
				synctest.Wait()
				stop(q)
				synctest.Wait()
				if n := ended.Load(); n != 5 {
					t.Errorf("%d of 5 waiting workers ended", n)
				}
			})
		})
	}
}

// TestGetContext proves Q6.
func TestGetContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		q.Add("a")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if key, _, ok := q.GetContext(ctx); ok {
			t.Errorf("a context that is done: got %q, want no key", key)
		}
		if key, _, ok := q.GetContext(t.Context()); !ok || key != "a" {
			t.Errorf("another worker: got %q %v, want the key to be left for it", key, ok)
		}

		// The context ends while GetContext waits.
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if key, _, ok := q.GetContext(ctx); ok || time.Since(start) != time.Minute {
			t.Errorf("got %q %v after %v, want no key after 1m", key, ok, time.Since(start))
		}

		// The queue goes on for the workers of the next term.
		q.Done("a")
		q.AddWith(queue.AddOptions{Priority: 3}, "b")
		if key, priority, ok := q.GetContext(t.Context()); !ok || key != "b" || priority != 3 {
			t.Errorf("next term: got %q %d %v, want b 3 true", key, priority, ok)
		}
		q.ShutDown()
		if key, _, ok := q.GetContext(t.Context()); ok {
			t.Errorf("after ShutDown: got %q, want no key", key)
		}
	})
}

// endedFirst is a context at the moment between Err and Done: a worker that is
// woken then sees that it must leave before the context could wake it.
type endedFirst struct {
	context.Context
	ended atomic.Bool
}

func (c *endedFirst) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// A worker that is woken for a key and leaves because its context is done must
// not take the wake-up with it: another one waits.
//
// Proves Q6.
func TestGetContextPassesOnTheWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		ctx := &endedFirst{Context: t.Context()}
		go func() {
			if key, _, ok := q.GetContext(ctx); ok {
				t.Errorf("the worker whose context is done got %q", key)
			}
		}()
		synctest.Wait() // the first to wait is the first to be woken
		got := ""
		go func() { got, _, _ = q.GetContext(t.Context()) }()
		synctest.Wait()
		ctx.ended.Store(true)
		q.Add("a")
		synctest.Wait()
		if got != "a" {
			t.Error("the key is ready and the other worker waits")
		}
		q.ShutDown()
	})
}

func TestGroupPanicLeavesTheQueueUsable(t *testing.T) {
	q := queue.New(queue.Config[string]{Group: func(key string) string {
		if key == "bad" {
			panic("bad key")
		}
		return ""
	}})
	for name, add := range map[string]func(){
		"Add":            func() { q.Add("bad") },
		"AddWith":        func() { q.AddWith(queue.AddOptions{Priority: 1}, "bad") },
		"AddRateLimited": func() { q.AddWith(queue.AddOptions{RateLimited: true}, "bad") },
		"AddAfter":       func() { q.AddAfter("bad", time.Hour) },
	} {
		func() {
			defer func() { _ = recover() }()
			add()
			t.Errorf("%s: no panic", name)
		}()
	}
	q.Add("good")
	if key, _ := q.Get(); key != "good" || len(q.Pending()) != 1 {
		t.Errorf("got %q, holding %v, want good alone", key, q.Pending())
	}
}

// Group is the caller's code: it may call the queue, and see it as it is.
func TestGroupMayCallTheQueue(t *testing.T) {
	var q *queue.Queue[string]
	q = queue.New(queue.Config[string]{Group: func(string) string { return fmt.Sprint(q.Len()) }})
	q.Add("a")
	q.AddWith(queue.AddOptions{Priority: 1}, "b")
	if got := q.Snapshot().Keys; len(got) != 2 || got[0].Group != "1" || got[1].Group != "0" {
		t.Errorf("got %+v, want b in group 1 and a in group 0", got)
	}
}

// panicking is a context that cannot be waited for.
type panicking struct{ context.Context }

func (panicking) Done() <-chan struct{} { panic("no channel") }

func TestContextThatPanics(t *testing.T) {
	q := queue.New(queue.Config[string]{})
	func() {
		defer func() { _ = recover() }()
		q.GetContext(panicking{context.Background()})
		t.Error("no panic")
	}()
	q.Add("a")
	if key, _ := q.Get(); key != "a" {
		t.Errorf("Get: got %q, want a", key)
	}
}

// A queue that is not used any more is collected: nothing runs for it.
//
// Proves Q8.
func TestNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	queues := make([]*queue.Queue[string], 100)
	for i := range queues {
		queues[i] = queue.New(queue.Config[string]{Name: "q", MetricsProvider: newProvider()})
		queues[i].AddAfter("a", time.Hour)
		queues[i].Add("b")
		queues[i].Get()
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("100 queues with delays and running keys made %d goroutines, want none", n-before)
	}
	for _, q := range queues {
		q.ShutDown()
	}
}

// TestAllocations proves Q9.
func TestAllocations(t *testing.T) {
	type namespacedName struct{ Namespace, Name string }
	key := namespacedName{"default", "web"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	plain := queue.New(queue.Config[namespacedName]{})
	full := queue.New(queue.Config[namespacedName]{
		Name: "full", MetricsProvider: newProvider(), Group: func(k namespacedName) string { return k.Namespace },
	})
	keys := make([]namespacedName, 100)
	for i := range keys {
		keys[i] = namespacedName{fmt.Sprint("ns", i%10), fmt.Sprint("web", i)}
	}
	for _, tc := range []struct {
		name string
		run  func()
	}{
		{"Add Get Done", func() {
			plain.Add(key)
			k, _ := plain.Get()
			plain.Done(k)
		}},
		{"Add GetContext Done", func() {
			plain.Add(key)
			k, _, _ := plain.GetContext(ctx)
			plain.Done(k)
		}},
		{"Add Get Add Done Get Done", func() {
			plain.Add(key)
			k, _ := plain.Get()
			plain.Add(k)
			plain.Done(k)
			plain.Get()
			plain.Done(k)
		}},
		{"with metrics, groups and a priority", func() {
			full.AddWith(queue.AddOptions{Priority: 5}, key)
			k, _, _ := full.GetWithPriority()
			full.Done(k)
		}},
		{"100 keys, 10 groups, 3 priorities", func() {
			for i, key := range keys {
				full.AddWith(queue.AddOptions{Priority: i % 3}, key)
			}
			for range keys {
				k, _ := full.Get()
				full.Done(k)
			}
		}},
		{"a delay and its end by Add", func() {
			plain.AddAfter(key, time.Hour)
			plain.Add(key)
			k, _ := plain.Get()
			plain.Done(k)
		}},
	} {
		if got := testing.AllocsPerRun(200, tc.run); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", tc.name, got)
		}
	}
}

// The queue remembers nothing of the keys that it is finished with.
//
// Proves Q10.
func TestMemory(t *testing.T) {
	q := queue.New(queue.Config[string]{Group: func(key string) string { return key }})
	before := heapInUse()
	for i := range 100_000 {
		key := fmt.Sprint("key", i)
		q.AddWith(queue.AddOptions{Priority: i}, key)
		q.Get()
		q.AddRateLimited(key)
		q.Forget(key)
		q.Done(key)
		q.Add(key)
		q.Get()
		q.Done(key)
	}
	if after := heapInUse(); after > before+1<<20 {
		t.Errorf("100000 finished keys hold %d KiB", (after-before)>>10)
	}

	// Nor does a burst stay, but for the room in the map, which Go does not give
	// back: less than 100 bytes for such a key, of about 300.
	const burst = 100_000
	ints := queue.New(queue.Config[int]{})
	before = heapInUse()
	for i := range burst {
		ints.Add(i)
	}
	for range burst {
		key, _ := ints.Get()
		ints.Done(key)
	}
	if after := heapInUse(); after > before+burst*100 {
		t.Errorf("after a burst %d finished keys hold %d bytes each", burst, (after-before)/burst)
	}
	runtime.KeepAlive(ints)
	runtime.KeepAlive(q)
}

// Many delays that end at once all end, though the queue is unlocked in between.
func TestManyDelaysEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[int]{})
		defer q.ShutDown()
		const keys = 10_000
		for key := range keys {
			q.AddAfter(key, time.Minute)
		}
		q.AddAfter(keys, 2*time.Minute)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := q.Len(); got != keys {
			t.Errorf("ready after a minute: got %d, want %d", got, keys)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := q.Len(); got != keys+1 {
			t.Errorf("ready after two minutes: got %d, want %d", got, keys+1)
		}
	})
}
