package reconcile_test

import (
	"context"
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

var key = name{Namespace: "default", Name: "settings"}

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
	for b.Loop() {
		queue.Add(key)
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

func (noMetrics) ReconcileWorkers(string, int)                    {}
func (noMetrics) ReconcileStarted(string)                         {}
func (noMetrics) ReconcileFinished(string, string, time.Duration) {}

func BenchmarkReconcile(b *testing.B) {
	tests := []struct {
		name string
		c    *reconcile.Controller[name]
	}{
		{"plain", &reconcile.Controller[name]{}},
		{"timeout", &reconcile.Controller[name]{Timeout: time.Minute}},
		{"gate and metrics", &reconcile.Controller[name]{Gate: noGate{}, Metrics: noMetrics{}}},
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
			for b.Loop() {
				c.Queue.Add(key)
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
	for b.Loop() {
		c.Queue.Add(key)
		<-done
	}
	cancel()
	if err := <-stopped; err != nil {
		b.Error(err)
	}
}
