package tracing_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/tracing"
)

// TestExemplar: the histograms of a sampled call have the ids of its span, and those of a call
// that is not sampled have no exemplar, at no allocation.
func TestExemplar(t *testing.T) {
	for _, ratio := range []float64{1, -1} {
		spans, registry := newRecorder(), prometheus.NewRegistry()
		m, err := metrics.New(registry)
		if err != nil {
			t.Fatal(err)
		}
		m.Exemplar = tracing.Exemplar
		ctx, cancel := context.WithCancel(t.Context())
		hook := &controller{Name: "things", Provider: spans, Ratio: ratio}
		c := &reconcile.Controller[types.NamespacedName]{
			Name: "things", Queue: queue.New(queue.Config[types.NamespacedName]{}), Metrics: m, Hook: hook.Hook,
			Reconcile: func(context.Context, types.NamespacedName) (reconcile.Result, error) {
				cancel()
				return reconcile.Result{}, nil
			},
		}
		c.Source("things").Add(key)
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		got := map[string]map[string]string{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				for _, b := range s.GetHistogram().GetBucket() {
					if e := b.GetExemplar(); e != nil {
						got[f.GetName()] = labels(e)
					}
				}
			}
		}
		want := map[string]map[string]string{}
		if ratio == 1 {
			sc := spans.only(t).SpanContext
			ids := map[string]string{"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String()}
			want["controller_reconcile_duration_seconds"], want["controller_reconcile_latency_seconds"] = ids, ids
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ratio %v: exemplars (-want +got):\n%s", ratio, diff)
		}
	}
	unsampled := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	for _, ctx := range []context.Context{t.Context(), unsampled} {
		if n := testing.AllocsPerRun(100, func() {
			if tracing.Exemplar(ctx) != nil {
				t.Error("labels without a sampled span")
			}
		}); n != 0 {
			t.Errorf("%v allocations, want 0", n)
		}
	}
}

func labels(e *dto.Exemplar) map[string]string {
	all := map[string]string{}
	for _, l := range e.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}
