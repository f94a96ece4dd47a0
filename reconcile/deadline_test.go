package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// outage is a service that is down for 3s, while the key's events come every 100ms.
func outage(t *testing.T, c *controller, q queueOf) (calls, deadlines int, late time.Duration) {
	const down = 3 * time.Second
	var began, up time.Time
	c.Reconcile = func(context.Context, string) (reconcile.Result, error) {
		if time.Since(began) < down {
			calls++
			return reconcile.Result{}, errPlain
		}
		if up.IsZero() {
			up = time.Now()
		}
		return reconcile.Result{}, nil
	}
	began = time.Now()
	r := start(t, t.Context(), c)
	q.Add("a")
	for range 24 {
		time.Sleep(100 * time.Millisecond)
		q.Add("a")
	}
	time.Sleep(down - time.Since(began) - 1)
	synctest.Wait()
	deadlines = q.NumRequeues("a")
	time.Sleep(time.Hour)
	r.stop()
	if up.IsZero() {
		return calls, deadlines, time.Hour
	}
	return calls, deadlines, up.Sub(began) - down
}

// TestDeadline: events neither lengthen the backoff of a failing key nor use up MaxAttempts.
//
// It proves R11.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 20 {
			q := queue.New(queue.Config[string]{})
			calls, deadlines, late := outage(t, &controller{Name: "x", Queue: q}, q)
			if calls > 24+1+11 || deadlines > 11 || late > 5200*time.Millisecond {
				t.Errorf("%d calls and %d deadlines in an outage of 3s with 24 events, and a success %v after it, want at most 36, 11 and 5.2s", calls, deadlines, late)
			}
			q = queue.New(queue.Config[string]{})
			calls, deadlines, late = outage(t, &controller{Name: "x", Queue: q, MaxAttempts: 5}, q)
			if calls > 24+5 || deadlines != 4 || late != time.Hour {
				t.Errorf("with MaxAttempts 5 there are %d calls and %d retries, and a success after %v; want 29, 4 and none without an event", calls, deadlines, late)
			}
		}
	})
}

// steps is a rate limiter whose n-th delay of a key is 1s<<n, at most 64s. It records its uses.
type steps struct {
	failures int
	used     []time.Time
}

func (s *steps) When(string) time.Duration {
	s.used = append(s.used, time.Now())
	s.failures++
	return time.Second << min(s.failures-1, 6)
}
func (s *steps) Forget(string)          { s.failures = 0 }
func (s *steps) NumRequeues(string) int { return s.failures }

// TestDeadlineModel: with random events, calls that take time, and results, a key runs at each
// event of others and at each deadline, a failure counts only if its call ends at or after the
// deadline, and no key is forgotten.
//
// It proves R11.
func TestDeadlineModel(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for seed := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			limiter := &steps{}
			q := queue.New(queue.Config[string]{RateLimiter: limiter})
			c := &controller{Name: "x", Queue: q}
			// The model: what is due, and when.
			var mu sync.Mutex
			var deadline time.Time // of the last failure that counts; zero without one
			failures, uses := 0, 0
			lastEvent, lastBegin := time.Now(), time.Time{}
			c.Reconcile = func(context.Context, string) (reconcile.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				begin := time.Now()
				event := !lastEvent.Before(lastBegin) // one came since the last call began
				due := !deadline.IsZero() && !begin.Before(deadline)
				if !event && !due {
					t.Errorf("seed %d: a call without an event and before the deadline", seed)
				}
				lastBegin = begin
				took, result := time.Duration(rnd.IntN(4))*700*time.Millisecond, rnd.IntN(8)
				mu.Unlock()
				time.Sleep(took)
				mu.Lock()
				end := time.Now()
				early := end.Before(deadline)
				switch result {
				case 0:
					deadline, failures = time.Time{}, 0
					return reconcile.Result{}, nil
				case 1:
					deadline, failures = time.Time{}, 0
					return reconcile.Result{}, reconcile.ErrTerminal
				}
				if !early {
					failures++
					uses++
					deadline = end.Add(time.Second << min(failures-1, 6))
				}
				return reconcile.Result{}, errPlain
			}
			r := start(t, t.Context(), c)
			defer r.stop()
			q.Add("a")
			for range 60 {
				mu.Lock()
				pause := time.Duration(rnd.IntN(50)) * 130 * time.Millisecond
				if rnd.IntN(8) == 0 {
					pause = 5 * time.Minute
				}
				mu.Unlock()
				time.Sleep(pause)
				mu.Lock()
				lastEvent = time.Now()
				mu.Unlock()
				q.Add("a")
			}
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if deadline.After(lastBegin) && time.Now().After(deadline.Add(time.Minute)) {
				t.Errorf("seed %d: no call since the deadline of %v", seed, deadline)
			}
			if len(limiter.used) != uses {
				t.Errorf("seed %d: the rate limiter was asked %d times, want %d", seed, len(limiter.used), uses)
			}
		})
	}
}

// generation is an update of the object that the key names, to a generation.
func generation(name string, version int, generation int64) controllerkit.Event {
	object := func(version int, generation int64) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("of " + name), ResourceVersion: fmt.Sprint(version), Generation: generation}}
	}
	return controllerkit.Event{Kind: "update", Old: object(version-1, generation-1), Object: object(version, generation)}
}

// TestGeneration: a new generation of the key's object begins its backoff anew, also that of
// rejections and of a parked key, and a new generation of another object does not.
//
// It proves R11.
func TestGeneration(t *testing.T) {
	errRejected := apierrors.NewInvalid(schema.GroupKind{Kind: "Widget"}, "a", nil)
	for name, err := range map[string]error{"an error": errPlain, "rejected": errRejected} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[string]{})
				rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, err }}
				c := &controller{Name: "x", Queue: q, Reconcile: rec.reconcile}
				r := start(t, t.Context(), c)
				source := c.Source("widgets")
				q.Add("a")
				time.Sleep(2 * time.Hour)
				within := func(e controllerkit.Event) int {
					before := len(rec.got())
					source.AddEvent(e, addOptions{}, "a")
					time.Sleep(2 * time.Second)
					return len(rec.got()) - before
				}
				if n := within(event("update")); n > 2 {
					t.Errorf("%d calls after an event, want 1 and at most one deadline", n)
				}
				if n := within(generation("b", 7, 3)); n > 2 {
					t.Errorf("%d calls after a generation of another object, want 1 and at most one deadline", n)
				}
				want := 7 // 5ms, 10ms, ...
				if errors.Is(err, errRejected) {
					want = 2 // 1s to 1.5s
				}
				if n := within(generation("a", 7, 3)); n < want {
					t.Errorf("%d calls after a new generation, want at least %d", n, want)
				}
				r.stop()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, errPlain }}
		c := &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, MaxAttempts: 3}
		r := start(t, t.Context(), c)
		q.Add("a")
		time.Sleep(time.Hour)
		c.Source("widgets").AddEvent(generation("a", 7, 3), addOptions{}, "a")
		time.Sleep(time.Hour)
		if n := len(rec.got()); n != 6 {
			t.Errorf("%d calls of a parked key with a new generation, want 6", n)
		}
		r.stop()
	})
}

// TestServerDelayKeeps: a Retry-After that comes before the deadline of an earlier failure is kept,
// and does not end that deadline.
//
// It proves R11.
func TestServerDelayKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := &steps{failures: 5} // 32s
		q := queue.New(queue.Config[string]{RateLimiter: limiter})
		var calls []time.Duration
		began := time.Now()
		c := &controller{Name: "x", Queue: q}
		c.Reconcile = func(context.Context, string) (reconcile.Result, error) {
			calls = append(calls, time.Since(began))
			switch len(calls) {
			case 1:
				return reconcile.Result{}, errPlain // until 32s
			case 2:
				return reconcile.Result{}, apierrors.NewTooManyRequests("busy", 100) // from 10s
			}
			return reconcile.Result{}, nil
		}
		r := start(t, t.Context(), c)
		q.Add("a")
		time.Sleep(10 * time.Second)
		q.Add("a")
		time.Sleep(time.Hour)
		r.stop()
		if len(calls) != 3 || calls[2] < 110*time.Second || calls[2] > 130*time.Second {
			t.Errorf("calls at %v, want the third 100s to 120s after the second", calls)
		}
	})
}

// TestEvery: an interval is never longer than asked for, and keys spread over a tenth of it.
func TestEvery(t *testing.T) {
	least := time.Minute
	for range 1000 {
		d := reconcile.Every(time.Minute).RequeueAfter
		if least = min(least, d); d > time.Minute || d < 54*time.Second {
			t.Errorf("Every(1m) = %v, want 54s to 1m", d)
		}
	}
	if least > 55*time.Second {
		t.Errorf("the least of 1000 is %v", least)
	}
	for _, d := range []time.Duration{0, -1} {
		if got := reconcile.Every(d); got != (reconcile.Result{}) {
			t.Errorf("Every(%d) = %+v, want no run", d, got)
		}
	}
}
