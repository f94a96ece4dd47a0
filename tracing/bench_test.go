package tracing_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"k8s.io/klog/v2"
)

// BenchmarkHook measures what tracing costs a reconcile, with and without an event.
func BenchmarkHook(b *testing.B) {
	for _, bm := range []struct {
		name string
		c    *controller
	}{
		{"none", &controller{}},
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
	}
}

// ignore is a processor that makes spans record.
type ignore struct{ signals }

func (*ignore) OnEnd(trace.ReadOnlySpan) {}
