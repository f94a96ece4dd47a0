package tracing_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

var noop = oteltrace.SpanFromContext(context.Background())

// contextOnly is the cheapest hook whose calls have an unsampled span.
func contextOnly(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
	return oteltrace.ContextWithSpan(ctx, noop), nil
}

// BenchmarkHook measures what tracing costs a reconcile, with and without an event.
func BenchmarkHook(b *testing.B) {
	b.Run("context only", func(b *testing.B) {
		ctx := klog.NewContext(b.Context(), klog.Background())
		b.ReportAllocs()
		for b.Loop() {
			run(ctx, contextOnly, "success", nil)
		}
	})
	for _, bm := range []struct {
		name string
		c    *controller
	}{
		{"none", &controller{}},
		{"left out by a ratio", &controller{Name: "things", Provider: newRecorder(), Ratio: 1e-9}},
		{"unsampled", &controller{Name: "things", Provider: newRecorder(), Ratio: -1}},
		{"unsampled by the provider", &controller{Name: "things", Provider: newRecorder(trace.WithSampler(trace.NeverSample()))}},
		{"sampled", &controller{Name: "things", Provider: trace.NewTracerProvider(trace.WithSpanProcessor(&ignore{}))}},
	} {
		ctx := klog.NewContext(b.Context(), klog.Background())
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call(ctx, bm.c, "success", nil)
			}
		})
		b.Run(bm.name+" with an event", func(b *testing.B) {
			note, e := notes(bm.c), event{New: object("", 1), Created: true}
			b.ReportAllocs()
			for b.Loop() {
				note(e)
				call(ctx, bm.c, "success", nil)
			}
		})
		b.Run(bm.name+" with an event of an earlier trace", func(b *testing.B) {
			note, e := notes(bm.c), event{Old: object(traceparent(1, 1), 1), New: object(traceparent(1, 1), 2)}
			b.ReportAllocs()
			for b.Loop() {
				note(e)
				call(ctx, bm.c, "success", nil)
			}
		})
	}
}

// ignore is a processor that makes spans record.
type ignore struct{ signals }

func (*ignore) OnEnd(trace.ReadOnlySpan) {}
