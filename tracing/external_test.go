package tracing_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/tracing"
)

// TestExternalCalls runs a loop that calls another service by otelhttp alone. In a sampled call
// the request has a span below that of the call, and the service gets it as parent. In an
// unsampled call there is no span.
//
// Proves TR5.
func TestExternalCalls(t *testing.T) {
	for name, ratio := range map[string]float64{"sampled": 1, "unsampled": -1} {
		t.Run(name, func(t *testing.T) {
			got := make(chan trace.SpanContext, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				got <- trace.SpanContextFromContext(propagation.TraceContext{}.Extract(req.Context(), propagation.HeaderCarrier(req.Header)))
			}))
			defer server.Close()
			r := newRecorder()
			client := &http.Client{Transport: otelhttp.NewTransport(http.DefaultTransport,
				otelhttp.WithTracerProvider(r), otelhttp.WithPropagators(propagation.TraceContext{}))}

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			tr := &tracing.Controller[types.NamespacedName]{Name: "buckets", Provider: r, Ratio: ratio}
			c := &reconcile.Controller[types.NamespacedName]{Name: "buckets", Queue: queue.New(queue.Config[types.NamespacedName]{}), Hook: tr.Hook}
			c.Reconcile = func(ctx context.Context, _ types.NamespacedName) (reconcile.Result, error) {
				defer stop()
				req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/bucket", nil)
				if err != nil {
					return reconcile.Result{}, err
				}
				resp, err := client.Do(req)
				if err != nil {
					return reconcile.Result{}, err
				}
				defer resp.Body.Close()
				_, err = io.Copy(io.Discard, resp.Body) // otelhttp ends the span with the body
				return reconcile.Result{}, err
			}
			c.Queue.Add(key)
			if err := c.Run(ctx); err != nil {
				t.Fatal(err)
			}
			service, spans := <-got, r.GetSpans()
			if name == "unsampled" {
				if len(spans) > 0 || service.IsSampled() {
					t.Errorf("spans %v, and the service is sampled: %t; want none", names(spans), service.IsSampled())
				}
				return
			}
			if len(spans) != 2 || spans[0].Name != "HTTP PUT" || spans[1].Name != "reconcile buckets" {
				t.Fatalf("spans %v, want those of the request and of the call", names(spans))
			}
			if request, call := spans[0], spans[1]; request.Parent.SpanID() != call.SpanContext.SpanID() || request.SpanContext.TraceID() != call.SpanContext.TraceID() {
				t.Error("the span of the request is not below that of the call")
			}
			if service.SpanID() != spans[0].SpanContext.SpanID() || !service.IsSampled() {
				t.Errorf("the service got the parent %v, want the span of the request", service)
			}
		})
	}
}
