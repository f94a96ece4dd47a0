package queue_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

func TestZeroConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  queue.Config[string]
	}{
		{"zero", queue.Config[string]{}},
		{"nil pointers", queue.Config[string]{Name: "q", RateLimiter: (*fixedLimiter[string])(nil), MetricsProvider: (*provider)(nil)}},
	} {
		t.Run(tc.name, func(t *testing.T) { testZeroConfig(t, tc.cfg) })
	}
}

func testZeroConfig(t *testing.T, cfg queue.Config[string]) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(cfg)
		defer q.ShutDown()
		q.AddWith(controllerkit.AddOptions{}, "a")
		q.AddWith(controllerkit.AddOptions{})
		q.AddWith(controllerkit.AddOptions{Priority: 1}, nil...)
		q.AddWith(controllerkit.AddOptions{RateLimited: true}, nil...)
		if diff := cmp.Diff([]string{"a"}, take(q)); diff != "" {
			t.Errorf("AddWith (-want +got):\n%s", diff)
		}
		q.AddRateLimited("a")
		if got := q.NumRequeues("a"); got != 1 {
			t.Errorf("NumRequeues: got %d, want 1", got)
		}
		time.Sleep(5 * time.Millisecond) // the default limiter's first delay at most
		synctest.Wait()
		if diff := cmp.Diff([]string{"a"}, take(q)); diff != "" {
			t.Errorf("AddRateLimited (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(controllerkit.QueueState{Name: cfg.Name}, q.Snapshot()); diff != "" {
			t.Errorf("Snapshot (-want +got):\n%s", diff)
		}
	})
}

// TestExtremeDelays tests that a negative delay counts as 0, and that a very long delay
// does not overflow and end early.
//
// It proves Q6.
func TestExtremeDelays(t *testing.T) {
	const never = math.MaxInt64
	type adds struct {
		name string
		add  func(q *queue.Queue[string], limiter *fixedLimiter[string], d time.Duration)
	}
	for _, by := range []adds{
		{"AddAfter", func(q *queue.Queue[string], _ *fixedLimiter[string], d time.Duration) { q.AddAfter("a", d) }},
		{"AddWith", func(q *queue.Queue[string], _ *fixedLimiter[string], d time.Duration) {
			q.AddWith(controllerkit.AddOptions{After: d}, "a")
		}},
		{"AddRateLimited", func(q *queue.Queue[string], l *fixedLimiter[string], d time.Duration) {
			l.delay = d
			q.AddRateLimited("a")
		}},
		{"AddWith rate-limited", func(q *queue.Queue[string], l *fixedLimiter[string], d time.Duration) {
			l.delay = d
			q.AddWith(controllerkit.AddOptions{RateLimited: true}, "a")
		}},
		{"AddWith rate-limited, the other delay longer", func(q *queue.Queue[string], l *fixedLimiter[string], d time.Duration) {
			l.delay = math.MinInt64
			q.AddWith(controllerkit.AddOptions{RateLimited: true, After: d}, "a")
		}},
	} {
		for _, tc := range []struct {
			name    string
			delay   time.Duration
			delayed bool
		}{
			{"zero", 0, false},
			{"negative", -time.Second, false},
			{"MinInt64", math.MinInt64, false},
			{"1 ns", 1, true},
			{"MaxInt64", never, true},
			{"MaxInt64 - 1", never - 1, true},
			{"200 years", 200 * 365 * 24 * time.Hour, true},
		} {
			for _, first := range []string{"new", "delayed", "running"} {
				t.Run(by.name+"/"+tc.name+"/"+first, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						limiter := &fixedLimiter[string]{}
						q := queue.New(queue.Config[string]{RateLimiter: limiter})
						defer q.ShutDown()
						time.Sleep(time.Hour)
						switch first {
						case "delayed":
							q.AddAfter("a", never)
						case "running":
							q.Add("a")
							q.Get()
						}
						by.add(q, limiter, tc.delay)
						q.Done("a")
						if !tc.delayed && q.Len() == 0 {
							t.Fatal("not ready at once")
						}
						synctest.Wait()
						if got := q.Len() == 0; got != tc.delayed {
							t.Fatalf("delayed: got %v, want %v", got, tc.delayed)
						}
						if !tc.delayed {
							return
						}
						if tc.delay == 1 {
							time.Sleep(1 * time.Nanosecond)
							synctest.Wait()
							if q.Len() != 1 {
								t.Error("not ready after 1 ns")
							}
							return
						}
						time.Sleep(50 * 365 * 24 * time.Hour)
						synctest.Wait()
						if q.Len() > 0 {
							t.Fatalf("ready after 50 years, want %v", tc.delay)
						}
						if until := q.Snapshot().Keys[0].Until; until.Before(time.Now()) {
							t.Errorf("Snapshot: delayed until %v, and it is %v", until, time.Now())
						}
						// An earlier time wins over a time that never comes, and no key is lost.
						q.AddAfter("a", time.Minute)
						q.AddAfter("b", never)
						time.Sleep(time.Minute)
						synctest.Wait()
						if diff := cmp.Diff([]string{"a"}, take(q)); diff != "" {
							t.Errorf("a minute later (-want +got):\n%s", diff)
						}
						if diff := cmp.Diff([]string{"b"}, q.Pending()); diff != "" {
							t.Errorf("Pending (-want +got):\n%s", diff)
						}
					})
				})
			}
		}
	}
}

// TestExtremePriorities proves Q3.
func TestExtremePriorities(t *testing.T) {
	const lowest, highest = math.MinInt, math.MaxInt
	with := func(q *queue.Queue[string], priority int, keys ...string) {
		q.AddWith(controllerkit.AddOptions{Priority: priority}, keys...)
	}
	for _, tc := range []struct {
		name string
		add  func(q *queue.Queue[string])
		want []string
	}{
		{"in order", func(q *queue.Queue[string]) {
			with(q, 0, "normal")
			with(q, lowest, "lowest")
			with(q, highest, "highest")
			with(q, lowest+1, "low")
			with(q, highest-1, "high")
			with(q, -1, "below")
		}, []string{"highest", "high", "normal", "below", "low", "lowest"}},
		{"raised from lowest to highest, and not lowered", func(q *queue.Queue[string]) {
			with(q, lowest, "a", "b")
			with(q, 1, "c")
			with(q, highest, "b")
			with(q, lowest, "b")
		}, []string{"b", "c", "a"}},
		{"added again while it runs", func(q *queue.Queue[string]) {
			with(q, lowest, "a")
			q.Get()
			with(q, lowest, "a")
			with(q, lowest, "b")
			with(q, highest, "a")
			with(q, lowest, "a")
			with(q, highest-1, "c")
			q.Done("a")
		}, []string{"a", "c", "b"}},
		{"forgotten while it runs", func(q *queue.Queue[string]) {
			with(q, highest, "a")
			q.Get()
			q.Forget("a")
			with(q, lowest, "a")
			with(q, lowest+1, "b")
			q.Done("a")
		}, []string{"b", "a"}},
		{"delayed", func(q *queue.Queue[string]) {
			q.AddWith(controllerkit.AddOptions{Priority: lowest, After: time.Hour}, "a")
			q.AddWith(controllerkit.AddOptions{Priority: highest, After: time.Hour}, "b")
			with(q, lowest, "a", "b")
		}, []string{"b", "a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[string]{})
			defer q.ShutDown()
			tc.add(q)
			if diff := cmp.Diff(tc.want, take(q)); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

// TestKeysThatAreNeverDone tests that a worker that never calls Done keeps only its key.
func TestKeysThatAreNeverDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		q.Add("stuck")
		q.Get()
		since := time.Now()
		time.Sleep(24 * time.Hour)
		q.Add("stuck") // waits for Done, whatever it asks for
		for range 3 {
			q.AddWith(controllerkit.AddOptions{Priority: 1}, "b")
			q.Add("c")
			if diff := cmp.Diff([]string{"b", "c"}, take(q)); diff != "" {
				t.Errorf("the others (-want +got):\n%s", diff)
			}
		}
		since = since.Add(time.Second) // learned late, as there are no metrics
		want := controllerkit.QueueState{Running: 1, Keys: []controllerkit.QueueKey{{Key: "stuck", State: "running", Since: since, Again: true}}}
		if diff := cmp.Diff(want, q.Snapshot()); diff != "" {
			t.Errorf("Snapshot (-want +got):\n%s", diff)
		}
		q.Add("ready")
		q.AddAfter("delayed", time.Hour)
		cause := errors.New("out of patience")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
		defer cancel()
		begin := time.Now()
		left, err := q.Drain(ctx)
		slices.Sort(left)
		if diff := cmp.Diff([]string{"delayed", "ready", "stuck"}, left); diff != "" {
			t.Errorf("Drain: left (-want +got):\n%s", diff)
		}
		if !errors.Is(err, cause) || time.Since(begin) != time.Minute {
			t.Errorf("Drain: got %v after %v, want the cause after a minute", err, time.Since(begin))
		}
		q.ShutDown()
	})
}

// TestDoneOfWhatDoesNotRun tests that Done of a key that does not run is a no-op.
func TestDoneOfWhatDoesNotRun(t *testing.T) {
	for _, tc := range []struct {
		name  string
		do    func(q *queue.Queue[string])
		ready []string
		held  []string
	}{
		{"never added", func(q *queue.Queue[string]) { q.Done("a") }, nil, nil},
		{"the empty key", func(q *queue.Queue[string]) { q.Done("") }, nil, nil},
		{"twice", func(q *queue.Queue[string]) {
			q.Add("a")
			q.Get()
			q.Done("a")
			q.Done("a")
		}, nil, nil},
		{"twice, added again while it ran", func(q *queue.Queue[string]) {
			q.Add("a")
			q.Get()
			q.Add("a")
			q.Done("a")
			q.Done("a")
		}, []string{"a"}, nil},
		{"ready", func(q *queue.Queue[string]) {
			q.Add("a")
			q.Done("a")
		}, []string{"a"}, nil},
		{"delayed", func(q *queue.Queue[string]) {
			q.AddAfter("a", time.Hour)
			q.Done("a")
		}, nil, []string{"a"}},
		{"delayed, and then it runs", func(q *queue.Queue[string]) {
			q.AddAfter("a", time.Hour)
			q.Done("a")
			q.Add("a")
			q.Get()
			q.Done("b")
		}, nil, []string{"a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[string]{})
			defer q.ShutDown()
			tc.do(q)
			if diff := cmp.Diff(tc.ready, take(q)); diff != "" {
				t.Errorf("ready (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.held, q.Pending()); diff != "" {
				t.Errorf("Pending (-want +got):\n%s", diff)
			}
		})
	}
}

// The empty string is a key like any other.
func TestEmptyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{Group: func(key string) string { return key }})
		q.Add("")
		q.Add("")
		key, priority, ok := q.GetContext(t.Context())
		if key != "" || priority != 0 || !ok {
			t.Errorf(`GetContext: got (%q, %d, %v), want ("", 0, true)`, key, priority, ok)
		}
		q.AddAfter("", time.Second)
		if diff := cmp.Diff([]string{""}, q.Pending()); diff != "" {
			t.Errorf("Pending (-want +got):\n%s", diff)
		}
		q.Done("")
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{""}, take(q)); diff != "" {
			t.Errorf("after the delay (-want +got):\n%s", diff)
		}
		q.ShutDown()
		if key, shutdown := q.Get(); key != "" || !shutdown {
			t.Errorf(`Get: got (%q, %v), want ("", true)`, key, shutdown)
		}
	})
}

// TestAfterShutDown tests that every method of a stopped queue returns at once, that adds
// are dropped, and that the ready, running and delayed keys stay.
//
// It proves Q8.
func TestAfterShutDown(t *testing.T) {
	for _, stop := range []struct {
		name string
		stop func(q *queue.Queue[string])
	}{
		{"ShutDown", func(q *queue.Queue[string]) { q.ShutDown() }},
		{"ShutDownWithDrain", func(q *queue.Queue[string]) { q.ShutDownWithDrain() }},
		{"Drain", func(q *queue.Queue[string]) { _, _ = q.Drain(context.Background()) }},
	} {
		for _, tc := range []struct {
			name string
			call func(t *testing.T, q *queue.Queue[string])
		}{
			{"Add", func(_ *testing.T, q *queue.Queue[string]) { q.Add("a"); q.Add("late") }},
			{"AddAfter", func(_ *testing.T, q *queue.Queue[string]) { q.AddAfter("a", 1); q.AddAfter("late", 0) }},
			{"AddRateLimited", func(_ *testing.T, q *queue.Queue[string]) { q.AddRateLimited("a"); q.AddRateLimited("late") }},
			{"AddWith", func(_ *testing.T, q *queue.Queue[string]) {
				q.AddWith(controllerkit.AddOptions{Priority: 1}, "a", "late")
				q.AddWith(controllerkit.AddOptions{After: -1, RateLimited: true}, "a", "late")
				q.AddWith(controllerkit.AddOptions{})
			}},
			{"Get", func(t *testing.T, q *queue.Queue[string]) {
				if key, shutdown := q.Get(); key != "" || !shutdown {
					t.Errorf(`Get: got (%q, %v), want ("", true)`, key, shutdown)
				}
			}},
			{"GetWithPriority", func(t *testing.T, q *queue.Queue[string]) {
				if key, _, shutdown := q.GetWithPriority(); key != "" || !shutdown {
					t.Errorf(`GetWithPriority: got (%q, %v), want ("", true)`, key, shutdown)
				}
			}},
			{"GetContext", func(t *testing.T, q *queue.Queue[string]) {
				if key, _, ok := q.GetContext(t.Context()); key != "" || ok {
					t.Errorf(`GetContext: got (%q, %v), want ("", false)`, key, ok)
				}
			}},
			{"Done", func(_ *testing.T, q *queue.Queue[string]) { q.Done("a"); q.Done("late") }},
			{"Forget", func(t *testing.T, q *queue.Queue[string]) {
				q.Forget("a")
				q.Forget("late")
				if got := q.NumRequeues("a"); got != 0 {
					t.Errorf("NumRequeues after Forget: got %d, want 0", got)
				}
			}},
			{"NumRequeues", func(t *testing.T, q *queue.Queue[string]) {
				if got := q.NumRequeues("a"); got != 1 {
					t.Errorf("NumRequeues: got %d, want 1", got)
				}
			}},
			{"Len", func(t *testing.T, q *queue.Queue[string]) {
				if got := q.Len(); got != 0 {
					t.Errorf("Len: got %d, want 0", got)
				}
			}},
			{"Snapshot", func(t *testing.T, q *queue.Queue[string]) {
				if got := q.Snapshot(); !got.ShuttingDown || got.Ready+got.Running != 0 || got.Delayed != 1 {
					t.Errorf("Snapshot: got %+v, want one delayed key", got)
				}
			}},
			{"Pending", func(*testing.T, *queue.Queue[string]) {}}, // looked at below
			{"ShuttingDown", func(t *testing.T, q *queue.Queue[string]) {
				if !q.ShuttingDown() {
					t.Error("ShuttingDown: got false, want true")
				}
			}},
			{"Drain", func(t *testing.T, q *queue.Queue[string]) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				for _, ctx := range []context.Context{t.Context(), ctx} {
					left, err := q.Drain(ctx)
					if diff := cmp.Diff([]string{"a"}, left); diff != "" || err != nil {
						t.Errorf("Drain: error %v, left (-want +got):\n%s", err, diff)
					}
				}
			}},
			{"ShutDown", func(_ *testing.T, q *queue.Queue[string]) { q.ShutDown(); q.ShutDown() }},
			{"ShutDownWithDrain", func(_ *testing.T, q *queue.Queue[string]) { q.ShutDownWithDrain(); q.ShutDownWithDrain() }},
		} {
			t.Run(stop.name+"/"+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := queue.New(queue.Config[string]{})
					q.AddRateLimited("a")
					stop.stop(q)
					time.Sleep(time.Hour) // no delay ends any more
					begin := time.Now()
					tc.call(t, q)
					synctest.Wait()
					if waited := time.Since(begin); waited != 0 {
						t.Errorf("it waited for %v", waited)
					}
					if diff := cmp.Diff([]string{"a"}, q.Pending()); diff != "" {
						t.Errorf("Pending (-want +got):\n%s", diff)
					}
					if got := q.Len(); got != 0 {
						t.Errorf("Len: got %d, want 0", got)
					}
				})
			})
		}
	}
}

var _ workqueue.TypedRateLimiter[string] = &fixedLimiter[string]{}

// TestKeyThatCannotBeCompared tests that an interface key with a value that cannot be
// compared panics in the caller's goroutine, as in a map, and leaves the queue as it was.
func TestKeyThatCannotBeCompared(t *testing.T) {
	bad := []int{1}
	for _, tc := range []struct {
		name string
		call func(q *queue.Queue[any])
	}{
		{"Add", func(q *queue.Queue[any]) { q.Add(bad) }},
		{"AddAfter", func(q *queue.Queue[any]) { q.AddAfter(bad, time.Hour) }},
		{"AddRateLimited", func(q *queue.Queue[any]) { q.AddRateLimited(bad) }},
		{"AddWith", func(q *queue.Queue[any]) { q.AddWith(controllerkit.AddOptions{Priority: 1}, bad) }},
		{"AddWith rate-limited", func(q *queue.Queue[any]) { q.AddWith(controllerkit.AddOptions{RateLimited: true}, bad) }},
		{"Done", func(q *queue.Queue[any]) { q.Done(bad) }},
		{"Forget", func(q *queue.Queue[any]) { q.Forget(bad) }},
		{"NumRequeues", func(q *queue.Queue[any]) { q.NumRequeues(bad) }},
	} {
		for _, limiter := range []workqueue.TypedRateLimiter[any]{nil, &fixedLimiter[any]{}} {
			t.Run(tc.name, func(t *testing.T) {
				q := queue.New(queue.Config[any]{RateLimiter: limiter, Group: func(any) string { return "" }})
				q.AddAfter("held", time.Hour)
				panics(func() { tc.call(q) })
				usable[any](t, q, "good", 1)
				q.ShutDown()
			})
		}
	}
}

// NaN is not equal to itself, so that Done does not find it: such a key runs for
// ever. It does no harm to others, and a drain has its deadline.
func TestKeyThatIsNotEqualToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nan := math.NaN()
		q := queue.New(queue.Config[float64]{RateLimiter: &fixedLimiter[float64]{delay: time.Hour}})
		q.Add(nan)
		q.AddWith(controllerkit.AddOptions{Priority: 1}, 1, 2)
		for _, want := range []float64{1, 2} {
			if key, _ := q.Get(); key != want {
				t.Errorf("Get: got %v, want %v", key, want)
			}
			q.Done(want)
		}
		if key, _ := q.Get(); key == key {
			t.Errorf("Get: got %v, want NaN", key)
		}
		q.Done(nan)
		q.Forget(nan)
		q.AddAfter(nan, time.Second)
		q.AddRateLimited(nan)
		q.Add(3)
		if key, _ := q.Get(); key != 3 {
			t.Errorf("Get: got %v, want 3", key)
		}
		q.Done(3)
		q.Snapshot()
		q.Pending()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, _ = q.Drain(ctx)
		if got := time.Since(begin); got > time.Minute {
			t.Errorf("Drain took %v, want no more than a minute", got)
		}
		q.ShutDown()
		for ended := false; !ended; { // Get still returns ready keys
			_, ended = q.Get()
		}
	})
}

// GetContext needs a context. Without one it may panic; no key is lost by it.
func TestNilContext(t *testing.T) {
	q := queue.New(queue.Config[string]{})
	defer q.ShutDown()
	q.Add("a")
	var none context.Context
	got := ""
	panicked := panics(func() { got, _, _ = q.GetContext(none) })
	if panicked == (got == "a") {
		t.Errorf("panicked: %v, got %q: want one of both", panicked, got)
	}
	if panicked && q.Len() == 1 {
		got, _ = q.Get()
	}
	if got != "a" {
		t.Errorf("got %q, want a", got)
	}
	q.Done("a")
	usable(t, q, "good", 0)
}

// A missing metric is found when the queue is made.
func TestNil(t *testing.T) {
	for _, tc := range []struct {
		name string
		f    func()
		want string
	}{
		{"a metric", func() {
			queue.New(queue.Config[int]{Name: "q", MetricsProvider: provides{newProvider(), "NewDepthMetric"}})
		}, "queue: Config.MetricsProvider: NewDepthMetric returned nil: return a metric that does nothing"},
		{"a metric that is rarely used", func() {
			queue.New(queue.Config[int]{Name: "q", MetricsProvider: provides{newProvider(), "NewRetriesMetric"}})
		}, "queue: Config.MetricsProvider: NewRetriesMetric returned nil: return a metric that does nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != tc.want {
					t.Errorf("got panic %v, want %q", got, tc.want)
				}
			}()
			tc.f()
		})
	}
}
