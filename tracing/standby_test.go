package tracing_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/tracing"
)

// TestStandby: a replica that has waited for a day to lead has many events of each key. When it
// leads, Ratio decides once about a call, and no span has a time in the queue of a day. An event
// of the term counts as before.
func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 1000
		r := newRecorder()
		tr := &controller{Name: "things", Provider: r, Ratio: 0.01}
		note := notes(tr)
		c := &reconcile.Controller[types.NamespacedName]{Name: "things", Queue: queue.New(queue.Config[types.NamespacedName]{}), Hook: tr.Hook}
		c.Reconcile = func(context.Context, types.NamespacedName) (reconcile.Result, error) { return reconcile.Result{}, nil }
		for n := range keys {
			from, to := object("", 1), object("", 2)
			from.Name, to.Name = fmt.Sprint(n), fmt.Sprint(n)
			for range 1000 {
				note(event{Old: from, New: to})
			}
			c.Queue.Add(types.NamespacedName{Namespace: to.Namespace, Name: to.Name})
		}
		time.Sleep(24 * time.Hour)
		ctx := context.WithValue(t.Context(), calls.LastRenewal{}, time.Now())
		run, stop := context.WithCancel(ctx)
		time.AfterFunc(time.Second, stop)
		if err := c.Run(run); err != nil {
			t.Fatal(err)
		}
		spans := r.GetSpans()
		if n := len(spans); n == 0 || n > 50 {
			t.Errorf("%d of %d calls are sampled, want about 10", n, keys)
		}
		for _, s := range spans {
			if len(s.Events) > 0 {
				t.Fatalf("a span has the events %v, want none", s.Events)
			}
		}

		time.Sleep(time.Second)
		tr = &controller{Provider: r}
		notes(tr)(event{New: object("", 1), Created: true})
		r.Reset()
		call(ctx, tr, "success", nil)
		if s := r.only(t); len(s.Events) != 1 {
			t.Errorf("after an event of the term, a span has the events %v, want one", s.Events)
		}
	})
}

// TestDeletedOnStandby: keys whose objects were deleted before the replica leads never run. They
// make room for keys with new events. A retry counts as an event.
//
// Proves TR7.
func TestDeletedOnStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		c := &controller{Provider: r}
		note := notes(c)
		for n := range 1 << 16 {
			obj := object("", 1)
			obj.Name = fmt.Sprint(n)
			note(event{New: obj, Created: true})
		}
		another := func(name string) (kept int) {
			obj := object("", 1)
			obj.Name = name
			note(event{New: obj, Created: true})
			kept, _ = tracing.Kept(c)
			return kept
		}
		time.Sleep(5*time.Minute - 1)
		if got := another("early"); got != 1<<16 {
			t.Errorf("%d keys are kept before 5m, want the first 2^16", got)
		}
		_, end := c.Hook(t.Context(), types.NamespacedName{Namespace: key.Namespace, Name: "0"})
		end("requeue", nil)
		time.Sleep(time.Minute)
		if got := another(key.Name); got != 2 {
			t.Errorf("%d keys are kept, want a retry and one with a new event", got)
		}
		r.Reset()
		call(t.Context(), c, "success", nil)
		if s := r.only(t); len(s.Events) != 1 {
			t.Errorf("a span has the events %v, want one", s.Events)
		}
	})
}
