package tracing

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// Exemplar returns the labels trace_id and span_id of the span in ctx, or nil if that is not
// sampled. It fits metrics.Metrics.Exemplar.
func Exemplar(ctx context.Context) map[string]string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return nil
	}
	return map[string]string{"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String()}
}
