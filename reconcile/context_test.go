package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/reconcile"
)

// TestCallContext: whenever and however the context of a call is looked at, it behaves as
// one that was there from the start.
func TestCallContext(t *testing.T) {
	const timeout = 30 * time.Second
	stopped := errors.New("signal")
	late := func(t *testing.T, ctx context.Context) {
		if cause := context.Cause(ctx); !errors.Is(ctx.Err(), context.DeadlineExceeded) || !strings.HasPrefix(cause.Error(), "reconcile: timeout of 30s") {
			t.Errorf("Err() = %v with cause %v, want that of the timeout", ctx.Err(), cause)
		}
	}
	for _, tt := range []struct {
		name string
		fn   func(t *testing.T, ctx context.Context)
		stop bool          // Run is stopped after 10s, with a GracePeriod of 5s
		want time.Duration // that the call takes
	}{
		{name: "asked for at once", want: timeout, fn: func(t *testing.T, ctx context.Context) {
			<-ctx.Done()
			late(t, ctx)
		}},
		{name: "asked for when it is over", want: 2 * timeout, fn: func(t *testing.T, ctx context.Context) {
			time.Sleep(2 * timeout)
			late(t, ctx)
		}},
		{name: "a child", want: timeout, fn: func(t *testing.T, ctx context.Context) {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			late(t, child)
		}},
		{name: "a child with a value", want: timeout, fn: func(t *testing.T, ctx context.Context) {
			child := context.WithValue(klog.NewContext(ctx, klog.Background()), lateKey{}, 1)
			<-child.Done()
			late(t, child)
		}},
		{name: "a function after it", want: timeout, fn: func(t *testing.T, ctx context.Context) {
			ran := make(chan struct{})
			defer context.AfterFunc(ctx, func() { close(ran) })()
			<-ran
			late(t, ctx)
		}},
		{name: "asked by many", want: timeout, fn: func(t *testing.T, ctx context.Context) {
			done := make(chan struct{}, 8)
			for range cap(done) {
				go func() { <-ctx.Done(); done <- struct{}{} }()
			}
			for range cap(done) {
				<-done
			}
		}},
		{name: "the end of Run", stop: true, want: 15 * time.Second, fn: func(t *testing.T, ctx context.Context) {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			for _, c := range []context.Context{ctx, child} {
				if c.Err() != context.Canceled || !errors.Is(context.Cause(c), stopped) {
					t.Errorf("Err() = %v with cause %v, want canceled by the signal", c.Err(), context.Cause(c))
				}
			}
		}},
		{name: "the end of Run, looked at after it", stop: true, want: 20 * time.Second, fn: func(t *testing.T, ctx context.Context) {
			time.Sleep(20 * time.Second)
			if ctx.Err() != context.Canceled || !errors.Is(context.Cause(ctx), stopped) {
				t.Errorf("Err() = %v with cause %v, want canceled by the signal", ctx.Err(), context.Cause(ctx))
			}
		}},
		{name: "its deadline", fn: func(t *testing.T, ctx context.Context) {
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != timeout {
				t.Errorf("Deadline() = %v, %v, want in %v", d, ok, timeout)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var took time.Duration
				var seen context.Context
				c := &controller{Name: "x", Queue: newTestQueue("a"), Timeout: timeout, GracePeriod: 5 * time.Second,
					Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
						began := time.Now()
						tt.fn(t, ctx)
						took, seen = time.Since(began), ctx
						return reconcile.Result{}, nil
					}}
				r := start(t, t.Context(), c)
				if tt.stop {
					time.Sleep(10 * time.Second)
				} else {
					time.Sleep(time.Hour)
				}
				r.cancel(stopped)
				r.wait()
				if took != tt.want {
					t.Errorf("the call took %v, want %v", took, tt.want)
				}
				<-seen.Done()
				synctest.Wait() // no timer is left behind, or the bubble would not end
			})
		})
	}
}

type lateKey struct{}

// TestCallContextAfterTheCall: one that nobody looked at during the call is done.
func TestCallContextAfterTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen context.Context
		c := &controller{Name: "x", Queue: newTestQueue("a"), Timeout: time.Minute,
			Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
				seen = ctx
				return reconcile.Result{}, nil
			}}
		r := start(t, t.Context(), c)
		began := time.Now()
		<-seen.Done()
		if seen.Err() != context.Canceled || time.Since(began) > 0 {
			t.Errorf("Err() = %v, %v after the call, want canceled at once", seen.Err(), time.Since(began))
		}
		r.stop()
	})
}

// TestTimeoutUnseen: a call that was too late and failed is classed timeout although
// it never looked at its context.
func TestTimeoutUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &counts{}
		c := &controller{Name: "x", Queue: newTestQueue("a"), Timeout: time.Minute, Metrics: metrics,
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(time.Minute)
				return reconcile.Result{}, errPlain
			}}
		r := start(t, t.Context(), c)
		time.Sleep(2 * time.Minute)
		if got := metrics.results(); len(got) != 1 || got[0] != "timeout" {
			t.Errorf("results = %v, want [timeout]", got)
		}
		r.stop()
	})
}
