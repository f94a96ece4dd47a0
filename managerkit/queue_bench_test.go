package managerkit

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// BenchmarkCycle is the life of a key in the queue of a manager's controller: an event handler
// adds it, a worker gets it and is done with it. Of a cycle of Complete's queue about two fifths
// are the queue and the triggers, one fifth three readings of the clock, and two fifths the
// series of controller-runtime, whose histograms have native buckets.
func BenchmarkCycle(b *testing.B) {
	keys := make([]ctrl.Request, 1024)
	for i := range keys {
		keys[i].NamespacedName = types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i%16), Name: fmt.Sprintf("name-%d", i)}
	}
	m, err := NewMetrics()
	if err != nil {
		b.Fatal(err)
	}
	for name, loop := range map[string]*reconcile.Controller[ctrl.Request]{
		"controllerkit": {Metrics: m},
		"no-metrics":    {Queue: queue.New(queue.Config[ctrl.Request]{Group: namespaces[ctrl.Request]()})},
	} {
		b.Run(name, func(b *testing.B) {
			d := &dispatch[ctrl.Request]{loop: loop, started: make(chan struct{})}
			in := d.newQueue("mk-cycle", nil).(*intake[ctrl.Request])
			out := loop.Queue.(interface {
				GetContext(context.Context) (ctrl.Request, int, bool)
			})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				in.AddWithOpts(priorityqueue.AddOpts{}, keys[i%len(keys)])
				key, _, _ := out.GetContext(b.Context())
				loop.Queue.Forget(key)
				loop.Queue.Done(key)
			}
		})
	}
	b.Run("controller-runtime", func(b *testing.B) {
		q := priorityqueue.New[ctrl.Request]("mk-cycle-rival")
		defer q.ShutDown()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			q.AddWithOpts(priorityqueue.AddOpts{}, keys[i%len(keys)])
			key, _, _ := q.GetWithPriority()
			q.Forget(key)
			q.Done(key)
		}
	})
}
