package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestDrainReady: what is ready when the context ends is worked off by all workers, what
// waits for a delay or fails meanwhile is left, and Run returns as soon as nothing is
// ready.
//
// Proves R4.
func TestDrainReady(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				rec := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
					time.Sleep(time.Second)
					if key == "key04" {
						return reconcile.Result{}, errPlain
					}
					return reconcile.Result{}, nil
				}}
				q.AddAfter("delayed", time.Minute)
				for i := range 6 {
					q.Add(fmt.Sprintf("key%02d", i))
				}
				logs := newLogs()
				r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Workers: workers, DrainReady: true})
				began := time.Now()
				r.stop()
				if got, want := time.Since(began), time.Duration(6/workers)*time.Second; got != want {
					t.Errorf("Run returned after %v, want %v", got, want)
				}
				if got := len(rec.got()); got != 6 {
					t.Errorf("%d calls, want 6: %v", got, rec.got())
				}
				if test, ok := q.(*testQueue); ok {
					if diff := cmp.Diff([]string{"delayed", "key04"}, sorted(test.Pending())); diff != "" {
						t.Errorf("left (-want +got):\n%s", diff)
					}
				} else if got := logs.Find("Stopped controller")[0].Values["left"]; got != 1 {
					t.Errorf("left = %v, want 1: the key that failed", got)
				}
			})
		})
	}
}

// TestDrainReadyLeavesNothing: a worker that finds nothing ready any more does not keep
// another one from the last key, which it has just got.
//
// Proves R4.
func TestDrainReadyLeavesNothing(t *testing.T) {
	for round := range 1000 {
		q := newTestQueue()
		for i := range 40 {
			q.Add(fmt.Sprint(i))
		}
		ctx, cancel := context.WithCancel(newLogs().Context(t.Context()))
		begun, once := make(chan struct{}), sync.Once{}
		c := &controller{Name: "x", Queue: q, Workers: 4, DrainReady: true, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			once.Do(func() { cancel(); close(begun) })
			<-begun
			return reconcile.Result{}, nil
		}}
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if left := q.Pending(); len(left) > 0 {
			t.Fatalf("round %d: %v is left although the grace period is not over", round, left)
		}
	}
}

// TestDrainReadyOfARunningKey: a key that was added while it runs becomes ready when its call ends,
// and is drained, although another worker found no ready key before.
//
// Proves R4.
func TestDrainReadyOfARunningKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}}
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, DrainReady: true, Workers: 3})
		q.Add("a")
		began := time.Now()
		r.stop()
		if diff := cmp.Diff([]string{"a", "a"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if got := time.Since(began); got != 2*time.Second {
			t.Errorf("Run returned after %v, want 2s", got)
		}
	})
}

// TestDrainReadyEnds: GracePeriod bounds it, and the loss of leadership ends it at once;
// what is still ready then is left.
//
// Proves R4.
func TestDrainReadyEnds(t *testing.T) {
	slow := func(ctx context.Context, _ string) (reconcile.Result, error) {
		select {
		case <-time.After(4 * time.Second):
			return reconcile.Result{}, nil
		case <-ctx.Done():
			return reconcile.Result{}, ctx.Err()
		}
	}
	for _, tt := range []struct {
		name  string
		stop  func(cancel, cancelLease context.CancelCauseFunc)
		want  time.Duration // until Run returned
		calls int
	}{
		{
			name: "grace period is over", want: 10 * time.Second, calls: 3,
			stop: func(cancel, _ context.CancelCauseFunc) { cancel(nil) },
		},
		{
			name: "leadership was lost", want: 0, calls: 1,
			stop: func(cancel, _ context.CancelCauseFunc) { cancel(lostError{}) },
		},
		{
			name: "leadership is lost meanwhile", want: 5 * time.Second, calls: 2,
			stop: func(cancel, cancelLease context.CancelCauseFunc) {
				cancel(nil)
				time.Sleep(5 * time.Second)
				cancelLease(lostError{})
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				lease, cancelLease := context.WithCancelCause(t.Context())
				defer cancelLease(nil)
				rec := &recorder{fn: slow}
				for i := range 9 {
					q.Add(fmt.Sprintf("key%02d", i))
				}
				r := start(t, context.WithValue(t.Context(), calls.Validity{}, lease), &controller{
					Name: "x", Queue: q, Reconcile: rec.reconcile, DrainReady: true, GracePeriod: 10 * time.Second,
				})
				began := time.Now()
				tt.stop(r.cancel, cancelLease)
				r.wait()
				if got := time.Since(began); got != tt.want {
					t.Errorf("Run returned after %v, want %v", got, tt.want)
				}
				if got := len(rec.got()); got != tt.calls {
					t.Errorf("%d calls, want %d: %v", got, tt.calls, rec.got())
				}
				if test, ok := q.(*testQueue); ok {
					// The last call was cancelled, so its key is left, too.
					if got := len(test.Pending()); got != 9-tt.calls+1 {
						t.Errorf("%d keys left, want %d", got, 9-tt.calls+1)
					}
				}
			})
		})
	}
}

// TestDrainReadyAgain: a Run that drained can be followed by another on the queue.
func TestDrainReadyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a", "b")
		rec := &recorder{}
		c := &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, DrainReady: true, Workers: 2}
		start(t, t.Context(), c).stop()
		q.Add("c")
		r := start(t, t.Context(), c)
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]string{"a", "b", "c"}, sorted(rec.got())); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TestMaxAttempts: a key is parked after so many counted failures since its last success. Its
// next event runs it once, and a success begins the count anew.
func TestMaxAttempts(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs, metrics := newLogs(), &counts{}
		var works atomic.Bool
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) {
			if works.Load() {
				return reconcile.Result{}, nil
			}
			return reconcile.Result{}, errPlain
		}}
		q.Add("a")
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, MaxAttempts: 3, Metrics: metrics})
		time.Sleep(100 * time.Hour)
		if diff := cmp.Diff([]string{"0 waiting, 1 parked"}, metrics.keyCounts()); diff != "" {
			t.Errorf("parked keys (-want +got):\n%s", diff)
		}
		if got := len(rec.got()); got != 3 {
			t.Errorf("%d calls, want 3", got)
		}
		if got := q.NumRequeues("a"); got != 2 {
			t.Errorf("NumRequeues = %d of a parked key, want 2", got)
		}
		lines := logs.Having("class")
		for i, want := range []any{nil, nil, 3} {
			if got := lines[i].Values["parkedAfter"]; got != want {
				t.Errorf("parkedAfter = %v in line %d, want %v", got, i, want)
			}
		}
		q.Add("a") // an event
		time.Sleep(100 * time.Hour)
		if got := len(rec.got()); got != 4 {
			t.Errorf("%d calls after an event, want 4", got)
		}
		if diff := cmp.Diff([]string{"0 waiting, 1 parked", "0 waiting, 0 parked", "0 waiting, 1 parked"}, metrics.keyCounts()); diff != "" {
			t.Errorf("parked keys after an event (-want +got):\n%s", diff)
		}
		works.Store(true)
		q.Add("a")
		time.Sleep(100 * time.Hour)
		works.Store(false)
		q.Add("a")
		time.Sleep(100 * time.Hour)
		if got := len(rec.got()); got != 8 {
			t.Errorf("%d calls after a success and three failures, want 8", got)
		}
		r.stop()
	})
}

// TestMaxAttemptsOne: with MaxAttempts 1 a key is not retried.
func TestMaxAttemptsOne(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec := &recorder{fn: returning(result{}, errPlain)}
		q.Add("a")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, MaxAttempts: 1})
		time.Sleep(100 * time.Hour)
		if got := len(rec.got()); got != 1 {
			t.Errorf("%d calls, want 1", got)
		}
		r.stop()
	})
}

// TestMaxAttemptsCounts: only what the rate limiter counts uses attempts up.
func TestMaxAttemptsCounts(t *testing.T) {
	for _, tt := range []struct {
		name string
		res  reconcile.Result
		err  error
		want bool // parked
	}{
		{name: "plain", err: errPlain, want: true},
		{name: "not found", err: errNotFound, want: true},
		{name: "conflicts", err: errConflict, want: true}, // after some that are not counted
		{name: "server delay", err: errDelay, want: false},
		{name: "rejected", err: errRejected, want: true},
		{name: "rejected, next to RequeueAfter", res: reconcile.Result{RequeueAfter: time.Second}, err: errRejected, want: false},
		{name: "forbidden", err: errForbidden, want: false},
		{name: "a full quota", err: fmt.Errorf("create: %w", errQuota), want: false},
		{name: "a full quota, and invalid", err: errors.Join(errRejected, errQuota), want: false},
		{name: "stale", err: staleError(true), want: false},
		{name: "next to RequeueAfter", res: reconcile.Result{RequeueAfter: time.Second}, err: errPlain, want: false},
		{name: "requeue", res: reconcile.Result{RequeueAfter: time.Second}, want: false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := &recorder{fn: returning(tt.res, tt.err)}
				r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: rec.reconcile, MaxAttempts: 2})
				time.Sleep(6 * time.Hour)
				before := len(rec.got())
				time.Sleep(6 * time.Hour)
				if parked := len(rec.got()) == before; parked != tt.want {
					t.Errorf("parked = %v after %d calls, want %v", parked, before, tt.want)
				}
				r.stop()
			})
		})
	}
}

// TestClassify: what it returns is classed in place of the error.
func TestClassify(t *testing.T) {
	expired := errors.New("card expired")
	for _, tt := range []struct {
		name     string
		err      error
		classify func(error) error
		want     string
	}{
		{name: "to terminal", err: fmt.Errorf("charge: %w", expired), want: "terminal", classify: func(err error) error {
			if errors.Is(err, expired) {
				return fmt.Errorf("%w: %w", reconcile.ErrTerminal, err)
			}
			return err
		}},
		{name: "as it is", err: errPlain, want: "error", classify: func(err error) error { return err }},
		{name: "to nothing", err: errPlain, want: "success", classify: func(error) error { return nil }},
		{name: "not called on success", want: "success", classify: func(error) error { return errPlain }},
		{name: "panics", err: errPlain, want: "panic", classify: func(error) error { panic("boom") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics, calls := &counts{}, 0
				r := start(t, t.Context(), &controller{
					Name: "x", Queue: newTestQueue("a"), Metrics: metrics, Classify: tt.classify,
					Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
						if calls++; calls > 1 {
							<-ctx.Done()
						}
						return reconcile.Result{}, tt.err
					},
				})
				if got := metrics.results(); len(got) == 0 || got[0] != tt.want {
					t.Errorf("results = %v, want %s first", got, tt.want)
				}
				r.stop()
			})
		})
	}
}

// nilError is an error of a pointer type whose nil is not a nil error.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text } // panics if e is nil

// TestBadErrors: what a Func should not return, or do, ends one call and no more.
func TestBadErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		fn   reconcile.Func[string]
		want string
	}{
		{name: "nil of a pointer type", want: "panic", fn: func(context.Context, string) (reconcile.Result, error) {
			var err *nilError
			return reconcile.Result{}, err
		}},
		{name: "wrapped nil of an API error", want: "panic", fn: func(context.Context, string) (reconcile.Result, error) {
			var err *apierrors.StatusError
			return reconcile.Result{}, fmt.Errorf("step: %w", error(err)) // has a text, but no status
		}},
		{name: "panic with nil", want: "panic", fn: func(context.Context, string) (reconcile.Result, error) { panic(nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics, logs := &counts{}, newLogs()
				r := start(t, logs.Context(t.Context()), &controller{
					Name: "x", Queue: newTestQueue("a", "b"), Metrics: metrics,
					Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
						if key == "b" {
							return reconcile.Result{}, nil
						}
						return tt.fn(ctx, key)
					},
				})
				if got := metrics.results(); len(got) != 2 || got[0] != tt.want || got[1] != "success" {
					t.Errorf("results = %v, want [%s success]", got, tt.want)
				}
				if lines := logs.Having("class"); len(lines) != 2 {
					t.Errorf("%d lines, want 2", len(lines))
				}
				r.stop()
			})
		})
	}
}

func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}

// TestDrainReadyInTheMomentOfTheLoss: a key that the queue gives out in the moment that
// leadership is lost is not started, although ready keys are to be worked off.
//
// Proves R4.
func TestDrainReadyInTheMomentOfTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		q := &cancellingQueue{testQueue: newTestQueue("a"), cancel: func() { cancel(lostError{}) }}
		rec := &recorder{}
		start(t, ctx, &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, DrainReady: true}).wait()
		if got := rec.got(); len(got) != 0 {
			t.Errorf("calls = %v, want none", got)
		}
		if diff := cmp.Diff([]string{"a"}, q.Pending()); diff != "" {
			t.Errorf("pending (-want +got):\n%s", diff)
		}
	})
}

// lateQueue is a queue in which a key becomes ready while GetContext returns without one.
type lateQueue struct{ *testQueue }

func (q lateQueue) GetContext(ctx context.Context) (string, int, bool) {
	key, priority, ok := q.testQueue.GetContext(ctx)
	if !ok {
		q.Add("late")
	}
	return key, priority, ok
}

// TestDrainReadyInTheMomentOfTheStop: a key that becomes ready as the intake ends is
// drained.
func TestDrainReadyInTheMomentOfTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		r := start(t, t.Context(), &controller{Name: "x", Queue: lateQueue{newTestQueue()}, Reconcile: rec.reconcile, DrainReady: true, Workers: 1})
		r.stop()
		if diff := cmp.Diff([]string{"late"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TestDrainReadyWakesAll: a worker that was told of a ready key, which another one
// then took, does not wait for the end of GracePeriod.
func TestDrainReadyWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &boastfulQueue{testQueue: newTestQueue("a", "b")}
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}}
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, DrainReady: true, Workers: 3})
		began := time.Now()
		r.stop()
		if got := time.Since(began); got != time.Second {
			t.Errorf("Run returned after %v, want 1s, when the last call returned", got)
		}
	})
}

// boastfulQueue says once that it has a key when it has none.
type boastfulQueue struct {
	*testQueue
	said atomic.Bool
}

func (q *boastfulQueue) Len() int {
	if n := q.testQueue.Len(); n > 0 || !q.said.CompareAndSwap(false, true) {
		return n
	}
	return 1
}
