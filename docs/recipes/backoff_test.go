package recipes_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// slower lets a failing key wait for 1s, then twice as long each time, up to 10m.
func slower(op *operator.Operator, c *operator.Controller) {
	c.Loop.Queue = queue.New(queue.Config[types.NamespacedName]{
		RateLimiter:     queue.Exponential[types.NamespacedName](time.Second, 10*time.Minute),
		Name:            c.Loop.Name,                                                    // of its metrics
		Group:           func(key types.NamespacedName) string { return key.Namespace }, // namespaces take turns
		MetricsProvider: op.Metrics,
	})
}

// TestBackoff: the delays of a failing key begin at about 1s and end at about 10m.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := operator.New(&rest.Config{Host: "http://127.0.0.1:1"}, operator.Options{Name: "backoff"})
		if err != nil {
			t.Fatal(err)
		}
		c := op.Controller("widgets", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})
		slower(op, c)
		var delays []time.Duration
		for range 20 {
			begin := time.Now()
			c.Loop.Queue.AddRateLimited(types.NamespacedName{Namespace: "a", Name: "b"})
			key, _ := c.Loop.Queue.Get()
			delays = append(delays, time.Since(begin))
			c.Loop.Queue.Done(key)
		}
		if first, last := delays[0], delays[19]; first < time.Second/2 || first > 2*time.Second || last < 5*time.Minute || last > 10*time.Minute {
			t.Errorf("delays %v, want them from about 1s to at most 10m", delays)
		}
		c.Loop.Queue.ShutDown()
	})
}
