package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/leader"
)

// Step returns the step of a finalizer.Plan with a span around each call of Run. The provider
// of the span in the context makes it. If that span is not sampled, Run is called without a span.
func Step[T metav1.Object](step finalizer.Step[T]) finalizer.Step[T] {
	run := step.Run
	if run == nil {
		return step // Plan.Validate names the step
	}
	name := "finalizer step " + kube.Printable(step.Name, maxText)
	step.Run = func(ctx context.Context, held finalizer.Held[T]) (finalizer.Progress, error) {
		parent := trace.SpanFromContext(ctx)
		if !parent.IsRecording() || !parent.SpanContext().IsSampled() {
			return run(ctx, held)
		}
		ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
		defer func() { span.End() }() // deferred itself, it would record the text of a panic
		progress, err := run(ctx, held)
		span.SetAttributes(attribute.Bool("finalizer.done", err == nil && progress.Done))
		if err != nil {
			span.SetStatus(codes.Error, "failed")
		}
		return progress, err
	}
	return step
}

// Term returns Metrics of a leader.Elector that make a span of each of its terms, and pass all
// measurements on to next, which can be nil:
//
//	op.Elector.Metrics = tracing.Term(provider, op.Elector.Metrics)
//
// The span has the name of the Lease, and an event for each slow renewal. It ends when the
// elector no longer leads. A reconcile is not a part of it: it has a trace of its own. Call
// Term for each elector. With a nil provider it returns next.
func Term(provider trace.TracerProvider, next leader.Metrics) leader.Metrics {
	if kube.IsNil(next) {
		next = nil
	}
	if kube.IsNil(provider) {
		return next
	}
	return &term{tracer: provider.Tracer(scope), next: next}
}

type term struct {
	tracer trace.Tracer
	next   leader.Metrics // can be nil

	mu   sync.Mutex // guards span
	span trace.Span // nil if the elector does not lead
}

func (t *term) LeaderStatus(name string, leading bool) {
	if t.next != nil {
		t.next.LeaderStatus(name, leading)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case leading && t.span == nil:
		_, t.span = t.tracer.Start(context.Background(), "leader term",
			trace.WithAttributes(attribute.String("leader.lease", kube.Printable(name, maxText))))
	case !leading && t.span != nil:
		t.span.End()
		t.span = nil
	}
}

func (t *term) LeaderSeen(name string, seen bool) {
	if t.next != nil {
		t.next.LeaderSeen(name, seen)
	}
}

func (t *term) LeaderTransition(name string, took time.Duration) {
	if t.next != nil {
		t.next.LeaderTransition(name, took)
	}
}

func (t *term) LeaderAbsent(name string, d time.Duration) {
	if t.next != nil {
		t.next.LeaderAbsent(name, d)
	}
}

func (t *term) LeaderRenewal(name string, took time.Duration, slow bool) {
	if t.next != nil {
		t.next.LeaderRenewal(name, took, slow)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if slow && t.span != nil {
		t.span.AddEvent("slow renewal", trace.WithAttributes(attribute.Float64("leader.renewal_duration", took.Seconds())))
	}
}

// Flush returns a part of a shutdown.Group that shuts the provider down when its context is
// done, which exports the spans that are left. Add it before all other parts, so that it stops
// last. The provider is usually a *sdktrace.TracerProvider.
//
// The export has the timeout; 0 means 1s, which a Group of up to ten parts grants by default. If
// the export fails, the part logs the error and returns nil, because a lost trace is
// no reason for a process to fail. A nil provider disables the export.
func Flush(provider interface{ Shutdown(context.Context) error }, timeout time.Duration) func(context.Context) error {
	if timeout <= 0 {
		timeout = time.Second
	}
	return func(ctx context.Context) error {
		<-ctx.Done()
		if kube.IsNil(provider) {
			return nil
		}
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		if err := provider.Shutdown(flush); err != nil {
			klog.FromContext(ctx).Error(kube.PrintableError(err, maxText), "Lost spans at the stop", "timeout", timeout)
		}
		return nil
	}
}
