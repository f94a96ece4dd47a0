package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// work runs workers until the queue is shut down and empty; each key takes d.
func work(wg *sync.WaitGroup, q *queue.Queue[string], workers int, d time.Duration) {
	for range workers {
		wg.Go(func() {
			for {
				key, shutdown := q.Get()
				if shutdown {
					return
				}
				time.Sleep(d)
				q.Done(key)
			}
		})
	}
}

func TestShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := tester{t, queue.New(queue.Config[string]{})}
		q.Add("running")
		q.take("running")
		q.Add("ready")
		q.AddAfter("delayed", time.Second)
		q.ShutDown()
		q.ShutDown()
		if !q.ShuttingDown() {
			t.Error("ShuttingDown: got false")
		}

		q.Add("new")
		q.AddWith(controllerkit.AddOptions{Priority: 1}, "new")
		q.AddAfter("new", time.Second)
		q.AddRateLimited("new")
		time.Sleep(time.Minute)
		if got, want := len(q.Pending()), 3; got != want {
			t.Errorf("keys after adds to a stopped queue: got %v, want %d", q.Pending(), want)
		}
		q.run("ready")
		if key, shutdown := q.Get(); !shutdown {
			t.Errorf("Get of a stopped queue without ready keys: got %q, want shutdown", key)
		}
		q.Done("running")
		if diff := cmp.Diff([]string{"delayed"}, q.Pending()); diff != "" {
			t.Errorf("Pending (-want +got):\n%s", diff)
		}
	})
}

// A key that was added again before the queue stopped runs again, as in client-go.
func TestShutDownRunsAgainWhatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := tester{t, queue.New(queue.Config[string]{})}
		q.Add("a")
		q.take("a")
		q.Add("a")
		q.ShutDown()
		q.Done("a")
		q.run("a")
		if left := q.Pending(); len(left) != 0 {
			t.Errorf("left: got %v, want none", left)
		}
	})
}

func TestShutDownWithDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			q.Add(key)
		}
		q.AddAfter("later", time.Hour)
		var workers, drains sync.WaitGroup
		work(&workers, q, 2, time.Second)
		synctest.Wait()
		start := time.Now()
		for range 5 {
			drains.Go(q.ShutDownWithDrain)
		}
		drains.Wait()
		if got, want := time.Since(start), 3*time.Second; got != want {
			t.Errorf("5 keys of 1 s with 2 workers: the drains took %v, want %v", got, want)
		}
		workers.Wait()
		if diff := cmp.Diff([]string{"later"}, q.Pending()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		q.ShutDownWithDrain() // returns at once
	})
}

func TestShutDownEndsTheDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		q.Add("a") // and no worker
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(q.ShutDownWithDrain)
			wg.Go(func() {
				left, err := q.Drain(t.Context())
				if !errors.Is(err, queue.ErrShutDown) || !slices.Equal(left, []string{"a"}) {
					t.Errorf("Drain ended by ShutDown: got %v, %v, want [a], ErrShutDown", left, err)
				}
			})
		}
		synctest.Wait()
		for range 3 {
			wg.Go(q.ShutDown)
		}
		wg.Wait()

		// A drain that starts later waits again.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain after ShutDown: got %v, want it to wait for its deadline", err)
		}
	})
}

// TestDrain tests that Drain returns if no key is ready or running, its context is done, or
// ShutDown is called, with each unfinished key once.
func TestDrain(t *testing.T) {
	errTooLate := errors.New("grace period is over")
	for _, tc := range []struct {
		name     string
		setUp    func(q tester)
		workers  int
		each     time.Duration
		deadline time.Duration // 0 means none
		done     bool          // the context is done from the start
		want     []string
		wantErr  error
		wantTook time.Duration
	}{
		{
			name:  "empty",
			setUp: func(tester) {},
		},
		{
			name:  "empty, and the context is done",
			setUp: func(tester) {},
			done:  true,
		},
		{
			name: "delayed keys are not waited for",
			setUp: func(q tester) {
				q.AddAfter("a", time.Second)
				q.AddRateLimited("b")
			},
			want: []string{"a", "b"},
		},
		{
			name: "ready keys are worked off",
			setUp: func(q tester) {
				q.AddWith(controllerkit.AddOptions{Priority: -5}, "a", "b")
				q.Add("c")
				q.AddAfter("d", time.Minute)
			},
			workers:  1,
			each:     time.Second,
			deadline: time.Minute,
			want:     []string{"d"},
			wantTook: 3 * time.Second,
		},
		{
			name: "the deadline passes: ready, running and delayed keys are left, each once",
			setUp: func(q tester) {
				for _, key := range []string{"a", "b", "c", "d"} {
					q.Add(key)
				}
				q.AddAfter("e", time.Second)
			},
			workers:  1,
			each:     2 * time.Second,
			deadline: 3 * time.Second,
			want:     []string{"b", "c", "d", "e"}, // b runs
			wantErr:  errTooLate,
			wantTook: 3 * time.Second,
		},
		{
			name: "a running key that was added again is left once",
			setUp: func(q tester) {
				q.Add("a")
				q.take("a")
				q.Add("a")
				q.AddAfter("a", time.Second)
			},
			deadline: time.Second,
			want:     []string{"a"},
			wantErr:  errTooLate,
			wantTook: time.Second,
		},
		{
			name:    "the context is done at once",
			setUp:   func(q tester) { q.Add("a") },
			done:    true,
			want:    []string{"a"},
			wantErr: errTooLate,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[string]{})
				tc.setUp(tester{t, q})
				var wg sync.WaitGroup
				work(&wg, q, tc.workers, tc.each)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tc.done {
					cancel(errTooLate)
				}
				if tc.deadline > 0 {
					time.AfterFunc(tc.deadline, func() { cancel(errTooLate) })
				}
				start := time.Now()
				left, err := q.Drain(ctx)
				took := time.Since(start)
				slices.Sort(left)
				if diff := cmp.Diff(tc.want, left); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
				if !errors.Is(err, tc.wantErr) {
					t.Errorf("error: got %v, want %v", err, tc.wantErr)
				}
				if took != tc.wantTook {
					t.Errorf("took %v, want %v", took, tc.wantTook)
				}
				wg.Wait() // the workers end without ShutDown
			})
		})
	}
}

// TestDrainReportsRetries tests that a key that a worker retries during a drain counts as
// unfinished.
func TestDrainReportsRetries(t *testing.T) {
	for name, again := range map[string]func(q *queue.Queue[string]){
		"Add":            func(q *queue.Queue[string]) { q.Add("a") },
		"AddAfter":       func(q *queue.Queue[string]) { q.AddAfter("a", time.Millisecond) },
		"AddRateLimited": func(q *queue.Queue[string]) { q.AddRateLimited("a") },
		"AddWith":        func(q *queue.Queue[string]) { q.AddWith(controllerkit.AddOptions{Priority: 1}, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[string]{})
				q.Add("a")
				q.Get()
				var left []string
				var err error
				var wg sync.WaitGroup
				wg.Go(func() { left, err = q.Drain(t.Context()) })
				synctest.Wait()
				again(q)
				time.Sleep(time.Second)
				q.Done("a")
				wg.Wait()
				if err != nil || !slices.Equal(left, []string{"a"}) {
					t.Errorf("got %v, %v, want [a] without an error", left, err)
				}
				if key, shutdown := q.Get(); !shutdown {
					t.Errorf("%q was handed out: it is added after the queue stopped", key)
				}
			})
		})
	}
}

// TestManyDrainAndShutDown tests that Drain returns if no key is ready or running, its
// context is done, or ShutDown is called.
func TestManyDrainAndShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			q := queue.New(queue.Config[string]{})
			var wg sync.WaitGroup
			work(&wg, q, 3, time.Millisecond)
			for range 20 {
				wg.Go(func() {
					for _, key := range []string{"a", "b", "c", "d"} {
						q.Add(key)
						q.AddAfter(key, time.Millisecond)
					}
				})
			}
			for i := range 5 {
				wg.Go(func() { _, _ = q.Drain(t.Context()) })
				wg.Go(q.ShutDownWithDrain)
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
					defer cancel()
					_, _ = q.Drain(ctx)
				})
				wg.Go(q.ShutDown)
			}
			wg.Wait() // a call that never returns would be a deadlock in the bubble
		}
	})
}

// TestClear: the gauge of ready keys and the memory of groups and failures follow, and a delay
// does not end later.
func TestClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider()
		q := queue.New(queue.Config[string]{Name: "x", MetricsProvider: p, Group: namespace})
		for i := range 100 {
			q.Add(fmt.Sprintf("g%d/ready", i))
			q.AddAfter(fmt.Sprintf("g%d/delayed", i), time.Minute)
		}
		q.AddRateLimited("g0/fails")
		running, _ := q.Get()
		if got := q.Clear(); len(got) != 200 {
			t.Errorf("Clear has returned %d keys, want 200", len(got))
		}
		if got := p.depth.get(); got != 0 {
			t.Errorf("the depth is %v, want 0", got)
		}
		if got := q.NumRequeues("g0/fails"); got != 1 {
			t.Errorf("%d failures, want 1: Forget clears them", got)
		}
		time.Sleep(time.Hour)
		if s := q.Snapshot(); s.Ready != 0 || s.Delayed != 0 || s.Running != 1 {
			t.Errorf("after an hour: %+v, want one running key", s)
		}
		q.Done(running)
		if got := q.Pending(); len(got) != 0 {
			t.Errorf("Pending() = %q, want none", got)
		}
		usable(t, q, "g1/ready", 0)
	})
}

// TestClearEndsADrain: a drain that waits for ready keys ends if they are removed.
func TestClearEndsADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		q.Add("a")
		ended := make(chan struct{})
		go func() { defer close(ended); q.ShutDownWithDrain() }()
		synctest.Wait()
		q.Clear()
		<-ended
	})
}
