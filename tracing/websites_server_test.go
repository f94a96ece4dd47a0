package tracing_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/tracing"
	"github.com/controllerkit/controllerkit/tracing/internal/websites"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const definitions = "../examples/website/config/crd.yaml"

// signals is a span processor that keeps ended spans and wakes a waiting test.
type signals struct {
	mu    sync.Mutex // guards the fields below
	spans []sdktrace.ReadOnlySpan
	more  chan struct{} // closed at the next span
}

func (s *signals) OnEnd(span sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans = append(s.spans, span)
	close(s.more)
	s.more = make(chan struct{})
}
func (s *signals) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (s *signals) Shutdown(context.Context) error                  { return nil }
func (s *signals) ForceFlush(context.Context) error                { return nil }

// wait waits until there are n spans of each name.
func (s *signals) wait(t *testing.T, want map[string]int) {
	t.Helper()
	timeout := time.After(limit)
	for {
		s.mu.Lock()
		more, missing := s.more, false
		have := map[string]int{}
		for _, span := range s.spans {
			have[span.Name()]++
		}
		s.mu.Unlock()
		for name, n := range want {
			missing = missing || have[name] < n
		}
		if !missing {
			return
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("after %v there are the spans %v, want %v", limit, have, want)
		}
	}
}

// tree draws the spans of all traces but one, each below its parent, in the order of their
// starts.
func (s *signals) tree(but trace.TraceID) string {
	s.mu.Lock()
	spans := slices.Clone(s.spans)
	s.mu.Unlock()
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	name := map[trace.SpanID]string{}
	for _, span := range spans {
		name[span.SpanContext().SpanID()] = span.Name()
	}
	var b strings.Builder
	var draw func(parent trace.SpanID, depth int)
	draw = func(parent trace.SpanID, depth int) {
		for _, span := range spans {
			if span.Parent().SpanID() != parent || span.SpanContext().TraceID() == but {
				continue
			}
			fmt.Fprintf(&b, "%s%s", strings.Repeat("    ", depth), span.Name())
			for _, key := range []attribute.Key{"http.response.status_code", "reconcile.attempt", "reconcile.triggers", "reconcile.result"} {
				if v := value(span.Attributes(), key); v != "" {
					fmt.Fprintf(&b, " %s=%s", key[strings.LastIndex(string(key), ".")+1:], v)
				}
			}
			for _, e := range span.Events() {
				fmt.Fprintf(&b, " (%s)", e.Name)
			}
			for _, l := range span.Links() {
				fmt.Fprintf(&b, " link=%q", name[l.SpanContext.SpanID()])
			}
			b.WriteString("\n")
			draw(span.SpanContext().SpanID(), depth+1)
		}
	}
	draw(trace.SpanID{}, 0)
	return b.String()
}

// TestServerWebsites runs two controllers with tracing on a real API server.
//
// Proves TR1, TR2 and TR4.
func TestServerWebsites(t *testing.T) {
	config := testserver.Config(t)
	// The definition stays, so that the test can run twice. The operator waits for it.
	source, err := os.ReadFile(definitions)
	if err != nil {
		t.Fatal(err)
	}
	var definition map[string]any
	if err := yaml.Unmarshal(source, &definition); err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_, err = dynamic.NewForConfigOrDie(config).Resource(resource).Create(t.Context(), &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Run("faults", func(t *testing.T) { testFaults(t, config, false) })
	t.Run("faults of bare controllers", func(t *testing.T) { testFaults(t, config, true) })
	t.Run("trace", func(t *testing.T) { testTrace(t, config) })
	t.Run("folded", func(t *testing.T) { testFolded(t, config) })
}

// traced is a running operator of websites, and a user of it.
type traced struct {
	*signals
	*websites.Websites
	provider *sdktrace.TracerProvider
	sites    *crd.Client[*v1.Website] // of the user
}

// runTraced runs the operator until the test ends. set changes its reconcilers before.
func runTraced(t *testing.T, config *rest.Config, set func(*websites.Websites)) traced {
	namespace := testserver.Namespace(t)
	kept := &signals{more: make(chan struct{})}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(kept))
	op, r, err := websites.New(config, provider, namespace, false)
	if err != nil {
		t.Fatal(err)
	}
	set(r)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- op.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, c := range r.Synced { // otherwise the first event could be a list
		await(t, c.Done(), c.Name()+" is synced")
	}
	user := rest.CopyConfig(config)
	user.Wrap(tracing.Transport)
	sites, err := crd.New[*v1.Website](user, websites.Kind(), "websites")
	if err != nil {
		t.Fatal(err)
	}
	return traced{kept, r, provider, sites.Namespace(namespace)}
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(limit):
		t.Fatalf("after %v it is not so that %s", limit, what)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// user does a request of a user in a span of that name.
func (r traced) user(t *testing.T, name string, do func(context.Context) error) trace.TraceID {
	t.Helper()
	ctx, span := r.provider.Tracer("user").Start(t.Context(), name)
	defer span.End()
	if err := do(ctx); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return span.SpanContext().TraceID()
}

// create creates a Website in a trace.
func (r traced) create(t *testing.T) trace.TraceID {
	t.Helper()
	return r.user(t, "create a website", func(ctx context.Context) error {
		_, err := r.sites.Create(ctx, websites.NewSite(ctx), metav1.CreateOptions{})
		return err
	})
}

// change changes the spec of the Website in a trace.
func (r traced) change(t *testing.T, name, spec string) {
	t.Helper()
	r.user(t, name, func(ctx context.Context) error {
		carrier := websites.NewSite(ctx)
		_, err := r.sites.Patch(ctx, carrier.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"traceparent":"`+carrier.Annotations["traceparent"]+`"}},"spec":`+spec+`}`), metav1.PatchOptions{})
		return err
	})
}

// golden compares got with a golden file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("spans (-want +got), which -update accepts:\n%s", diff)
	}
}

// testTrace follows one Website: the user's create, the reconcile, the apply of the Deployment,
// the controller of the Deployment, and the status are one trace.
func testTrace(t *testing.T, config *rest.Config) {
	r := runTraced(t, config, func(*websites.Websites) {})
	id := r.create(t)
	r.wait(t, map[string]int{"create a website": 1, "PUT websites/status": 1, "reconcile websites": 2, "reconcile deployments": 1})
	r.mu.Lock()
	for _, s := range r.spans {
		if s.SpanContext().TraceID() != id {
			t.Errorf("the span %s has another trace than the user's create", s.Name())
		}
	}
	r.mu.Unlock()
	golden(t, "testdata/website.txt", r.tree(trace.TraceID{}))
}

// testFolded changes a Website twice during a call, in two traces. The one call that follows
// begins a trace, with a link to each change.
func testFolded(t *testing.T, config *rest.Config) {
	var once sync.Once
	settled, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	last := make(chan struct{})
	r := runTraced(t, config, func(r *websites.Websites) {
		r.Seen = func(w *v1.Website) {
			if w.Labels["last"] != "" && !closed(last) {
				close(last)
			}
		}
		r.Settled = func() {
			once.Do(func() {
				close(settled)
				<-release
			})
		}
	})
	created := r.create(t)
	await(t, settled, "the status is written")
	r.change(t, "change the image", `{"image":"blog:2"}`)
	r.change(t, "change the host", `{"host":"www.example.com"}`)
	// A handler gets one event after the other, so the two are queued before this one is seen.
	if _, err := r.sites.Patch(t.Context(), "blog", types.MergePatchType, []byte(`{"metadata":{"labels":{"last":"true"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, last, "both changes are queued")
	release <- struct{}{}
	r.wait(t, map[string]int{"PUT websites/status": 2, "reconcile websites": 4, "reconcile deployments": 2})
	golden(t, "testdata/folded.txt", r.tree(created))
}

// discard is an exporter that drops its spans.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                             { return nil }

// testFaults runs the controllers under faults: no annotation makes a loop, an object too many
// or another end. The bare ones do not know the events of their own applies.
func testFaults(t *testing.T, config *rest.Config, bare bool) {
	name, sample := "traced-websites", 12
	if bare {
		name, sample = "bare-traced-websites", 2
	}
	var budget time.Duration
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		sample = 0
	}
	user := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(&signals{more: make(chan struct{})})).Tracer("user")
	step := func(name string, do func(context.Context, *crd.Client[*v1.Website]) error) controllertest.Step {
		return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			ctx, span := user.Start(ctx, name)
			defer span.End()
			sites, err := crd.New[*v1.Website](cfg, websites.Kind(), "websites")
			if err != nil {
				return err
			}
			return do(ctx, sites.Namespace(env.Namespace))
		}}
	}
	controllertest.Explore(t, controllertest.Scenario{
		Name: name,
		CRDs: []string{definitions},
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, _, err := websites.New(cfg, sdktrace.NewTracerProvider(sdktrace.WithBatcher(discard{})), env.Namespace, bare)
			if err != nil {
				return err
			}
			return op.Run(ctx)
		},
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, sites *crd.Client[*v1.Website]) error {
				_, err := sites.Create(ctx, websites.NewSite(ctx), metav1.CreateOptions{})
				return err
			}),
			step("scale without a trace", func(ctx context.Context, sites *crd.Client[*v1.Website]) error {
				_, err := sites.Patch(ctx, "blog", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
				return err
			}),
			step("another image, with a trace", func(ctx context.Context, sites *crd.Client[*v1.Website]) error {
				carrier := websites.NewSite(ctx)
				_, err := sites.Patch(ctx, "blog", types.MergePatchType, []byte(`{"metadata":{"annotations":{"traceparent":"`+carrier.Annotations["traceparent"]+`"}},"spec":{"image":"blog:2"}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: asSpecified,
	}, controllertest.Options{Config: config, Sample: sample, Budget: budget, Parallel: 24, ConvergeTimeout: 90 * time.Second, KeepNamespaces: true})
}

// asSpecified returns nil if the Deployment and the status are those of the Website.
func asSpecified(s *controllertest.State) error {
	site, deployment := s.Get("websites.web.example.com", "blog"), s.Get("deployments.apps", "blog")
	if (site == nil) != (deployment == nil) {
		return errors.New("one of website and deployment is missing")
	}
	if site == nil {
		return nil
	}
	var w v1.Website
	var d appsv1.Deployment
	if err := errors.Join(runtime.DefaultUnstructuredConverter.FromUnstructured(site.Object, &w), runtime.DefaultUnstructuredConverter.FromUnstructured(deployment.Object, &d)); err != nil {
		return err
	}
	switch {
	case w.DeletionTimestamp != nil || d.DeletionTimestamp != nil:
		return errors.New("being deleted")
	case *d.Spec.Replicas != w.Spec.Replicas || d.Spec.Template.Spec.Containers[0].Image != w.Spec.Image || !websites.Ready(&d):
		return errors.New("the deployment is not that of the website")
	case w.Status.ObservedGeneration != w.Generation || w.Status.ReadyReplicas != w.Spec.Replicas:
		return errors.New("the status is not that of the spec")
	}
	return nil
}
