package recipes_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A limited service may get so many requests in a second.
type limited struct {
	limiter *rate.Limiter // rate.NewLimiter(10, 1): 10 in a second. A larger burst comes on top
}

// maxWait is the time for which a call keeps its worker.
const maxWait = 2 * time.Second

// wait waits for one request. If that takes longer than maxWait, it returns after which time to run the key again.
func (s *limited) wait(ctx context.Context) (later time.Duration, err error) {
	reservation := s.limiter.Reserve()
	delay := min(reservation.Delay(), time.Hour) // with a limit of 0, it is 292 years
	switch {
	case delay == 0:
		return 0, nil
	case delay > maxWait:
		reservation.Cancel()
		return delay + rand.N(delay), nil // not all keys at once
	}
	select {
	case <-time.After(delay):
		return 0, nil
	case <-ctx.Done():
		reservation.Cancel()
		return 0, context.Cause(ctx)
	}
}

type records struct {
	service *limited
	stored  func(key types.NamespacedName) bool
	send    func(ctx context.Context, key types.NamespacedName) error
}

func (r *records) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	if r.stored(key) {
		return reconcile.Result{}, nil // no request, no wait
	}
	if later, err := r.service.wait(ctx); err != nil || later > 0 {
		return reconcile.Result{RequeueAfter: later}, err
	}
	return reconcile.Result{}, r.send(ctx, key)
}

// TestRateLimit: the service gets each key once and no request early, and a key without a request runs although
// many others wait. The stop ends a wait.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 100
		sent := make(chan time.Time, 2*keys)
		seen := make(chan time.Duration, 10) // of the key that is stored
		begin := time.Now()
		r := &records{
			service: &limited{limiter: rate.NewLimiter(1, 1)},
			stored: func(key types.NamespacedName) bool {
				if key.Name == "stored" {
					seen <- time.Since(begin)
				}
				return key.Name == "stored"
			},
			send: func(context.Context, types.NamespacedName) error {
				sent <- time.Now()
				return nil
			},
		}
		c := &reconcile.Controller[types.NamespacedName]{
			Name: "records", Queue: queue.New(queue.Config[types.NamespacedName]{Name: "records"}), Workers: 4, Reconcile: r.reconcile,
		}
		for i := range keys {
			c.Queue.Add(types.NamespacedName{Name: fmt.Sprint(i)})
		}
		c.Queue.Add(types.NamespacedName{Name: "stored"})
		stop := run(t, t.Context(), c.Run, func() {})
		var times []time.Time
		for range keys {
			times = append(times, <-sent)
		}
		for i := range times[1:] {
			if d := times[i+1].Sub(times[i]); d < 999*time.Millisecond {
				t.Errorf("request %d came %v after the one before, want a second", i+1, d)
			}
		}
		if d := <-seen; d > maxWait {
			t.Errorf("the key without a request ran after %v, want at most %v", d, maxWait)
		}
		if took := time.Since(begin); took > 4*keys*time.Second {
			t.Errorf("all requests took %v, want about %ds", took, keys)
		}
		c.Queue.Add(types.NamespacedName{Name: "last"})
		synctest.Wait()
		stop() // while it waits, or after its request
		if len(sent) > 1 {
			t.Errorf("%d more requests, want at most one", len(sent))
		}
	})
}

// TestRateLimitContext: the end of the context ends the wait, and returns its request to the others.
func TestRateLimitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &limited{limiter: rate.NewLimiter(1, 1)}
		if later, err := s.wait(t.Context()); later != 0 || err != nil {
			t.Fatalf("wait() = %v, %v", later, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begin := time.Now()
		if _, err := s.wait(ctx); err == nil || time.Since(begin) > time.Millisecond {
			t.Errorf("wait() = %v after %v, want the cause of the context after 1ms", err, time.Since(begin))
		}
		if delay := s.limiter.Reserve().Delay(); delay > time.Second {
			t.Errorf("the next request waits for %v, want at most 1s", delay)
		}
	})
}
