package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/reconcile"
)

// The benchmarks hand one key at a time to a worker and wait for it, so each
// figure holds two switches of goroutine and the queue. ByHand is the worker
// loop that controllers write themselves; what the others add to it is the
// overhead of this package.

type name = types.NamespacedName

// keys take turns. They are so many that the guard delays none of them.
var keys = func() []name {
	keys := make([]name, 1<<18)
	for n := range keys {
		keys[n] = name{Namespace: "default", Name: fmt.Sprint("settings", n)}
	}
	return keys
}()

func newBenchQueue() workqueue.TypedRateLimitingInterface[name] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[name](time.Millisecond, time.Second))
}

func BenchmarkByHand(b *testing.B) {
	b.ReportAllocs()
	queue, done, stopped := newBenchQueue(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			key, shutdown := queue.Get()
			if shutdown {
				return
			}
			queue.Forget(key)
			queue.Done(key)
			done <- struct{}{}
		}
	}()
	for n := 0; b.Loop(); n++ {
		queue.Add(keys[n%len(keys)])
		<-done
	}
	queue.ShutDown()
	<-stopped
}

// noGate and noMetrics cost what their calls cost.
type (
	noGate    struct{}
	noMetrics struct{}
)

func (noGate) Begin(ctx context.Context, _ name) context.Context { return ctx }
func (noGate) Ready(name, func()) bool                           { return true }
func (noGate) End(name)                                          {}

func (noMetrics) ReconcileWorkers(string, int)                                                    {}
func (noMetrics) ReconcileStarted(string)                                                         {}
func (noMetrics) ReconcileFinished(context.Context, string, string, time.Duration, time.Duration) {}
func (noMetrics) ReconcileHeld(string)                                                            {}
func (noMetrics) ReconcileKeys(string, int, int)                                                  {}
func (noMetrics) ReconcileFailing(string, string, int)                                            {}
func (noMetrics) ReconcileWrote(string, string, bool)                                             {}

func BenchmarkReconcile(b *testing.B) {
	tests := []struct {
		name   string
		c      *reconcile.Controller[name]
		source bool
	}{
		{name: "plain", c: &reconcile.Controller[name]{}},
		{name: "source", c: &reconcile.Controller[name]{}, source: true},
		{name: "timeout", c: &reconcile.Controller[name]{Timeout: time.Minute}},
		{name: "gate and metrics", c: &reconcile.Controller[name]{Gate: noGate{}, Metrics: noMetrics{}}},
	}
	for _, bb := range tests {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			done, stopped := make(chan struct{}), make(chan error)
			c := bb.c
			c.Name, c.Queue = "bench", newBenchQueue()
			c.Reconcile = func(context.Context, name) (reconcile.Result, error) {
				done <- struct{}{}
				return reconcile.Result{}, nil
			}
			ctx, cancel := context.WithCancel(b.Context())
			go func() { stopped <- c.Run(ctx) }()
			add := c.Queue.Add
			if bb.source {
				add = c.Source("settings").Add
			}
			for n := 0; b.Loop(); n++ {
				add(keys[n%len(keys)])
				<-done
			}
			cancel()
			if err := <-stopped; err != nil {
				b.Error(err)
			}
		})
	}
}

func BenchmarkFailure(b *testing.B) {
	b.ReportAllocs()
	done, stopped := make(chan struct{}), make(chan error)
	c := &reconcile.Controller[name]{Name: "bench", Queue: newBenchQueue(), Reconcile: func(context.Context, name) (reconcile.Result, error) {
		done <- struct{}{}
		return reconcile.Result{RequeueAfter: time.Hour}, errConflict
	}}
	ctx, cancel := context.WithCancel(b.Context())
	go func() { stopped <- c.Run(ctx) }()
	for n := 0; b.Loop(); n++ {
		c.Queue.Add(keys[n%len(keys)])
		<-done
	}
	cancel()
	if err := <-stopped; err != nil {
		b.Error(err)
	}
}
