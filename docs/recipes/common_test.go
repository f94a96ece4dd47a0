package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestServer runs the recipes that need an API server and the kind Widget.
func TestServer(t *testing.T) {
	testserver.Needed(t)
	// With -count, the definition of the last run is still being deleted.
	runs++
	widgetVersion.Group = fmt.Sprintf("run-%d.recipes.example.com", runs)
	testserver.InstallCRD(t, widgetDefinition())
	for name, test := range map[string]func(t *testing.T){
		"Migration": testMigration,
		"Wait":      testWait,
		"Schedule":  testSchedule,
		"Settings":  testSettings,
		"Stuck":     testStuck,
		"Phase":     testPhase,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// A Widget is the kind of the recipes.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WidgetSpec   `json:"spec,omitzero"`
	Status WidgetStatus `json:"status,omitzero"`
}

type WidgetSpec struct {
	Host  string          `json:"host,omitempty"` // before the migration
	Hosts []string        `json:"hosts,omitempty"`
	After string          `json:"after,omitempty"` // the name of a Deployment
	Every metav1.Duration `json:"every,omitzero"`
}

type WidgetStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Phase              string             `json:"phase,omitempty"`
	Color              string             `json:"color,omitempty"`
	LastRun            *metav1.Time       `json:"lastRun,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (w *Widget) DeepCopy() *Widget {
	c := *w
	w.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Hosts = slices.Clone(w.Spec.Hosts)
	c.Status.LastRun = w.Status.LastRun.DeepCopy()
	c.Status.Conditions = slices.Clone(w.Status.Conditions)
	return &c
}

func (w *Widget) DeepCopyObject() runtime.Object { return w.DeepCopy() }

var (
	widgetVersion = schema.GroupVersion{Group: "recipes.example.com", Version: "v1"}
	runs          int // of TestServer
)

func widgetDefinition() map[string]any {
	text := map[string]any{"type": "string"}
	object := func(properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "properties": properties}
	}
	condition := object(map[string]any{"type": text})
	condition["x-kubernetes-preserve-unknown-fields"] = true
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets." + widgetVersion.Group},
		"spec": map[string]any{
			"group": widgetVersion.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": object(map[string]any{
					"spec": object(map[string]any{"host": text, "hosts": map[string]any{"type": "array", "items": text}, "after": text, "every": text}),
					"status": object(map[string]any{
						"observedGeneration": map[string]any{"type": "integer", "format": "int64"}, "phase": text, "color": text, "lastRun": text,
						"conditions": map[string]any{"type": "array", "items": condition},
					}),
				})},
			}},
		},
	}
}

// newWidgets returns the client of all namespaces.
func newWidgets(t *testing.T, config *rest.Config) *crd.Client[*Widget] {
	t.Helper()
	client, err := crd.New[*Widget](config, widgetVersion.WithKind("Widget"), "widgets")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// start runs an operator until stop is called or the test ends, and fails the test if it sent a request
// that is not declared.
func start(t *testing.T, op *operator.Operator) (stop func(), logs testlog.Logs) {
	t.Helper()
	logs = testlog.New()
	return run(t, logs.Context(t.Context()), op.Run, func() {
		for _, line := range logs.Find("A request is not declared, so the Role of Rules does not allow it: call Writes") {
			t.Errorf("%v", line)
		}
	}), logs
}

// run calls a function until stop is called or the test ends.
func run(t *testing.T, ctx context.Context, f func(context.Context) error, stopped func()) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not return")
		}
		stopped()
	})
	t.Cleanup(stop)
	return stop
}

// await watches the object of a name until it is as wanted.
func await[T metav1.Object](t *testing.T, client interface {
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}, name string, wanted func(T) bool,
) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last any
	for event := range w.ResultChan() {
		last = event.Object
		if obj, ok := event.Object.(T); ok && event.Type != watch.Deleted && wanted(obj) {
			return obj
		}
	}
	t.Fatalf("%s is not as wanted: %+v", name, last)
	panic("not reached")
}

// receive returns the next value, within the time that a loaded machine may need.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing after a minute")
	}
	return v
}

// ready returns the status, reason and message of the condition Ready.
func ready(w *Widget) string {
	c := meta.FindStatusCondition(w.Status.Conditions, "Ready")
	if c == nil {
		return "none"
	}
	return strings.TrimSpace(string(c.Status) + " " + c.Reason + " " + c.Message)
}

// patch changes a Widget by a merge patch.
func patch(t *testing.T, client *crd.Client[*Widget], name, data string, subresources ...string) {
	t.Helper()
	if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(data), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatal(err)
	}
}

// requests records requests, and can end them with an error.
type requests struct {
	mu   sync.Mutex
	sent []string // guarded by mu
	// during is called before each request. Its error is that of the request.
	during func(req *http.Request) error
	// respond returns the response in place of the API server's, or nil.
	respond func(req *http.Request) *http.Response
}

// wrap makes clients of config record their requests.
func (r *requests) wrap(config *rest.Config) *rest.Config {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			r.mu.Lock()
			r.sent = append(r.sent, req.Method+" "+req.URL.RequestURI())
			r.mu.Unlock()
			if r.during != nil {
				if err := r.during(req); err != nil {
					return nil, err
				}
			}
			if r.respond != nil {
				if response := r.respond(req); response != nil {
					return response, nil
				}
			}
			return next.RoundTrip(req)
		})
	})
	return config
}

// count returns the number of requests that contain all texts.
func (r *requests) count(texts ...string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.sent {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(request, text) }) {
			n++
		}
	}
	return n
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var errCrash = errors.New("the process has crashed")

// registerNothing adds a controller that does nothing.
func registerNothing(op *operator.Operator) {
	operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: func(context.Context, *corev1.ConfigMap) (reconcile.Result, error) { return reconcile.Result{}, nil }, ReadOnly: true,
	})
}
