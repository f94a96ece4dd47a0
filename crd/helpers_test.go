package crd_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// Website is a type as a user writes it, with the code of controller-gen.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WebsiteSpec   `json:"spec,omitempty"`
	Status WebsiteStatus `json:"status,omitempty"`
}

type WebsiteSpec struct {
	Host     string   `json:"host,omitempty"`
	Replicas int32    `json:"replicas,omitempty"`
	Aliases  []string `json:"aliases,omitempty"`
}

type WebsiteStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (w *Website) DeepCopy() *Website {
	if w == nil {
		return nil
	}
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Aliases = append([]string(nil), w.Spec.Aliases...)
	if w.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(w.Status.Conditions))
		for i := range w.Status.Conditions {
			w.Status.Conditions[i].DeepCopyInto(&out.Status.Conditions[i])
		}
	}
	return &out
}

func (w *Website) DeepCopyObject() runtime.Object { return w.DeepCopy() }

var (
	websiteKind     = schema.GroupVersionKind{Group: "crd.example.com", Version: "v1", Kind: "Website"}
	websiteResource = websiteKind.GroupVersion().WithResource("websites")
)

func website(namespace, name string) *Website {
	return &Website{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: WebsiteSpec{Host: name + ".example.com"}}
}

type m = map[string]any

// definition is the CustomResourceDefinition of a kind. Its schema has the fields of
// Website and spec.later, which Website lacks.
func definition(kind, plural, scope string) m {
	properties := m{
		"spec": m{"type": "object", "properties": m{
			"host": m{"type": "string"}, "replicas": m{"type": "integer"}, "later": m{"type": "string"},
			"aliases": m{"type": "array", "items": m{"type": "string"}},
		}},
		"status": m{"type": "object", "properties": m{
			"observedGeneration": m{"type": "integer"},
			"conditions": m{
				"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
				"items": m{"type": "object", "required": []any{"type", "status", "reason", "message", "lastTransitionTime"}, "properties": m{
					"type": m{"type": "string"}, "status": m{"type": "string"}, "reason": m{"type": "string"}, "message": m{"type": "string"},
					"lastTransitionTime": m{"type": "string", "format": "date-time"}, "observedGeneration": m{"type": "integer"},
				}},
			},
		}},
	}
	return m{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": m{"name": plural + ".crd.example.com"},
		"spec": m{
			"group": "crd.example.com", "scope": scope,
			"names": m{"kind": kind, "plural": plural},
			"versions": []any{m{
				"name": "v1", "served": true, "storage": true,
				"schema":           m{"openAPIV3Schema": m{"type": "object", "properties": properties}},
				"subresources":     m{"status": m{}},
				"selectableFields": []any{m{"jsonPath": ".spec.host"}},
			}},
		},
	}
}

// newFake returns a Fake with the objects.
func newFake(t testing.TB, objects ...*Website) *crd.Fake[*Website] {
	t.Helper()
	fake, err := crd.NewFake(websiteKind, "websites", objects...)
	if err != nil {
		t.Fatal(err)
	}
	return fake
}

// keep is a test whose cleanups are left out: the definition lasts as long as the server.
type keep struct{ testing.TB }

func (keep) Cleanup(func()) {}

// installWebsites installs the CustomResourceDefinition that the tests share.
func installWebsites(t testing.TB) {
	t.Helper()
	definitions := dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Get(t.Context(), "websites.crd.example.com", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		testserver.InstallCRD(keep{t}, definition("Website", "websites", "Namespaced"))
	} else if err != nil {
		t.Fatal(err)
	}
}

// serverClient installs the CustomResourceDefinition and returns a client of it.
func serverClient(t testing.TB) *crd.Client[*Website] {
	t.Helper()
	installWebsites(t)
	client, err := crd.New[*Website](testserver.Config(t), websiteKind, "websites")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// newWebsite is a newer version of Website: spec.later is in the schema, spec.newest is
// not.
type newWebsite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Later  string `json:"later,omitempty"`
		Newest string `json:"newest,omitempty"`
	} `json:"spec"`
}

func (w *newWebsite) DeepCopyObject() runtime.Object {
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// logged has the lines of a logger.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) into(ctx context.Context) context.Context {
	return klog.NewContext(ctx, funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, args)
	}, funcr.Options{}))
}

func (l *logged) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}
