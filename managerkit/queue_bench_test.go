package managerkit

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/controllerkit/controllerkit/reconcile"
)

// BenchmarkCycle is the life of a key in the queue of a manager's controller: an event handler
// adds it, a worker gets it and is done with it.
func BenchmarkCycle(b *testing.B) {
	keys := make([]ctrl.Request, 1024)
	for i := range keys {
		keys[i].NamespacedName = types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i%16), Name: fmt.Sprintf("name-%d", i)}
	}
	b.Run("controllerkit", func(b *testing.B) {
		m, err := NewMetrics()
		if err != nil {
			b.Fatal(err)
		}
		d := &dispatch[ctrl.Request]{loop: &reconcile.Controller[ctrl.Request]{Metrics: m}, started: make(chan struct{})}
		in := d.newQueue("mk-cycle", nil).(*intake[ctrl.Request])
		out := d.loop.Queue.(interface {
			GetContext(context.Context) (ctrl.Request, int, bool)
		})
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			in.AddWithOpts(priorityqueue.AddOpts{}, keys[i%len(keys)])
			key, _, _ := out.GetContext(b.Context())
			d.loop.Queue.Forget(key)
			d.loop.Queue.Done(key)
		}
	})
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
