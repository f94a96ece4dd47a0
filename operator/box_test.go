package operator_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/internal/wire"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// A Box has a ConfigMap for each of its items.
type Box struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BoxSpec   `json:"spec"`
	Status BoxStatus `json:"status,omitzero"`
}

type BoxSpec struct {
	Items []string `json:"items,omitempty"`
	Text  string   `json:"text,omitempty"`
}

type BoxStatus struct {
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	URL                string `json:"url,omitempty"`
	Phase              string `json:"phase,omitempty"`
	Unknown            string `json:"unknown,omitempty"` // the schema lacks it

	LastHandledReconcileAt string             `json:"lastHandledReconcileAt,omitempty"`
	Conditions             []metav1.Condition `json:"conditions,omitempty"`
}

func (b *Box) DeepCopy() *Box {
	c := *b
	b.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Items = slices.Clone(b.Spec.Items)
	c.Status.Conditions = slices.Clone(b.Status.Conditions)
	return &c
}

func (b *Box) DeepCopyObject() runtime.Object { return b.DeepCopy() }

var boxVersion = schema.GroupVersion{Group: "box.example.com", Version: "v1"}

// installBoxes installs the CustomResourceDefinition of Box for the tests of a test.
func installBoxes(t *testing.T, version schema.GroupVersion) {
	t.Helper()
	text := map[string]any{"type": "string"}
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "boxes." + version.Group},
		"spec": map[string]any{
			"group": version.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": map[string]any{"items": map[string]any{"type": "array", "items": text}, "text": text}},
					"status": map[string]any{"type": "object", "properties": map[string]any{
						"observedGeneration": map[string]any{"type": "integer", "format": "int64"}, "url": text, "lastHandledReconcileAt": text,
						"phase": map[string]any{"type": "string", "enum": []any{"Up", "Coming", "Broken", "Going"}},
						"conditions": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
							"items": map[string]any{"type": "object", "required": []any{"type"}, "x-kubernetes-preserve-unknown-fields": true,
								"properties": map[string]any{"type": text}}},
					}},
				}}},
			}},
		},
	})
}

// ended is the end of a call.
type ended struct {
	result string
	err    error
}

// A shelf is an operator of boxes in a namespace. A test sets its functions before start.
type shelf struct {
	operator.Reconciler[*Box]
	register  func(op *operator.Operator) *operator.Controller // replaces Kind and Children
	t         *testing.T
	op        *operator.Operator
	c         *operator.Controller
	items     *operator.Reader[*corev1.ConfigMap]
	read      func(ctx context.Context, b *Box) (reconcile.Result, error) // of testReads and testOptional
	namespace string
	boxes     *crd.Client[*Box] // of the test
	kube      kubernetes.Interface
	logs      testlog.Logs
	ended     chan ended
	stop      func() error
	live      atomic.Bool // the caches may be too old

	mu       sync.Mutex
	requests []string
	during   func(request string) error // called before each request
}

// newShelf returns a shelf that applies its items.
func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{t: t, namespace: testserver.Namespace(t), logs: testlog.New(), ended: make(chan ended, 1000), kube: kubernetes.NewForConfigOrDie(testserver.Config(t))}
	boxes, err := crd.New[*Box](testserver.Config(t), boxVersion.WithKind("Box"), "boxes")
	if err != nil {
		t.Fatal(err)
	}
	s.boxes = boxes.Namespace(s.namespace)
	s.Reconciler = operator.Reconciler[*Box]{Reconcile: func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, err := s.c.Apply(ctx, s.wanted(b)...)
		return reconcile.Result{}, err
	}}
	return s
}

// wanted returns the items of a box.
func (s *shelf) wanted(b *Box) []any {
	objects := make([]any, len(b.Spec.Items))
	for i, item := range b.Spec.Items {
		objects[i] = newItem(s.namespace, item, b.Spec.Text)
	}
	return objects
}

func newItem(namespace, name, text string) *applycorev1.ConfigMapApplyConfiguration {
	return applycorev1.ConfigMap(name, namespace).WithData(map[string]string{"text": text})
}

// start runs the operator with the client of config.
func (s *shelf) start(options operator.Options) *shelf {
	s.t.Helper()
	config := rest.CopyConfig(testserver.Config(s.t))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			if text := s.describe(req); text != "" {
				s.mu.Lock()
				s.requests = append(s.requests, text)
				during := s.during
				s.mu.Unlock()
				if during != nil {
					if err := during(text); err != nil {
						return nil, err
					}
				}
			}
			return next.RoundTrip(req)
		})
	})
	options.Name = "shelf"
	if options.Namespace == "" {
		options.Namespace = s.namespace
	}
	if options.Namespace == "*" {
		options.Namespace = ""
	}
	var err error
	if s.op, err = operator.New(config, options); err != nil {
		s.t.Fatal(err)
	}
	if s.register != nil {
		s.c = s.register(s.op)
	} else {
		s.c = operator.Kind(s.op, boxVersion.WithResource("boxes"), s.Reconciler)
		s.items = operator.Children(s.c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	}
	s.c.Loop.Hook = func(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
		if s.live.Load() {
			ctx = context.WithValue(ctx, calls.LiveRead{}, true)
		}
		return ctx, func(result string, err error) { s.ended <- ended{result, err} }
	}
	s.stop = start(s.t, s.op, s.logs)
	return s
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// describe names a request of a call, such as "PATCH boxes/status a".
func (s *shelf) describe(req *http.Request) string {
	target, _, ok := wire.Parse(req)
	if !ok || target.Name == "" && req.Method == http.MethodGet || target.Resource.Group == "coordination.k8s.io" || target.Resource.Group == "events.k8s.io" {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s/%s", req.Method, target.Resource.Resource, target.Subresource), "/") + " " + target.Name
}

// sent returns the requests since the last call.
func (s *shelf) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.requests = nil }()
	return s.requests
}

// hook sets a function that is called before each request.
func (s *shelf) hook(during func(request string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.during = during
}

// create makes a box.
func (s *shelf) create(name, text string, items ...string) *Box {
	s.t.Helper()
	b := &Box{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: BoxSpec{Items: items, Text: text}}
	b, err := s.boxes.Create(s.t.Context(), b, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// edit patches the spec of a box.
func (s *shelf) edit(name, patch string) {
	s.t.Helper()
	if _, err := s.boxes.Patch(s.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// get returns the box that the API server has.
func (s *shelf) get(name string) *Box {
	s.t.Helper()
	b, err := s.boxes.Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// until waits for the end of a call after which ok returns "".
func (s *shelf) until(ok func(ended) string) {
	s.t.Helper()
	var last string
	for range 100 {
		e := receive(s.t, s.ended)
		if last = ok(e); last == "" {
			return
		}
	}
	s.t.Fatalf("after 100 calls: %s", last)
}

// ready returns the reason and message of the condition Ready.
func ready(b *Box) string {
	c := meta.FindStatusCondition(b.Status.Conditions, "Ready")
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s at %d: %s", c.Status, c.Reason, c.ObservedGeneration, c.Message)
}

// phases are those of the schema of Box.
func phases() map[kstatus.State]string {
	return map[kstatus.State]string{kstatus.Ready: "Up", kstatus.Progressing: "Coming", kstatus.Failed: "Broken", kstatus.Terminating: "Going"}
}
