package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/reconcile"
)

type hookKey struct{}

// inContext notes what Hook had put into the context of each report.
type inContext struct {
	counts
	got []any
}

func (m *inContext) ReconcileFinished(ctx context.Context, _, result string, _, _ time.Duration) {
	m.got = append(m.got, result, ctx.Value(hookKey{}))
}

// TestMetricsContext: the reports of a call have the context that Hook returned, before the
// end of its span. Without a Hook they have the context of the call.
func TestMetricsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &inContext{}
		n := 0
		c := &controller{
			Name: "x", Queue: newTestQueue(), Metrics: m,
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				if n == 1 {
					panic("once")
				}
				return reconcile.Result{}, nil
			},
			Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
				n++
				return context.WithValue(ctx, hookKey{}, n), func(string, error) { m.got = append(m.got, "end") }
			},
		}
		pods := c.Source("pods")
		r := start(t, t.Context(), c)
		pods.Add("a")
		synctest.Wait()
		pods.Add("a")
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]any{"panic", 1, "end", "success", 2, "end"}, m.got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}

		m.got, c.Hook = nil, nil
		c.Queue = newTestQueue("a")
		r = start(t, context.WithValue(t.Context(), hookKey{}, "Run"), c)
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]any{"success", "Run"}, m.got); diff != "" {
			t.Errorf("reports without a Hook (-want +got):\n%s", diff)
		}
	})
}
