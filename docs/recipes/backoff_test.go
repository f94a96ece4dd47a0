package recipes_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// slower makes a failing key wait for at least 1s, then at least 2s and so on, up to 10m, and lets about ten
// failed keys a second run.
func slower(op *operator.Operator, c *operator.Controller) {
	c.Loop.Queue = queue.New(queue.Config[types.NamespacedName]{
		RateLimiter: queue.MaxOf(
			queue.Exponential[types.NamespacedName](2*time.Second, 10*time.Minute), // the first: 1s to 2s
			queue.TokenBucket[types.NamespacedName](10, 10, time.Hour),             // of all keys together
		),
		Name:            c.Loop.Name,                                                    // of its metrics
		Group:           func(key types.NamespacedName) string { return key.Namespace }, // namespaces take turns
		MetricsProvider: op.Metrics,
	})
}

// TestBackoff: the delays of a failing key begin at 1s to 2s and end at 5m to 10m, and of 1000 keys that fail at
// once at most 10 a second run after the first seconds.
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
		if first, last := delays[0], delays[19]; first < time.Second || first > 2*time.Second || last < 5*time.Minute || last > 10*time.Minute {
			t.Errorf("delays %v, want them from 1s to 2s up to 5m to 10m", delays)
		}
		begin, ran := time.Now(), map[int]int{} // by second
		for i := range 1000 {
			c.Loop.Queue.AddRateLimited(types.NamespacedName{Namespace: "a", Name: strconv.Itoa(i)})
		}
		for range 1000 {
			key, _ := c.Loop.Queue.Get()
			ran[int(time.Since(begin)/time.Second)]++
			c.Loop.Queue.Done(key)
		}
		for second, n := range ran {
			if second == 0 || second > 2 && n > 11 { // a token's delay has a random part
				t.Errorf("%d failed keys ran in second %d", n, second)
			}
		}
		c.Loop.Queue.ShutDown()
	})
}
