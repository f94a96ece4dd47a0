package queue_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

var _ workqueue.TypedRateLimitingInterface[string] = (*queue.Queue[string])(nil)

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

// TestGetContext proves Q7.
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
		q.AddWith(controllerkit.AddOptions{Priority: 3}, "b")
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
// It proves Q7.
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
		"AddWith":        func() { q.AddWith(controllerkit.AddOptions{Priority: 1}, "bad") },
		"AddRateLimited": func() { q.AddWith(controllerkit.AddOptions{RateLimited: true}, "bad") },
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
	q.AddWith(controllerkit.AddOptions{Priority: 1}, "b")
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

// TestNoGoroutine tests that an unused queue is garbage, because it has no goroutine.
//
// It proves Q8.
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
