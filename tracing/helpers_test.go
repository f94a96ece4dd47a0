package tracing_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/tracing"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// limit bounds each wait. It is generous, because it only determines how long a failing test
// runs.
const limit = time.Minute

type (
	controller = tracing.Controller[types.NamespacedName]
	event      = enqueue.Event[*corev1.ConfigMap]
)

var key = types.NamespacedName{Namespace: "default", Name: "blue"}

// recorder keeps the spans of its provider in the order of their ends.
type recorder struct {
	*tracetest.InMemoryExporter
	*sdktrace.TracerProvider
}

func newRecorder(options ...sdktrace.TracerProviderOption) recorder {
	exporter := tracetest.NewInMemoryExporter()
	return recorder{exporter, sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(exporter))...)}
}

func (r recorder) Shutdown(ctx context.Context) error { return r.TracerProvider.Shutdown(ctx) }

// only returns the one span that was recorded.
func (r recorder) only(t *testing.T) tracetest.SpanStub {
	t.Helper()
	spans := r.GetSpans()
	if len(spans) != 1 {
		t.Fatalf("%d spans were recorded, want one: %v", len(spans), names(spans))
	}
	return spans[0]
}

func names(spans tracetest.SpanStubs) (names []string) {
	for _, s := range spans {
		names = append(names, s.Name)
	}
	return names
}

// value returns an attribute as text, or "" if there is none.
func value(attributes []attribute.KeyValue, key attribute.Key) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// traceparent returns an annotation of the trace and the span with these numbers.
func traceparent(traceID, spanID int) string {
	return fmt.Sprintf("00-%032x-%016x-01", traceID, spanID)
}

// at names a span context as trace/span, by the numbers of traceparent.
func at(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	trace, span := sc.TraceID(), sc.SpanID()
	return fmt.Sprintf("%d/%d", binary.BigEndian.Uint64(trace[8:]), binary.BigEndian.Uint64(span[:]))
}

// object returns an object with the annotation in a resource version.
func object(annotation string, version int) *corev1.ConfigMap {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, ResourceVersion: fmt.Sprint(version)}}
	if annotation != "" {
		obj.Annotations = map[string]string{"traceparent": annotation}
	}
	return obj
}

// notes returns the predicate of c.
func notes(c *controller) enqueue.Predicate[*corev1.ConfigMap] {
	return tracing.Events(c, enqueue.KeyOf[*corev1.ConfigMap])
}

// call makes a call of c that has the result.
func call(ctx context.Context, c *controller, result string, err error) context.Context {
	return run(ctx, c.Hook, result, err)
}

// run does what a loop does with its Hook.
func run(ctx context.Context, hook func(context.Context, types.NamespacedName) (context.Context, func(string, error)), result string, err error) context.Context {
	ctx, end := hook(ctx, key)
	if end != nil {
		end(result, err)
	}
	return ctx
}
