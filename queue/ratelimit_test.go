package queue_test

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
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
		{name: "negative", base: -time.Second, limit: -time.Second, failures: 100, wantBase: 5 * time.Millisecond, wantMax: 5 * time.Minute},
		{name: "the largest", base: math.MaxInt64, limit: math.MaxInt64, failures: 3, wantBase: math.MaxInt64, wantMax: math.MaxInt64},
		{name: "one nanosecond", base: 1, limit: 1, failures: 3, wantBase: 1, wantMax: 1},
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

// TestExponentialJitter tests that the jitter is uniform: each tenth of [d/2, d] gets about
// a tenth of the delays.
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

// TestLimiterMemory tests that a limiter stores only the keys that fail.
func TestLimiterMemory(t *testing.T) {
	withoutRaceDetector(t)
	for name, r := range map[string]workqueue.TypedRateLimiter[string]{
		"Exponential": queue.Exponential[string](0, 0),
	} {
		before := heapInUse()
		for i := range 200_000 {
			key := fmt.Sprint("key", i)
			r.When(key)
			r.Forget(key)
		}
		if after := heapInUse(); after > before+1<<20 {
			t.Errorf("%s: 200000 keys that failed once and were forgotten hold %d KiB", name, (after-before)>>10)
		}
		runtime.KeepAlive(r)
	}
}

// TestLimiterMemoryAfterAnOutage tests that a limiter frees the memory of the keys that do
// not fail any more.
func TestLimiterMemoryAfterAnOutage(t *testing.T) {
	withoutRaceDetector(t)
	const keys, still = 200_000, 100
	for name, limiter := range map[string]func() workqueue.TypedRateLimiter[int]{
		"Exponential": func() workqueue.TypedRateLimiter[int] { return queue.Exponential[int](0, 0) },
	} {
		var r workqueue.TypedRateLimiter[int]
		var before, during int64
		for range 5 {
			// Memory that an earlier test left behind, e.g. in a timer, may be freed during
			// the measurement, and hide its result.
			r, before = limiter(), heapInUse()
			for key := range keys {
				r.When(key)
				r.When(key)
			}
			if during = heapInUse(); during >= before+keys*16 {
				break
			}
		}
		if during < before+keys*16 {
			t.Fatalf("%s: %d failing keys take %d KiB: this test measures nothing", name, keys, (during-before)>>10)
		}
		for key := still; key < keys; key++ {
			r.Forget(key)
		}
		if after := heapInUse(); after > before+256<<10 { // 32 KiB of buckets, and blocks for eight times as many keys
			t.Errorf("%s: %d failing keys of %d hold %d KiB", name, still, keys, (after-before)>>10)
		}
		for key := range keys {
			want := 0
			if key < still {
				want = 2
			}
			if got := r.NumRequeues(key); got != want {
				t.Fatalf("%s: NumRequeues(%d): got %d, want %d", name, key, got, want)
			}
		}
		runtime.KeepAlive(r)
	}
}

// TestLimitersConcurrently tests that all concurrent failures of a key are counted.
func TestLimitersConcurrently(t *testing.T) {
	const workers, failures = 8, 2000
	for name, r := range map[string]workqueue.TypedRateLimiter[int]{
		"Exponential": queue.Exponential[int](0, 0),
		"MaxOf":       queue.MaxOf(queue.Exponential[int](0, 0), queue.TokenBucket[int](1, 1, time.Minute)),
	} {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range failures {
					r.When(0)
					r.When(1 + w*failures + i)
				}
				for i := range failures {
					r.Forget(1 + w*failures + i)
				}
			})
		}
		wg.Wait()
		if got := r.NumRequeues(0); got != workers*failures {
			t.Errorf("%s: got %d failures, want %d", name, got, workers*failures)
		}
	}
}

// TestTokenBucket tests that if a token is due later than longest, TokenBucket takes none,
// and the key waits at most longest.
func TestTokenBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queue.TokenBucket[int](10, 5, time.Second)
		for i := range 5 {
			if got := r.When(i); got != 0 {
				t.Errorf("key %d of the burst: got %v, want 0", i, got)
			}
		}
		// A key waits for its token, and then up to the time of one token. The tenth has
		// no such time left until the longest delay.
		exact, last := 0, time.Duration(0)
		for i := range 10 {
			token := time.Duration(i+1) * 100 * time.Millisecond
			got := r.When(i)
			if least, most := token-time.Microsecond, min(token+100*time.Millisecond, time.Second); got < least || got > most {
				t.Errorf("key %d after the burst: got %v, want it in [%v, %v]", i, got, least, most)
			}
			if got < last {
				t.Errorf("key %d after the burst: got %v, before the key that came before it: %v", i, got, last)
			}
			if last = got; got.Round(time.Millisecond) == token {
				exact++
			}
		}
		if exact > 5 {
			t.Errorf("%d of 10 keys have no jitter", exact)
		}
		// Each further key would have to wait for longer than 1 s. All of them wait for
		// at most 1 s, and not equally long.
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
		// No debt: the tokens of the first 15 keys are used after 1 s.
		time.Sleep(1100 * time.Millisecond)
		if got := r.When(1); got != 0 {
			t.Errorf("1.1 s after an overload: got %v, want 0", got)
		}
		if r.Forget(1); r.NumRequeues(1) != 0 {
			t.Errorf("NumRequeues: got %d, want 0", r.NumRequeues(1))
		}
	})
}

// TestTokenBucketOfOddRates tests rates and bursts that are zero, negative or huge.
func TestTokenBucketOfOddRates(t *testing.T) {
	for _, tc := range []struct {
		name      string
		perSecond float64
		burst     int
		longest   time.Duration
		at        time.Duration // from the first call to the second
		min, max  time.Duration // of the second delay
	}{
		{name: "zero", min: 30 * time.Second, max: time.Minute},
		{name: "zero, later", at: 1000 * time.Hour, min: 30 * time.Second, max: time.Minute},
		{name: "negative", perSecond: -1, burst: -1, longest: -1, min: 30 * time.Second, max: time.Minute},
		{name: "negative infinity", perSecond: math.Inf(-1), longest: time.Second, min: time.Second / 2, max: time.Second},
		{name: "not a number", perSecond: math.NaN(), longest: time.Second, min: time.Second / 2, max: time.Second},
		{name: "not a number, later", perSecond: math.NaN(), longest: time.Second, at: 1000 * time.Hour, min: time.Second / 2, max: time.Second},
		{name: "infinite", perSecond: math.Inf(1)},
		{name: "infinite, later", perSecond: math.Inf(1), at: time.Hour},
		{name: "the largest", perSecond: math.MaxFloat64},
		{name: "nearly none", perSecond: math.SmallestNonzeroFloat64, longest: time.Second, min: time.Second / 2, max: time.Second},
		{name: "one a century, as long as there is", perSecond: 1e-10, longest: math.MaxInt64, min: 1, max: math.MaxInt64},
		{name: "a burst that is not used up", perSecond: 1, burst: math.MaxInt},
		{name: "a nanosecond", perSecond: 1, longest: 1, min: 1, max: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := queue.TokenBucket[int](tc.perSecond, tc.burst, tc.longest)
				if got := r.When(1); got != 0 {
					t.Errorf("first: got %v, want 0", got)
				}
				time.Sleep(tc.at)
				for range 100 {
					if got := r.When(2); got < tc.min || got > tc.max {
						t.Fatalf("later: got %v, want it in [%v, %v]", got, tc.min, tc.max)
					}
				}
			})
		})
	}
}

// TestJitter tests that keys that fail together do not come back together.
func TestJitter(t *testing.T) {
	const keys = 1000
	for name, r := range map[string]workqueue.TypedRateLimiter[int]{
		"Exponential": queue.Exponential[int](time.Second, time.Second),
		"TokenBucket": queue.TokenBucket[int](1, 1, time.Second),
		"MaxOf":       queue.MaxOf(queue.Exponential[int](time.Second, time.Second), queue.TokenBucket[int](1, 1, time.Second)),
	} {
		delays := map[time.Duration]bool{}
		for key := range keys {
			delays[r.When(key)] = true
		}
		if len(delays) < keys*9/10 {
			t.Errorf("%s: %d keys have %d different delays", name, keys, len(delays))
		}
	}
}

// negative is a faulty limiter.
type negative struct {
	workqueue.TypedRateLimiter[string]
}

func (negative) When(string) time.Duration { return -time.Second }

// TestNegativeDelay tests that a negative delay counts as 0.
func TestNegativeDelay(t *testing.T) {
	bad := negative{queue.Exponential[string](0, 0)}
	second := &fixedLimiter[string]{delay: time.Second}
	none := &fixedLimiter[string]{}
	for name, tc := range map[string]struct {
		r    workqueue.TypedRateLimiter[string]
		want time.Duration
	}{
		"MaxOf":                {queue.MaxOf[string](bad, second), time.Second},
		"MaxOf alone":          {queue.MaxOf[string](bad, bad), 0},
		"MaxOf, with a 0 too":  {queue.MaxOf[string](none, bad), 0},
		"MaxOf of client-go's": {queue.MaxOf(workqueue.NewTypedMaxOfRateLimiter[string](bad), second), time.Second},
	} {
		if got := tc.r.When("a"); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	q := queue.New(queue.Config[string]{RateLimiter: bad})
	q.AddRateLimited("a")
	q.AddWith(controllerkit.AddOptions{RateLimited: true}, "b")
	if got := q.Len(); got != 2 {
		t.Errorf("the queue: %d keys are ready, want 2", got)
	}
}

// TestNilLimiter tests that MaxOf rejects a nil limiter at once.
func TestNilLimiter(t *testing.T) {
	type limiters = []workqueue.TypedRateLimiter[string]
	some := queue.Exponential[string](0, 0)
	for want, f := range map[string]func(){
		"queue: MaxOf: limiter 2 of 3 is nil": func() { queue.MaxOf(limiters{some, nil, some}...) },
		"queue: MaxOf: limiter 1 of 1 is nil": func() { queue.MaxOf(limiters{nil}...) },
		"queue: MaxOf: limiter 1 of 2 is nil": func() { queue.MaxOf(limiters{(*fixedLimiter[string])(nil), some}...) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got panic %v, want %q", got, want)
				}
			}()
			f()
		}()
	}
	mine := limiters{some}
	r := queue.MaxOf(mine...)
	mine[0] = nil
	r.When("a") // r has a copy of the slice
}

func TestMaxOf(t *testing.T) {
	limiters := func() (a, b workqueue.TypedRateLimiter[string]) {
		return workqueue.NewTypedItemFastSlowRateLimiter[string](2*time.Second, 2*time.Second, 0),
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	}
	r := queue.MaxOf(limiters())
	for n, want := range []time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second} {
		if got := r.When("a"); got != want {
			t.Errorf("failure %d: got %v, want %v", n+1, got, want)
		}
	}
	if got := r.NumRequeues("a"); got != 3 {
		t.Errorf("NumRequeues: got %d, want 3", got)
	}
	if r.Forget("a"); r.NumRequeues("a") != 0 {
		t.Errorf("NumRequeues after Forget: got %d, want 0", r.NumRequeues("a"))
	}
	a, b := limiters()
	a.When("a") // and b has not failed
	if got, got2 := queue.MaxOf(a, b).NumRequeues("a"), queue.MaxOf(b, a).NumRequeues("a"); got != 1 || got2 != 1 {
		t.Errorf("NumRequeues: got %d and %d, want the highest, 1", got, got2)
	}
	if d := queue.MaxOf[string]().When("a"); d != 0 {
		t.Errorf("MaxOf without limiters: got %v, want 0", d)
	}
	q := queue.New(queue.Config[string]{RateLimiter: queue.MaxOf[string]()})
	defer q.ShutDown()
	if q.AddRateLimited("a"); q.Len() != 1 {
		t.Error("a queue with MaxOf without limiters delays a key: it has another limiter")
	}
}

// TestLimitersAreInterchangeable tests that the limiters of both libraries work in the
// queues of both.
func TestLimitersAreInterchangeable(t *testing.T) {
	for name, limiter := range map[string]func() workqueue.TypedRateLimiter[string]{
		"Exponential": func() workqueue.TypedRateLimiter[string] { return queue.Exponential[string](time.Second, time.Minute) },
		"TokenBucket": func() workqueue.TypedRateLimiter[string] { return queue.TokenBucket[string](1, 1, time.Minute) },
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

// The rate limiter is called without the queue's lock: it may use the queue, and
// if it panics the caller sees it and the queue goes on.
func TestLimiterUsesTheQueueOrPanics(t *testing.T) {
	for _, bad := range []struct {
		name   string
		panics bool
	}{{"uses the queue", false}, {"panics", true}} {
		for _, tc := range []struct {
			name string
			call func(q *queue.Queue[string])
		}{
			{"AddRateLimited", func(q *queue.Queue[string]) { q.AddRateLimited("bad") }},
			{"AddWith", func(q *queue.Queue[string]) { q.AddWith(controllerkit.AddOptions{RateLimited: true}, "bad") }},
			{"Forget", func(q *queue.Queue[string]) { q.Forget("bad") }},
			{"NumRequeues", func(q *queue.Queue[string]) { q.NumRequeues("bad") }},
			{"Snapshot", func(q *queue.Queue[string]) { q.Snapshot() }},
		} {
			t.Run(bad.name+"/"+tc.name, func(t *testing.T) {
				limiter := &fixedLimiter[string]{delay: time.Hour}
				q := queue.New(queue.Config[string]{RateLimiter: limiter})
				held := 1
				if q.AddAfter("held", time.Hour); tc.name == "AddRateLimited" || tc.name == "AddWith" {
					held = 2
				}
				if bad.panics {
					held = 1
					limiter.call = func() { panic("bad limiter") }
				} else {
					limiter.call = func() { usable(t, q, "inner", 1) }
				}
				if got := panics(func() { tc.call(q) }); got != bad.panics {
					t.Errorf("panicked: got %v, want %v", got, bad.panics)
				}
				limiter.call = nil
				usable(t, q, "good", held)
				q.ShutDown()
			})
		}
	}
}

// No limiter panics on NaN either, though it cannot count its failures.
func TestLimitersOfAKeyThatIsNotEqualToItself(t *testing.T) {
	for name, limiter := range map[string]workqueue.TypedRateLimiter[float64]{
		"Exponential": queue.Exponential[float64](time.Second, time.Minute),
		"TokenBucket": queue.TokenBucket[float64](1, 1, time.Minute),
	} {
		for range 3 {
			if panics(func() {
				if got := limiter.When(math.NaN()); got < 0 || got > time.Minute {
					t.Errorf("%s: When(NaN): got %v, want 0s to 1m", name, got)
				}
				limiter.NumRequeues(math.NaN())
				limiter.Forget(math.NaN())
			}) {
				t.Errorf("%s panics on NaN", name)
			}
		}
	}
}
