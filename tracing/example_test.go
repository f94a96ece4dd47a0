package tracing_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/tracing"
)

func ExampleController() {
	exporter := tracetest.NewInMemoryExporter() // usually that of otlptracehttp
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))

	ctx, cancel := context.WithCancel(context.Background())
	t := &tracing.Controller[types.NamespacedName]{Name: "configmaps", Provider: provider}
	c := &reconcile.Controller[types.NamespacedName]{
		Name:  "configmaps",
		Queue: queue.New(queue.Config[types.NamespacedName]{}),
		Hook:  t.Hook,
		Reconcile: func(context.Context, types.NamespacedName) (reconcile.Result, error) {
			cancel()
			return reconcile.Result{}, nil
		},
	}
	handler := enqueue.Handler(c.Source("configmaps"), enqueue.KeyOf[*corev1.ConfigMap])
	handler = enqueue.Filter(handler, tracing.Events(t, enqueue.KeyOf[*corev1.ConfigMap]))
	// What an informer does with the handler:
	handler.OnAdd(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "blue",
		Annotations: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}}, false)

	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	span := exporter.GetSpans()[0]
	fmt.Println(span.Name, "in trace", span.SpanContext.TraceID())
	fmt.Println("below span", span.Parent.SpanID())
	// Output:
	// reconcile configmaps in trace 0af7651916cd43dd8448eb211c80319c
	// below span b7ad6b7169203331
}

// Requests to other services need only otelhttp and the context of the reconcile.
func ExampleController_external() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		fmt.Println("the service continues the trace:", req.Header.Get("traceparent") != "")
	}))
	defer server.Close()
	client := &http.Client{Transport: otelhttp.NewTransport(http.DefaultTransport,
		otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagation.TraceContext{}))}

	ctx, cancel := context.WithCancel(context.Background())
	t := &tracing.Controller[types.NamespacedName]{Name: "buckets", Provider: provider}
	c := &reconcile.Controller[types.NamespacedName]{
		Name:  "buckets",
		Queue: queue.New(queue.Config[types.NamespacedName]{}),
		Hook:  t.Hook,
		Reconcile: func(ctx context.Context, _ types.NamespacedName) (reconcile.Result, error) {
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/buckets/blue", nil)
			if err != nil {
				return reconcile.Result{}, err
			}
			resp, err := client.Do(req)
			if err != nil {
				return reconcile.Result{}, err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body) // otelhttp ends its span with the body
			return reconcile.Result{}, err
		},
	}
	c.Queue.Add(types.NamespacedName{Namespace: "default", Name: "blue"})
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name, span.Parent.IsValid())
	}
	// Output:
	// the service continues the trace: true
	// HTTP PUT true
	// reconcile buckets false
}

func ExampleExemplar() {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Exemplar = tracing.Exemplar // before the first use of m

	ctx, span := sdktrace.NewTracerProvider().Tracer("example").Start(context.Background(), "reconcile")
	m.ReconcileFinished(ctx, "widgets", "success", time.Millisecond, time.Second) // what a controller does with it
	span.End()
	families, _ := registry.Gather()
	for _, f := range families {
		for _, bucket := range f.GetMetric()[0].GetHistogram().GetBucket() {
			if e := bucket.GetExemplar(); e != nil {
				fmt.Println(f.GetName(), bucket.GetUpperBound(), e.GetLabel()[1].GetValue() == span.SpanContext().TraceID().String())
			}
		}
	}
	// Output:
	// controller_reconcile_duration_seconds 0.005 true
	// controller_reconcile_latency_seconds 1 true
}

func ExampleInject() {
	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("user").Start(context.Background(), "create a ConfigMap")
	defer span.End()

	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	tracing.Inject(ctx, obj) // and then client.Create(ctx, obj, ...)
	fmt.Println(len(obj.Annotations["traceparent"]))
	// Output: 55
}

func ExampleCarry() {
	const manager ssa.FieldManager = "example.com/widgets"
	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("x").Start(context.Background(), "reconcile")
	defer span.End()

	// The method Apply of a client.
	apply := func(_ context.Context, config *applycorev1.ConfigMapApplyConfiguration, _ metav1.ApplyOptions) (*corev1.ConfigMap, error) {
		fmt.Println("applied with", len(config.Annotations), "annotation")
		return &corev1.ConfigMap{}, nil
	}
	var live *corev1.ConfigMap // from a lister
	request, config := tracing.Carry(manager, apply, applycorev1.ConfigMap("blue", "default"), live)
	if _, _, err := ssa.ApplyChanged(ctx, manager, request, config, live, applycorev1.ExtractConfigMap); err != nil {
		fmt.Println(err)
	}
	// Output: applied with 1 annotation
}

func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Println("traceparent has", len(req.Header.Get("traceparent")), "bytes")
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	config.Wrap(tracing.Transport) // before the clients are made

	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("x").Start(context.Background(), "reconcile")
	defer span.End()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/nodes", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	// Output: traceparent has 55 bytes
}

func ExampleStep() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	step := tracing.Step(finalizer.Step[*corev1.ConfigMap]{
		Name: "bucket",
		Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
			return finalizer.Progress{Done: true}, nil
		},
	})
	plan := finalizer.Plan[*corev1.ConfigMap]{Steps: []finalizer.Step[*corev1.ConfigMap]{step}}

	// What plan.Run does in a reconcile:
	ctx, span := provider.Tracer("x").Start(context.Background(), "reconcile")
	defer span.End()
	if _, err := plan.Steps[0].Run(ctx, finalizer.Held[*corev1.ConfigMap]{}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(exporter.GetSpans()[0].Name)
	// Output: finalizer step bucket
}

func ExampleTerm() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	elector := &leader.Elector{Metrics: tracing.Term(provider, nil)} // or that of an Operator

	// What elector.Run does in a term:
	elector.Metrics.LeaderStatus("default/widgets", true)
	elector.Metrics.LeaderStatus("default/widgets", false)
	fmt.Println(exporter.GetSpans()[0].Name)
	// Output: leader term
}

func ExampleFlush() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	group := &shutdown.Group{}
	group.Add("tracing", tracing.Flush(provider, 0)) // first, so it stops last
	ctx, cancel := context.WithCancel(context.Background())
	group.Add("work", func(ctx context.Context) error {
		cancel() // the program is asked to stop
		<-ctx.Done()
		_, span := provider.Tracer("x").Start(ctx, "the last span")
		span.End()
		return nil
	})
	fmt.Println(group.Run(ctx))
	// Output: <nil>
}
