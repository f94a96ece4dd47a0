package tracing_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	corev1 "k8s.io/api/core/v1"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/tracing"
)

// TestStep: a call of a step has a span below the span of its context, if that is sampled.
func TestStep(t *testing.T) {
	failed := errors.New("blue")
	for _, tt := range []struct {
		name, done string
		progress   finalizer.Progress
		err        error
		want       codes.Code
	}{
		{name: "done", progress: finalizer.Progress{Done: true}, done: "true", want: codes.Unset},
		{name: "waiting", done: "false", want: codes.Unset},
		{name: "failed", err: failed, done: "false", want: codes.Error},
	} {
		r := newRecorder()
		ctx, parent := r.Tracer("x").Start(t.Context(), "parent")
		step := tracing.Step(finalizer.Step[*corev1.ConfigMap]{Name: "bucket", AtOnce: true, Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
			return tt.progress, tt.err
		}})
		if !step.AtOnce {
			t.Error("Step lost a field")
		}
		for _, ctx := range []context.Context{t.Context(), ctx} {
			if progress, err := step.Run(ctx, finalizer.Held[*corev1.ConfigMap]{}); progress != tt.progress || err != tt.err {
				t.Errorf("%s: Run returned %v, %v", tt.name, progress, err)
			}
		}
		s := r.only(t)
		if s.Name != "finalizer step bucket" || s.Parent.SpanID() != parent.SpanContext().SpanID() || s.Status.Code != tt.want || value(s.Attributes, "finalizer.done") != tt.done || s.Status.Description == "blue" {
			t.Errorf("%s: span %+v", tt.name, s)
		}
	}
	if tracing.Step(finalizer.Step[*corev1.ConfigMap]{Name: "x"}).Run != nil {
		t.Error("a step without Run got one")
	}
}

// TestTerm: the span of a term ends with it, and has the reason.
func TestTerm(t *testing.T) {
	r := newRecorder()
	ctx, cancel := context.WithCancelCause(t.Context())
	lost := errors.New("the lease is lost")
	failed := errors.New("failed")
	err := tracing.Term(r, "default/things", func(context.Context) error {
		if n := len(r.GetSpans()); n > 0 {
			t.Errorf("%d spans have ended", n)
		}
		cancel(lost)
		return failed
	})(ctx)
	s := r.only(t)
	if err != failed || s.Name != "leader term" || value(s.Attributes, "leader.lease") != "default/things" || value(s.Attributes, "leader.end") != lost.Error() || s.Status.Code != codes.Error {
		t.Errorf("error %v, span %+v", err, s)
	}
	if err := tracing.Term(nil, "x", func(context.Context) error { return failed })(ctx); err != failed {
		t.Errorf("without a provider: %v", err)
	}
	if tracing.Term(r, "x", nil) != nil {
		t.Error("Term of nil is not nil")
	}
}

// hanging is an exporter that blocks in each export, whatever its context.
type hanging struct{ begun, release chan struct{} }

func (h hanging) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	close(h.begun)
	<-h.release
	return nil
}
func (h hanging) Shutdown(context.Context) error { return nil }

// TestFlush: the group stops Flush last, with the spans of the other parts exported.
//
// Proves TR9.
func TestFlush(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		hangs   bool
		want    time.Duration
	}{
		{name: "works"},
		{name: "hangs", hangs: true, want: time.Second},
		{name: "hangs, with a timeout", hangs: true, timeout: 300 * time.Millisecond, want: 300 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs := testlog.New()
				h := hanging{make(chan struct{}), make(chan struct{})}
				defer close(h.release)
				kept := &keeping{}
				var provider *sdktrace.TracerProvider
				if tt.hangs {
					provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(h))
				} else {
					provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(kept))
				}
				group := &shutdown.Group{}
				group.Add("tracing", tracing.Flush(provider, tt.timeout))
				group.Add("work", func(ctx context.Context) error {
					<-ctx.Done()
					_, span := provider.Tracer("x").Start(ctx, "last")
					span.End()
					return nil
				})
				ctx, stop := context.WithCancel(logs.Context(t.Context()))
				var began time.Time
				time.AfterFunc(time.Second, func() { began = time.Now(); stop() })
				if err := group.Run(ctx); err != nil {
					t.Errorf("Run returned %v", err)
				}
				if took := time.Since(began); took != tt.want {
					t.Errorf("the stop took %v, want %v", took, tt.want)
				}
				if tt.hangs {
					<-h.begun
					if len(logs.Find("Lost spans at the stop")) != 1 {
						t.Error("no line about the lost spans")
					}
				} else if kept.spans != 1 {
					t.Errorf("%d spans were exported, want 1", kept.spans)
				}
			})
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var none *sdktrace.TracerProvider
	for _, part := range []func(context.Context) error{tracing.Flush(nil, 0), tracing.Flush(none, 0)} {
		if err := part(ended); err != nil {
			t.Errorf("without a provider: %v", err)
		}
	}
}

// keeping counts the exported spans.
type keeping struct{ spans int }

func (k *keeping) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.spans += len(spans)
	return nil
}
func (k *keeping) Shutdown(context.Context) error { return nil }
