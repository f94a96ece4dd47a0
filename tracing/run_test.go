package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
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

// TestPanicText: the span of a step or a request that panics has no text of the panic, which can name an object.
//
// Proves TR6.
func TestPanicText(t *testing.T) {
	step := tracing.Step(finalizer.Step[*corev1.ConfigMap]{Name: "bucket", Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
		panic("blue")
	}})
	rt := tracing.Transport(roundTrip(func(*http.Request) (*http.Response, error) { panic("blue") }))
	for name, run := range map[string]func(context.Context){
		"step": func(ctx context.Context) { _, _ = step.Run(ctx, finalizer.Held[*corev1.ConfigMap]{}) },
		"request": func(ctx context.Context) {
			if resp, err := rt.RoundTrip(request(t, "GET", "/").WithContext(ctx)); err == nil {
				_ = resp.Body.Close()
			}
		},
	} {
		r := newRecorder()
		ctx, _ := r.Tracer("x").Start(t.Context(), "parent")
		func() {
			defer func() {
				if recover() != "blue" {
					t.Errorf("%s: the panic does not go on", name)
				}
			}()
			run(ctx)
		}()
		if s := r.only(t); len(s.Events) > 0 || strings.Contains(fmt.Sprint(s), "blue") {
			t.Errorf("%s: span %+v", name, s)
		}
	}
}

// recordOnly is a sampler of spans that are recorded and not exported.
type recordOnly struct{}

func (recordOnly) Description() string { return "recordOnly" }

func (recordOnly) ShouldSample(sdktrace.SamplingParameters) sdktrace.SamplingResult {
	return sdktrace.SamplingResult{Decision: sdktrace.RecordOnly}
}

// TestStepRecordOnly: a step of a call that is recorded and not sampled has no span.
//
// Proves TR5.
func TestStepRecordOnly(t *testing.T) {
	spans := &started{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(recordOnly{}), sdktrace.WithSpanProcessor(spans))
	ctx, parent := provider.Tracer("x").Start(t.Context(), "parent")
	if !parent.IsRecording() {
		t.Fatal("the parent is not recorded")
	}
	step := tracing.Step(finalizer.Step[*corev1.ConfigMap]{Name: "bucket", Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
		return finalizer.Progress{Done: true}, nil
	}})
	if progress, err := step.Run(ctx, finalizer.Held[*corev1.ConfigMap]{}); !progress.Done || err != nil {
		t.Errorf("Run returned %v, %v", progress, err)
	}
	if len(*spans) != 1 {
		t.Errorf("started the spans %v, want only the parent", *spans)
	}
}

// started has the names of spans.
type started []string

func (s *started) OnStart(_ context.Context, span sdktrace.ReadWriteSpan) {
	*s = append(*s, span.Name())
}
func (*started) OnEnd(sdktrace.ReadOnlySpan)      {}
func (*started) Shutdown(context.Context) error   { return nil }
func (*started) ForceFlush(context.Context) error { return nil }

// measured notes the calls of leader.Metrics.
type measured []string

func (m *measured) LeaderStatus(name string, leading bool) {
	*m = append(*m, fmt.Sprint(name, " leads: ", leading))
}
func (m *measured) LeaderSeen(name string, seen bool) {
	*m = append(*m, fmt.Sprint(name, " seen: ", seen))
}
func (m *measured) LeaderTransition(name string, took time.Duration) {
	*m = append(*m, fmt.Sprint(name, " acquired in ", took))
}
func (m *measured) LeaderAbsent(name string, d time.Duration) {
	*m = append(*m, fmt.Sprint(name, " free for ", d))
}
func (m *measured) LeaderRenewal(name string, took time.Duration, slow bool) {
	*m = append(*m, fmt.Sprint(name, " renewed in ", took, ", slow: ", slow))
}

// TestTerm: each term has a span, and the other Metrics get all measurements.
func TestTerm(t *testing.T) {
	const lease = "default/things"
	r, next := newRecorder(), &measured{}
	for name, m := range map[string]leader.Metrics{"alone": tracing.Term(r, nil), "beside others": tracing.Term(r, next)} {
		r.Reset()
		m.LeaderStatus(lease, false)
		m.LeaderSeen(lease, true)
		m.LeaderAbsent(lease, time.Minute)
		m.LeaderTransition(lease, time.Second)
		m.LeaderStatus(lease, true)
		m.LeaderRenewal(lease, time.Second, false)
		m.LeaderRenewal(lease, 2*time.Second, true)
		if n := len(r.GetSpans()); n > 0 {
			t.Errorf("%s: %d spans ended before the term", name, n)
		}
		m.LeaderStatus(lease, false)
		m.LeaderRenewal(lease, time.Second, true)
		m.LeaderStatus(lease, false)
		s := r.only(t)
		if s.Name != "leader term" || value(s.Attributes, "leader.lease") != lease || s.Parent.IsValid() {
			t.Errorf("%s: span %+v", name, s)
		}
		if len(s.Events) != 1 || s.Events[0].Name != "slow renewal" || value(s.Events[0].Attributes, "leader.renewal_duration") != "2" {
			t.Errorf("%s: events %v, want one slow renewal of 2s", name, s.Events)
		}
		m.LeaderStatus(lease, true)
		m.LeaderStatus(lease, false)
		if n := len(r.GetSpans()); n != 2 {
			t.Errorf("%s: %d spans after two terms", name, n)
		}
	}
	want := []string{
		"default/things leads: false", "default/things seen: true", "default/things free for 1m0s", "default/things acquired in 1s", "default/things leads: true",
		"default/things renewed in 1s, slow: false", "default/things renewed in 2s, slow: true", "default/things leads: false",
		"default/things renewed in 1s, slow: true", "default/things leads: false", "default/things leads: true", "default/things leads: false",
	}
	if diff := cmp.Diff(want, []string(*next)); diff != "" {
		t.Errorf("the other Metrics got (-want +got):\n%s", diff)
	}
	if got := tracing.Term(nil, next); got != next {
		t.Error("Term without a provider is not the other Metrics")
	}
	tracing.Term(r, (*measured)(nil)).LeaderStatus(lease, false)
}

// TestServerTerm runs an operator with an election twice: each term has a span, which covers
// the reconciles of the term and is not their parent.
func TestServerTerm(t *testing.T) {
	t.Parallel()
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	client := kubernetes.NewForConfigOrDie(config)
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := newRecorder()
	for range 2 {
		op, err := operator.New(config, operator.Options{Name: "things", LeaseNamespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		op.Elector.Metrics = tracing.Term(r, op.Elector.Metrics)
		ctx, stop := context.WithTimeout(t.Context(), limit)
		called := false
		c := op.Controller("things", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
			called = true
			stop()
			return reconcile.Result{}, nil
		})
		c.Loop.Workers = 1
		c.Loop.Hook = (&controller{Name: "things", Provider: r}).Hook
		factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=blue" }))
		operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
		if err := op.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if stop(); !called {
			t.Fatalf("no reconcile after %v", limit)
		}
		spans := r.GetSpans()
		if got := names(spans); !slices.Equal(got, []string{"reconcile things", "leader term"}) {
			t.Fatalf("spans %v, want those of a call and of its term", got)
		}
		call, term := spans[0], spans[1]
		if value(term.Attributes, "leader.lease") != namespace+"/things" || term.Parent.IsValid() {
			t.Errorf("span %+v", term)
		}
		if call.StartTime.Before(term.StartTime) || call.EndTime.After(term.EndTime) || call.SpanContext.TraceID() == term.SpanContext.TraceID() {
			t.Error("the span of the term does not cover that of the call, or has its trace")
		}
		r.Reset()
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
