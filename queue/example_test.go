package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// A worker as with client-go's queue.
func Example() {
	q := queue.New(queue.Config[string]{Name: "widgets"})
	q.Add("default/web")
	q.Add("default/web") // is queued already
	q.AddWith(controllerkit.AddOptions{Priority: -100}, "default/old")

	reconcile := func(key string) error {
		fmt.Println("reconcile", key)
		return nil
	}
	q.ShutDown() // Get still returns ready keys
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		if err := reconcile(key); err != nil {
			q.AddRateLimited(key)
		} else {
			q.Forget(key)
		}
		q.Done(key)
	}
	// Output:
	// reconcile default/web
	// reconcile default/old
}

// Keys of equal priority take turns by namespace.
func ExampleNew() {
	q := queue.New(queue.Config[types.NamespacedName]{
		Group:       func(key types.NamespacedName) string { return key.Namespace },
		RateLimiter: queue.Exponential[types.NamespacedName](10*time.Millisecond, time.Minute),
	})
	for _, name := range []string{"a", "b", "c"} {
		q.Add(types.NamespacedName{Namespace: "noisy", Name: name})
	}
	q.Add(types.NamespacedName{Namespace: "quiet", Name: "a"})
	for q.Len() > 0 {
		key, _ := q.Get()
		fmt.Println(key)
		q.Done(key)
	}
	// Output:
	// noisy/a
	// quiet/a
	// noisy/b
	// noisy/c
}

func ExampleQueue_AddWith() {
	q := queue.New(queue.Config[string]{})
	q.AddWith(controllerkit.AddOptions{Priority: -100}, "backfill")
	q.Add("changed")
	q.AddWith(controllerkit.AddOptions{Priority: 10}, "urgent")
	for q.Len() > 0 {
		key, priority, _ := q.GetWithPriority()
		fmt.Println(key, priority)
		q.Done(key)
	}
	// Output:
	// urgent 10
	// changed 0
	// backfill -100
}

// Workers that end with a context, and start again on the same queue.
func ExampleQueue_GetContext() {
	q := queue.New(queue.Config[string]{})
	q.Add("a")
	q.Add("b")

	term, loseLeadership := context.WithCancel(context.Background())
	key, _, ok := q.GetContext(term)
	fmt.Println(key, ok)
	q.Done(key)
	loseLeadership()
	_, _, ok = q.GetContext(term)
	fmt.Println(ok, q.Pending())

	key, _, ok = q.GetContext(context.Background()) // the next term
	fmt.Println(key, ok)
	// Output:
	// a true
	// false [b]
	// b true
}

// Drain waits for the ready keys until its context is done.
func ExampleQueue_Drain() {
	q := queue.New(queue.Config[string]{})
	q.Add("a")
	q.AddAfter("later", time.Hour)

	var workers sync.WaitGroup
	workers.Go(func() {
		for {
			key, shutdown := q.Get()
			if shutdown {
				return
			}
			q.Done(key)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	left, err := q.Drain(ctx)
	workers.Wait()
	fmt.Println(left, err)

	// The error wraps the cause of the context.
	late := queue.New(queue.Config[string]{})
	late.Add("b")
	errGrace := errors.New("grace period is over")
	over, end := context.WithCancelCause(context.Background())
	end(errGrace)
	left, err = late.Drain(over)
	fmt.Println(left, err, errors.Is(err, errGrace))
	// Output:
	// [later] <nil>
	// [b] queue: drain: 1 keys left: grace period is over true
}

func ExampleQueue_Snapshot() {
	q := queue.New(queue.Config[string]{Name: "widgets"})
	q.Add("a")
	q.Get()
	q.Add("b")
	q.AddRateLimited("c")
	s := q.Snapshot()
	fmt.Println(s.Name, s.Running, s.Ready, s.Delayed)
	for _, key := range s.Keys {
		fmt.Println(key.Key, key.State, key.Attempts)
	}
	q.ShutDown()
	// Output:
	// widgets 1 1 1
	// a running 0
	// b ready 0
	// c delayed 1
}

func ExampleQueue_SnapshotOf() {
	q := queue.New(queue.Config[string]{Name: "widgets"})
	q.Add("a")
	q.AddAfter("b", time.Hour)
	for _, key := range q.SnapshotOf("b", "absent").Keys {
		fmt.Println(key.Key, key.State)
	}
	q.ShutDown()
	// Output: b delayed
}

func ExampleExponential() {
	limiter := queue.Exponential[string](time.Second, 5*time.Second)
	for range 4 {
		d := limiter.When("a")
		fmt.Println(d > 0 && d <= 5*time.Second, limiter.NumRequeues("a"))
	}
	limiter.Forget("a")
	fmt.Println(limiter.When("a") <= time.Second)
	// Output:
	// true 1
	// true 2
	// true 3
	// true 4
	// true
}

// Ten retries a second for all keys together, beside the backoff of each key,
// and never longer than a minute on account of the others.
func ExampleTokenBucket() {
	limiter := queue.MaxOf(
		queue.Exponential[string](5*time.Millisecond, 5*time.Minute),
		queue.TokenBucket[string](10, 100, time.Minute),
	)
	fmt.Println(limiter.When("a") <= 5*time.Millisecond)
	// Output: true
}

// Each key backs off, and all keys together get ten calls a second after the first hundred.
func ExampleMaxOf() {
	limiter := queue.MaxOf(
		queue.Exponential[string](5*time.Millisecond, 5*time.Minute),
		queue.TokenBucket[string](10, 100, time.Second),
	)
	fmt.Println(limiter.When("a") <= 5*time.Millisecond)
	// Output: true
}

// A loop of one's own that keeps the deadline of a failing key asks for the delay first.
func ExampleQueue_When() {
	q := queue.New(queue.Config[string]{RateLimiter: queue.Exponential[string](time.Second, time.Minute)})
	delay := q.When("a")
	deadline := time.Now().Add(delay)
	q.AddAfter("a", delay)
	fmt.Println(q.NumRequeues("a"), delay >= time.Second/2, deadline.After(time.Now()))
	// Output: 1 true true
}
