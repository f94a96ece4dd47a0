package queue_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue"
)

func TestExponential(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		base, limit           time.Duration
		failures              int
		wantBase, wantMax     time.Duration // of the first and of the last delay
		wantHighestAfterFirst bool
	}{
		{name: "first failures", base: 5 * time.Millisecond, limit: time.Minute, failures: 5, wantBase: 5 * time.Millisecond, wantMax: 80 * time.Millisecond},
		{name: "capped", base: time.Second, limit: 5 * time.Second, failures: 100, wantBase: time.Second, wantMax: 5 * time.Second},
		{name: "no overflow", base: 3 * time.Nanosecond, limit: math.MaxInt64, failures: 1000, wantBase: 3, wantMax: math.MaxInt64},
		{name: "base above limit", base: time.Minute, limit: time.Second, failures: 3, wantBase: time.Second, wantMax: time.Second},
		{name: "defaults", failures: 100, wantBase: 5 * time.Millisecond, wantMax: 5 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := queue.Exponential[string](tc.base, tc.limit)
			want := tc.wantBase
			for n := range tc.failures {
				got := r.When("a")
				if got < want/2 || got > want {
					t.Fatalf("failure %d: got %v, want it in [%v, %v]", n+1, got, want/2, want)
				}
				if r.NumRequeues("a") != n+1 {
					t.Fatalf("NumRequeues: got %d, want %d", r.NumRequeues("a"), n+1)
				}
				if want <= tc.wantMax/2 {
					want *= 2
				} else {
					want = tc.wantMax
				}
				if n == tc.failures-2 && want != tc.wantMax {
					t.Fatalf("the last delay would be %v, want %v", want, tc.wantMax)
				}
			}
			if r.NumRequeues("b") != 0 {
				t.Error("another key has failures too")
			}
			r.Forget("a")
			if got := r.When("a"); got > tc.wantBase {
				t.Errorf("after Forget: got %v, want at most %v", got, tc.wantBase)
			}
		})
	}
}

// The jitter is uniform: each tenth of [d/2, d] gets about a tenth.
//
// Proves Q12.
func TestExponentialJitter(t *testing.T) {
	const n = 20000
	r := queue.Exponential[int](time.Second, time.Second)
	var tenths [10]int
	for i := range n {
		d := r.When(i)
		tenths[min(int((d-time.Second/2)/(50*time.Millisecond)), 9)]++
	}
	for i, got := range tenths {
		if got < n/10*8/10 || got > n/10*12/10 {
			t.Errorf("delays in tenth %d: got %d of %d, want about %d", i, got, n, n/10)
		}
	}
}

// A limiter remembers the keys that fail and no others.
//
// Proves Q12.
func TestLimiterMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for name, r := range map[string]workqueue.TypedRateLimiter[string]{
		"Exponential": queue.Exponential[string](0, 0),
		"FastSlow":    queue.FastSlow[string](time.Second, time.Minute, 3),
	} {
		before := heap()
		for i := range 200_000 {
			key := fmt.Sprint("key", i)
			r.When(key)
			r.Forget(key)
		}
		if after := heap(); after > before+1<<20 {
			t.Errorf("%s: 200000 keys that failed once and were forgotten hold %d KiB", name, (after-before)>>10)
		}
		runtime.KeepAlive(r)
	}
}

// TestTokenBucket proves Q13.
func TestTokenBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queue.TokenBucket[int](10, 5, time.Second)
		for i := range 5 {
			if got := r.When(i); got != 0 {
				t.Errorf("key %d of the burst: got %v, want 0", i, got)
			}
		}
		for i := range 10 {
			if got, want := r.When(i).Round(time.Millisecond), time.Duration(i+1)*100*time.Millisecond; got != want {
				t.Errorf("key %d after the burst: got %v, want %v", i, got, want)
			}
		}
		// Whoever comes now would wait for longer than 1 s. However many they
		// are, nobody waits for longer, and they do not all wait equally long.
		different := map[time.Duration]bool{}
		for i := range 5000 {
			got := r.When(i)
			if got < time.Second/2 || got > time.Second {
				t.Fatalf("overload: got %v, want it in [0.5 s, 1 s]", got)
			}
			different[got] = true
		}
		if len(different) < 1000 {
			t.Errorf("overload: %d different delays for 5000 keys", len(different))
		}
		// No debt: what was promised to the first 15 is over after 1 s.
		time.Sleep(1100 * time.Millisecond)
		if got := r.When(1); got != 0 {
			t.Errorf("1.1 s after an overload: got %v, want 0", got)
		}
		if r.Forget(1); r.NumRequeues(1) != 0 {
			t.Errorf("NumRequeues: got %d, want 0", r.NumRequeues(1))
		}
	})
}

func TestTokenBucketZero(t *testing.T) {
	r := queue.TokenBucket[int](0, 0, 0)
	if got := r.When(1); got != 0 {
		t.Errorf("first: got %v, want 0", got)
	}
	if got := r.When(2); got < 30*time.Second || got > time.Minute {
		t.Errorf("second: got %v, want it in [30 s, 1 min]", got)
	}
}

func TestFastSlow(t *testing.T) {
	r := queue.FastSlow[string](time.Second, time.Minute, 2)
	for n, want := range []time.Duration{time.Second, time.Second, time.Minute, time.Minute} {
		if got := r.When("a"); got != want {
			t.Errorf("failure %d: got %v, want %v", n+1, got, want)
		}
	}
	if got := r.NumRequeues("a"); got != 4 {
		t.Errorf("NumRequeues: got %d, want 4", got)
	}
	r.Forget("a")
	if got := r.When("a"); got != time.Second {
		t.Errorf("after Forget: got %v, want 1s", got)
	}
}

func TestMaxOfMinOf(t *testing.T) {
	limiters := func() (a, b workqueue.TypedRateLimiter[string]) {
		return queue.FastSlow[string](2*time.Second, 2*time.Second, 0),
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	}
	a, b := limiters()
	longest := queue.MaxOf(a, b)
	a, b = limiters()
	shortest := queue.MinOf(a, b)
	for n, want := range []struct{ longest, shortest time.Duration }{
		{2 * time.Second, time.Second}, {2 * time.Second, 2 * time.Second}, {4 * time.Second, 2 * time.Second},
	} {
		if got := longest.When("a"); got != want.longest {
			t.Errorf("MaxOf, failure %d: got %v, want %v", n+1, got, want.longest)
		}
		if got := shortest.When("a"); got != want.shortest {
			t.Errorf("MinOf, failure %d: got %v, want %v", n+1, got, want.shortest)
		}
	}
	for name, r := range map[string]workqueue.TypedRateLimiter[string]{"MaxOf": longest, "MinOf": shortest} {
		if got := r.NumRequeues("a"); got != 3 {
			t.Errorf("%s: NumRequeues: got %d, want 3", name, got)
		}
		if r.Forget("a"); r.NumRequeues("a") != 0 {
			t.Errorf("%s: NumRequeues after Forget: got %d, want 0", name, r.NumRequeues("a"))
		}
	}
	a, b = limiters()
	a.When("a") // and b has not failed
	if got, got2 := queue.MaxOf(a, b).NumRequeues("a"), queue.MinOf(b, a).NumRequeues("a"); got != 1 || got2 != 1 {
		t.Errorf("NumRequeues: got %d and %d, want the highest, 1", got, got2)
	}
	if d := queue.MaxOf[string]().When("a"); d != 0 {
		t.Errorf("MaxOf nothing: got %v, want 0", d)
	}
	if d := queue.MinOf[string]().When("a"); d != 0 {
		t.Errorf("MinOf nothing: got %v, want 0", d)
	}
}

// The limiters work in client-go's queue, and client-go's in this one.
func TestLimitersAreInterchangeable(t *testing.T) {
	for name, limiter := range map[string]func() workqueue.TypedRateLimiter[string]{
		"Exponential": func() workqueue.TypedRateLimiter[string] { return queue.Exponential[string](time.Second, time.Minute) },
		"TokenBucket": func() workqueue.TypedRateLimiter[string] { return queue.TokenBucket[string](1, 1, time.Minute) },
		"FastSlow":    func() workqueue.TypedRateLimiter[string] { return queue.FastSlow[string](1, 2, 3) },
		"MaxOf": func() workqueue.TypedRateLimiter[string] {
			return queue.MaxOf(workqueue.DefaultTypedControllerRateLimiter[string](), queue.Exponential[string](1, 2))
		},
		"client-go's default": workqueue.DefaultTypedControllerRateLimiter[string],
		"default":             func() workqueue.TypedRateLimiter[string] { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queues := map[string]common{"own": queue.New(queue.Config[string]{RateLimiter: limiter()})}
				if limiter() != nil {
					queues["client-go's"] = workqueue.NewTypedRateLimitingQueue(limiter())
				}
				for name, q := range queues {
					for range 3 {
						q.AddRateLimited("a")
						if key, _ := q.Get(); key != "a" {
							t.Errorf("%s queue: got %q, want a", name, key)
						}
						q.Done("a")
					}
					q.Forget("a")
					q.ShutDown()
				}
			})
		})
	}
}
