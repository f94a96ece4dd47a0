package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile"
)

type lostError struct{}

func (lostError) Error() string        { return "lease lost" }
func (lostError) LeadershipLost() bool { return true }

// untilCancelled is a Func that works until its context ends, and notes when and why.
type untilCancelled struct {
	began time.Time
	took  time.Duration
	cause error
}

func (u *untilCancelled) reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	u.began = time.Now()
	<-ctx.Done()
	u.took, u.cause = time.Since(u.began), context.Cause(ctx)
	return reconcile.Result{}, errPlain
}

// TestNoKeyStartsAfterDone: the running call may finish, the ready keys stay, and
// are reported.
//
// Proves R4.
func TestNoKeyStartsAfterDone(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs := newLogs()
		rec := &recorder{fn: func(ctx context.Context, _ string) (reconcile.Result, error) {
			time.Sleep(10 * time.Second)
			return reconcile.Result{}, ctx.Err()
		}}
		for i := range 13 {
			q.Add(fmt.Sprintf("key%02d", i))
		}
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile})
		r.cancel(errors.New("signal"))
		if r.returned() {
			t.Errorf("Run returned while a call runs")
		}
		q.Add("late")
		r.wait()
		if diff := cmp.Diff([]string{"key00"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		left := 12
		if test, ok := q.(*testQueue); ok {
			left++ // its Add is open
			if got := len(test.Pending()); got != left {
				t.Errorf("%d keys pending, want %d", got, left)
			}
		}
		lines := logs.Find("Stopped controller")
		if len(lines) != 1 || lines[0].Level != 0 || lines[0].Values["left"] != left {
			t.Fatalf("logged %v, want one line at V(0) with left %d", lines, left)
		}
		keys := lines[0].Values["keys"].([]string)
		if len(keys) != 10 || slices.Contains(keys, "key00") {
			t.Errorf("keys logged = %v, want 10 of those left", keys)
		}
		lines = logs.Find("Stopping controller")
		if len(lines) != 1 || lines[0].Values["running"] != 1 || fmt.Sprint(lines[0].Values["cause"]) != "signal" {
			t.Errorf("logged %v, want one line with 1 running and the cause", lines)
		}
	})
}

// TestNoKeyStartsInTheMomentOfTheEnd: keys that a queue gives out in the moment
// that the context ends are put back.
func TestNoKeyStartsInTheMomentOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := &cancellingQueue{testQueue: newTestQueue(), cancel: cancel}
		q.AddWith(addOptions{Priority: 7}, "a")
		rec := &recorder{}
		r := start(t, ctx, &controller{Name: "x", Queue: q, Reconcile: rec.reconcile})
		r.wait()
		if got := rec.got(); len(got) != 0 {
			t.Errorf("calls after the end: %v, want none", got)
		}
		if diff := cmp.Diff([]string{"a"}, q.Pending()); diff != "" {
			t.Errorf("pending (-want +got):\n%s", diff)
		}
		if got := q.keys["a"].priority; got != 7 {
			t.Errorf("priority of the key put back = %d, want 7", got)
		}
	})
}

// cancellingQueue ends the context when it gives out a key.
type cancellingQueue struct {
	*testQueue
	cancel func()
}

func (q *cancellingQueue) GetContext(ctx context.Context) (string, int, bool) {
	key, priority, ok := q.testQueue.GetContext(ctx)
	q.cancel()
	return key, priority, ok
}

// TestGracePeriod: running calls are not disturbed for as long as the grace period,
// and then cancelled with a cause.
//
// Proves R5.
func TestGracePeriod(t *testing.T) {
	tests := []struct {
		name  string
		grace time.Duration
		want  time.Duration
	}{
		{"default", 0, 20 * time.Second},
		{"set", time.Minute, time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				logs := newLogs()
				u := &untilCancelled{}
				q.Add("a")
				r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: u.reconcile, GracePeriod: tt.grace})
				cause := errors.New("signal")
				r.cancel(cause)
				r.wait()
				if u.took != tt.want {
					t.Errorf("call was cancelled after %v, want %v", u.took, tt.want)
				}
				if text := fmt.Sprintf("grace period of %v is over", tt.want); !strings.Contains(fmt.Sprint(u.cause), text) ||
					!errors.Is(u.cause, cause) || !errors.Is(u.cause, context.Canceled) {
					t.Errorf("cause = %v, want %q, the cause of Run's context, and context.Canceled", u.cause, text)
				}
				lines := logs.Find("Cancelled running calls")
				if len(lines) != 1 || lines[0].Level != 0 || !strings.HasPrefix(fmt.Sprint(lines[0].Values["keys"]), "[a (") {
					t.Errorf("logged %v, want one line at V(0) that names a", lines)
				}
			})
		})
	}
}

// TestTimeoutHoldsWhileStopping: the grace period does not lengthen a call.
func TestTimeoutHoldsWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, u := &counts{}, &untilCancelled{}
		r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: u.reconcile, Timeout: 5 * time.Second, Metrics: metrics})
		time.Sleep(time.Second)
		r.stop()
		if u.took != 5*time.Second {
			t.Errorf("call took %v, want the Timeout of 5s", u.took)
		}
		if diff := cmp.Diff([]string{"timeout"}, metrics.results()); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

// TestLeadershipLost: work stops at once, whether the cause of the context or the
// context of the lease says so, and also in the middle of a graceful stop.
//
// Proves R5.
func TestLeadershipLost(t *testing.T) {
	tests := []struct {
		name string
		stop func(run, lease context.CancelCauseFunc)
		want time.Duration
	}{
		{"by the cause", func(run, _ context.CancelCauseFunc) {
			run(fmt.Errorf("leader: %w", lostError{}))
		}, 0},
		{"by the lease alone", func(_, lease context.CancelCauseFunc) {
			lease(lostError{})
		}, 0},
		{"by both", func(run, lease context.CancelCauseFunc) {
			run(nil)
			lease(lostError{})
		}, 0},
		{"while draining", func(run, lease context.CancelCauseFunc) {
			run(errors.New("signal"))
			time.Sleep(7 * time.Second)
			lease(lostError{})
		}, 7 * time.Second},
		{"not lost", func(run, _ context.CancelCauseFunc) {
			run(notLostError{})
		}, 20 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				lease, endLease := context.WithCancelCause(context.Background())
				defer endLease(nil)
				u, logs := &untilCancelled{}, newLogs()
				rec := &recorder{fn: u.reconcile}
				q.Add("a")
				q.Add("b")
				ctx := context.WithValue(logs.Context(t.Context()), calls.Validity{}, lease)
				r := start(t, ctx, &controller{Name: "x", Queue: q, Reconcile: rec.reconcile})
				tt.stop(r.cancel, endLease)
				r.wait()
				if u.took != tt.want {
					t.Errorf("call was cancelled after %v, want %v", u.took, tt.want)
				}
				if diff := cmp.Diff([]string{"a"}, rec.got()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				var lost lostError
				if isLost := errors.As(u.cause, &lost); isLost != (tt.name != "not lost") || !errors.Is(u.cause, context.Canceled) {
					t.Errorf("cause = %v, want the error of the lost lease and context.Canceled", u.cause)
				}
			})
		})
	}
}

// TestLeadershipLostIdle: the end of the lease alone also ends a Run without work.
//
// Proves R4.
func TestLeadershipLostIdle(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		lease, endLease := context.WithCancelCause(context.Background())
		defer endLease(nil)
		r := start(t, context.WithValue(t.Context(), calls.Validity{}, lease), &controller{Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile})
		endLease(lostError{})
		r.wait()
	})
}

type notLostError struct{}

func (notLostError) Error() string        { return "stepping down" }
func (notLostError) LeadershipLost() bool { return false }

// TestCancelledByStop is the row cancelled of the table: whatever error the call
// returns, the key is there for the next Run, and nothing is counted against it.
func TestCancelledByStop(t *testing.T) {
	tests := []struct {
		name string
		fn   func() (reconcile.Result, error)
		want string
	}{
		{"error", func() (reconcile.Result, error) { return reconcile.Result{}, errPlain }, "cancelled"},
		{"with RequeueAfter", func() (reconcile.Result, error) { return reconcile.Result{RequeueAfter: time.Hour}, errPlain }, "cancelled"},
		{"conflict", func() (reconcile.Result, error) { return reconcile.Result{}, errConflict }, "cancelled"},
		{"terminal", func() (reconcile.Result, error) { return reconcile.Result{}, errInvalid }, "cancelled"},
		{"panic", func() (reconcile.Result, error) { panic("boom") }, "panic"},
		{"success", func() (reconcile.Result, error) { return reconcile.Result{}, nil }, "success"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				metrics, logs := &counts{}, newLogs()
				q.Add("a")
				c := &controller{Name: "x", Queue: q, Metrics: metrics, Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
					<-ctx.Done()
					return tt.fn()
				}}
				r := start(t, logs.Context(t.Context()), c)
				r.stop()
				if diff := cmp.Diff([]string{tt.want}, metrics.results()); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				want := map[string]any{"cancelled": 1, "panic": 1, "success": 0}[tt.want]
				if lines := logs.Find("Stopped controller"); len(lines) != 1 || lines[0].Values["left"] != want {
					t.Errorf("logged %v, want %d key left", lines, want)
				}
				if tt.want != "cancelled" {
					return
				}
				if lines := logs.Having("class"); len(lines) != 1 || lines[0].Level != 4 {
					t.Errorf("logged %v, want one line at V(4)", lines)
				}
				if test, ok := q.(*testQueue); ok {
					got := slices.DeleteFunc(test.take(), func(c call) bool { return c.Op == "Done" })
					// The first Add is the one of this test.
					if diff := cmp.Diff([]call{{Op: "Add", Key: "a"}, {Op: "Add", Key: "a"}}, got); diff != "" {
						t.Errorf("queue calls (-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

// TestFailureWhileStopping: a call that fails in the grace period is treated by
// the table as ever, and its key is among those left.
func TestFailureWhileStopping(t *testing.T) {
	for _, err := range []error{errPlain, errConflict, errDelay, errStale} {
		bothQueues(t, func(t *testing.T, q queueOf) {
			logs := newLogs()
			q.Add("a")
			r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(time.Second)
				return reconcile.Result{}, err
			}})
			r.stop()
			lines := logs.Find("Stopped controller")
			if len(lines) != 1 || fmt.Sprint(lines[0].Values["keys"]) != "[a]" {
				t.Errorf("after %q logged %v, want a left", err, lines)
			}
		})
	}
}

// TestGatedKeysAreLeft: a key that waits for its gate is in no queue, and must
// not be forgotten for that. A wake after the stop changes nothing.
//
// Proves R6.
func TestGatedKeysAreLeft(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		g, logs, rec := newGate("a"), newLogs(), &recorder{}
		q.Add("a")
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Gate: g})
		r.stop()
		lines := logs.Find("Stopped controller")
		if len(lines) != 1 || fmt.Sprint(lines[0].Values["keys"]) != "[a]" {
			t.Errorf("logged %v, want a left", lines)
		}
		test, ok := q.(*testQueue)
		if !ok {
			return
		}
		if diff := cmp.Diff([]string{"a"}, test.Pending()); diff != "" {
			t.Errorf("pending (-want +got):\n%s", diff)
		}
		test.take()
		g.set("a", false)
		if got := test.take(); len(got) != 0 {
			t.Errorf("a wake after the stop did %v, want nothing", got)
		}
	})
}

// TestCallThatIgnoresItsContext: Run waits for it, and says which it is.
func TestCallThatIgnoresItsContext(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs := newLogs()
		q.Add("a")
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, GracePeriod: time.Second, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Hour)
			return reconcile.Result{}, nil
		}})
		began := time.Now()
		r.stop()
		if took := time.Since(began); took != time.Hour {
			t.Errorf("Run returned %v after the stop, want 1h", took)
		}
		for message, since := range map[string]string{
			"Cancelled running calls":                               "1s",
			"Waiting for calls that ignore their cancelled context": "6s",
		} {
			lines := logs.Find(message)
			if len(lines) != 1 || lines[0].Level != 0 || fmt.Sprint(lines[0].Values["keys"]) != "[a ("+since+")]" {
				t.Errorf("logged %v, want one line %q with a (%s)", lines, message, since)
			}
		}
	})
}

// TestRunAgain: with GetContext the next Run goes on where the last one stopped.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, metrics := newTestQueue("a", "b"), &counts{}
		rec := &recorder{fn: func(ctx context.Context, _ string) (reconcile.Result, error) {
			select {
			case <-time.After(time.Minute):
				return reconcile.Result{RequeueAfter: time.Hour}, nil
			case <-ctx.Done():
				return reconcile.Result{}, ctx.Err()
			}
		}}
		c := &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Metrics: metrics}
		for range 2 {
			r := start(t, t.Context(), c)
			r.stop() // a is cancelled, b is not begun
			if diff := cmp.Diff([]string{"a", "b"}, q.Pending()); diff != "" {
				t.Fatalf("pending between runs (-want +got):\n%s", diff)
			}
		}
		r := start(t, t.Context(), c)
		time.Sleep(3 * time.Minute)
		r.stop() // both wait for their hour
		if q.ShuttingDown() {
			t.Errorf("Run shut down a queue that it can use again")
		}
		r = start(t, t.Context(), c)
		time.Sleep(time.Hour)
		r.stop()
		// Which of the two is taken first after a stop is the queue's business.
		got := map[string]int{}
		for _, key := range rec.got() {
			got[key]++
		}
		if len(got) != 2 || got["a"] < 2 || got["b"] < 2 {
			t.Errorf("calls by key = %v, want both keys called by several runs", got)
		}
		results := map[string]int{}
		for _, result := range metrics.results() {
			results[result]++
		}
		if results["cancelled"] != 2 || results["requeue"] < 4 {
			t.Errorf("results = %v, want 2 cancelled, 4 requeue", results)
		}
	})
}

func TestRunAgainWithClientGoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newClientGoQueue()
		c := &controller{Name: "x", Queue: q, Reconcile: returning(reconcile.Result{}, nil)}
		start(t, t.Context(), c).stop()
		if !q.ShuttingDown() {
			t.Errorf("queue is open after Run, want it shut down")
		}
		if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Queue is shut down already") {
			t.Errorf("second Run() = %v, want an error about the queue", err)
		}
	})
}

func TestConcurrentRun(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec := &recorder{}
		c := &controller{Name: "x", Queue: q, Reconcile: rec.reconcile}
		r := start(t, t.Context(), c)
		if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `controller "x": Run is already running`) {
			t.Errorf("second Run() = %v, want an error", err)
		}
		q.Add("a")
		synctest.Wait()
		if diff := cmp.Diff([]string{"a"}, rec.got()); diff != "" {
			t.Errorf("calls of the first Run (-want +got):\n%s", diff)
		}
		r.stop()
	})
}

// TestQueueShutDownByAnother: its keys are worked off, then Run says that it
// cannot go on.
func TestQueueShutDownByAnother(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}}
		q.Add("a")
		q.Add("b")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile})
		q.ShutDown()
		if err := <-r.err; err == nil || !strings.Contains(err.Error(), "Queue was shut down before the context was done") {
			t.Errorf("Run() = %v, want an error about the queue", err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		r.cancel(nil)
	})
}

// A call that ends its worker stops Run with an error that has the key and the cause, also if
// there are other workers. Running calls end in the grace period, and no call starts.
func TestGoexit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		workers int
		calls   []string
		inHook  bool
	}{
		{name: "one worker", workers: 1, calls: []string{"bad"}},
		{name: "two workers", workers: 2, calls: []string{"slow", "bad"}},
		{name: "hook", workers: 1, inHook: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				began := time.Now()
				rec := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
					if key == "bad" {
						time.Sleep(time.Second)
						runtime.Goexit()
					}
					time.Sleep(10 * time.Second)
					return reconcile.Result{}, nil
				}}
				c := &controller{Name: "x", Queue: q, Workers: tt.workers, GracePeriod: time.Minute, Reconcile: rec.reconcile}
				if tt.inHook {
					c.Hook = func(context.Context, string) (context.Context, func(string, error)) {
						runtime.Goexit()
						return nil, nil
					}
				}
				if tt.workers > 1 {
					q.Add("slow")
				}
				r := start(t, t.Context(), c)
				q.Add("bad")
				synctest.Wait()
				q.Add("late")
				err := <-r.err
				for _, want := range []string{`reconcile: controller "x"`, "key bad", "runtime.Goexit"} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("Run() = %v, want an error with %q", err, want)
					}
				}
				if diff := cmp.Diff(tt.calls, rec.got()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("Run returned after %v", took)
				}
				if p, ok := q.(interface{ Pending() []string }); ok && !slices.Contains(p.Pending(), "bad") {
					t.Errorf("the queue has %q, want also the key of the call", p.Pending())
				}
				r.cancel(nil)
			})
		})
	}
}
