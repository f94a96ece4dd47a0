package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Step returns the step of a finalizer.Plan with a span around each call of Run. The provider
// of the span in the context makes it. If that span is not sampled, there is none.
func Step[T metav1.Object](step finalizer.Step[T]) finalizer.Step[T] {
	run := step.Run
	if run == nil {
		return step // Plan.Validate names the step
	}
	name := "finalizer step " + kube.Printable(step.Name, maxText)
	step.Run = func(ctx context.Context, held finalizer.Held[T]) (finalizer.Progress, error) {
		parent := trace.SpanFromContext(ctx)
		if !parent.IsRecording() {
			return run(ctx, held)
		}
		ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
		defer span.End()
		progress, err := run(ctx, held)
		span.SetAttributes(attribute.Bool("finalizer.done", err == nil && progress.Done))
		if err != nil {
			span.SetStatus(codes.Error, "failed")
		}
		return progress, err
	}
	return step
}

// Term returns run with a span around it, for the work of a leader:
//
//	err := elector.Run(ctx, tracing.Term(provider, "website-operator", c.Run))
//
// The span has the name of the Lease, and ends with the term. A reconcile is not a part of
// it: it has a trace of its own. A nil provider means no span.
func Term(provider trace.TracerProvider, lease string, run func(context.Context) error) func(context.Context) error {
	if kube.IsNil(provider) || run == nil {
		return run
	}
	return func(ctx context.Context) error {
		ctx, span := provider.Tracer(scope).Start(ctx, "leader term", trace.WithNewRoot(),
			trace.WithAttributes(attribute.String("leader.lease", kube.Printable(lease, maxText))))
		defer span.End()
		err := run(ctx)
		if cause := context.Cause(ctx); cause != nil {
			span.SetAttributes(attribute.String("leader.end", kube.Printable(cause.Error(), maxText)))
		}
		if err != nil {
			span.SetStatus(codes.Error, kube.Printable(err.Error(), maxText))
		}
		return err
	}
}

// Flush returns a part of a shutdown.Group that shuts the provider down when its context is
// done, which exports the spans that are left. Add it before all other parts, so that it stops
// last. The provider is usually a *sdktrace.TracerProvider.
//
// The export has the timeout; 0 means 1s, which a Group of up to ten parts grants by default. If
// the export fails, the part logs the error and returns nil, because a lost trace is
// no reason for a process to fail. A nil provider means a part that does nothing.
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
			klog.FromContext(ctx).Error(err, "Lost spans at the stop", "timeout", timeout)
		}
		return nil
	}
}
