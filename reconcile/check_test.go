package reconcile_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/reconcile"
)

// TestCheck: Check fails if calls run and none has ended for StallTimeout, and only then.
func TestCheck(t *testing.T) {
	stuck := func(c *controller) {
		c.Reconcile = func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Value(releaseKey{}).(chan struct{})
			return reconcile.Result{}, nil
		}
	}
	for _, tt := range []struct {
		name      string
		configure func(*controller)
		keys      []string
		healthy   time.Duration // Check is nil for this time
		want      string        // and is an error with this text right after it; "" means never
	}{
		{name: "idle", configure: func(*controller) {}, healthy: time.Hour},
		{name: "one call", configure: stuck, keys: []string{"a"}, healthy: 5 * time.Minute, want: `reconcile: controller "x": no call has ended for 5m0s: 1 running: ["a (5m0s)"], 0 keys waiting`},
		{name: "keys wait", configure: stuck, keys: []string{"a", "b\nc", "d"}, healthy: 5 * time.Minute, want: "1 running: [\"a (5m0s)\"], 2 keys waiting"},
		{name: "its own time", configure: func(c *controller) { stuck(c); c.StallTimeout = time.Minute }, keys: []string{"a"}, healthy: time.Minute, want: "for 1m0s"},
		{name: "a long Timeout", configure: func(c *controller) { stuck(c); c.Timeout = 10 * time.Minute }, keys: []string{"a"}, healthy: 20 * time.Minute, want: "for 20m0s"},
		{name: "the longest Timeout", configure: func(c *controller) { stuck(c); c.Timeout = math.MaxInt64 }, keys: []string{"a"}, healthy: time.Hour},
		{name: "some workers are stuck", configure: func(c *controller) {
			stuck(c)
			c.Workers = 2
			next := c.Reconcile
			c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
				if key == "fine" {
					return reconcile.Result{RequeueAfter: time.Minute}, nil
				}
				return next(ctx, key)
			}
		}, keys: []string{"a", "fine"}, healthy: time.Hour},
		{name: "slow calls", configure: func(c *controller) {
			c.Reconcile = func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(4 * time.Minute)
				return reconcile.Result{RequeueAfter: time.Minute}, nil
			}
		}, keys: []string{"a"}, healthy: time.Hour},
		{name: "rare calls", configure: func(c *controller) {
			c.Reconcile = func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(time.Minute)
				return reconcile.Result{RequeueAfter: 10 * time.Minute}, nil
			}
		}, keys: []string{"a"}, healthy: time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &controller{Name: "x", Queue: newTestQueue(tt.keys...), Reconcile: (&recorder{}).reconcile}
				tt.configure(c)
				if err := c.Check(nil); err != nil {
					t.Errorf("Check() before Run = %v", err)
				}
				release := make(chan struct{})
				r := start(t, context.WithValue(t.Context(), releaseKey{}, release), c)
				for began := time.Now(); time.Since(began) < tt.healthy; time.Sleep(time.Second) {
					if err := c.Check(nil); err != nil {
						t.Fatalf("Check() after %v = %v", time.Since(began), err)
					}
				}
				err := c.Check(nil)
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Check() = %v, want %q", err, tt.want)
				}
				close(release)
				synctest.Wait()
				if err := c.Check(nil); err != nil {
					t.Errorf("Check() after the calls ended = %v", err)
				}
				r.stop()
				if err := c.Check(nil); err != nil {
					t.Errorf("Check() after Run = %v", err)
				}
			})
		})
	}
}

type releaseKey struct{}
