package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/queue"
)

// Everybody does everything at once, in real time: a key is never with two
// workers, and nothing that was added before the drain is lost.
//
// Proves Q1.
func TestStress(t *testing.T) {
	const keys, workers, adders, adds = 50, 8, 6, 4000
	q := queue.New(queue.Config[int]{
		Group:       func(key int) string { return fmt.Sprint(key % 5) },
		MaxWait:     time.Millisecond,
		RateLimiter: queue.Exponential[int](time.Microsecond, time.Millisecond),
		Name:        "stress", MetricsProvider: newProvider(),
	})
	var (
		running [keys]atomic.Int32
		added   [keys]atomic.Int64 // version of the key: raised before each Add
		seen    [keys]atomic.Int64 // version that was there when its last run started
	)
	var work, add sync.WaitGroup
	var terms atomic.Int64
	for w := range workers {
		work.Go(func() {
			for {
				// Half of the workers come and go by context, as leaders do, until the
				// queue is stopped.
				ctx, cancel := context.WithCancel(context.Background())
				if w%2 == 0 && !q.ShuttingDown() {
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), 2*time.Millisecond)
				}
				for {
					key, _, ok := q.GetContext(ctx)
					if !ok {
						break
					}
					if n := running[key].Add(1); n != 1 {
						t.Errorf("key %d is with %d workers", key, n)
					}
					seen[key].Store(added[key].Load())
					switch rand.IntN(8) {
					case 0:
						q.AddRateLimited(key)
					case 1:
						q.AddAfter(key, 10*time.Microsecond)
					case 2:
						q.Forget(key)
					}
					running[key].Add(-1)
					q.Done(key)
				}
				stopped := ctx.Err() == nil
				cancel()
				if stopped {
					return
				}
				terms.Add(1)
			}
		})
	}
	for range adders {
		add.Go(func() {
			for range adds {
				key := rand.IntN(keys)
				added[key].Add(1)
				switch rand.IntN(6) {
				case 0:
					q.AddWith(queue.AddOptions{Priority: rand.IntN(3) - 1}, key)
				case 1:
					q.AddAfter(key, time.Duration(rand.IntN(100))*time.Microsecond)
				case 2:
					q.AddRateLimited(key)
				case 3:
					_ = q.Snapshot()
					_ = q.Pending()
					q.Add(key)
				default:
					q.Add(key)
				}
			}
		})
	}
	add.Wait()

	left, err := q.Drain(context.Background())
	work.Wait()
	if err != nil {
		t.Errorf("Drain: %v", err)
	}
	// Each key ran after its last add, or is reported.
	for key := range keys {
		if seen[key].Load() != added[key].Load() && !slices.Contains(left, key) {
			t.Errorf("key %d: add %d of %d was seen, and it is not left", key, seen[key].Load(), added[key].Load())
		}
	}
	slices.Sort(left)
	if len(slices.Compact(slices.Clone(left))) != len(left) {
		t.Errorf("left has keys twice: %v", left)
	}
	if terms.Load() == 0 {
		t.Error("no worker ended by its context")
	}
}
