package kubectltest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/kubectl/pkg/cmd/apply"

	"github.com/controllerkit/controllerkit/internal/kubectltest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func (w world) want(t testing.TB, what string, objects []*unstructured.Unstructured, others ...string) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(slices.Values(append(others, namesOf(objects)...))), w.found(t)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// define creates the kind of a custom resource in the group parents.example.com.
func define(t testing.TB, kind, scope string, labels map[string]any) schema.GroupVersionKind {
	t.Helper()
	plural := strings.ToLower(kind) + "s"
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".parents.example.com", "labels": labels},
		"spec": map[string]any{
			"group": "parents.example.com", "scope": scope, "names": map[string]any{"kind": kind, "plural": plural},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	})
	return schema.GroupVersionKind{Group: "parents.example.com", Version: "v1", Kind: kind}
}

const marked = "applyset.kubernetes.io/is-parent-type"

// idOf returns the id that kubectl computes for the set of the parent.
func idOf(kind schema.GroupVersionKind, namespace string) string {
	ref := &apply.ApplySetParentRef{Name: "parent", Namespace: namespace, RESTMapping: &meta.RESTMapping{GroupVersionKind: kind}}
	return apply.NewApplySet(ref, apply.ApplySetTooling{}, nil, nil).ID()
}

// parent is a parent named parent.
type parent struct {
	client    dynamic.ResourceInterface
	namespace string
	flag      string // of kubectl
}

func (w world) parent(kind schema.GroupVersionKind, namespace string) parent {
	r := schema.GroupResource{Group: kind.Group, Resource: strings.ToLower(kind.Kind) + "s"}
	return parent{w.Resource(r.WithVersion(kind.Version)).Namespace(namespace), namespace, r.String() + "/parent"}
}

func (p parent) create(t testing.TB, kind schema.GroupVersionKind, finalizers ...string) {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	u.SetName("parent")
	u.SetFinalizers(finalizers)
	if _, err := p.client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// patch changes the parent, and returns it.
func (p parent) patch(t testing.TB, data string) *unstructured.Unstructured {
	t.Helper()
	u, err := p.client.Patch(t.Context(), "parent", types.MergePatchType, []byte(data), metav1.PatchOptions{FieldManager: "kubectl-annotate"})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// read returns the live parent.
func (p parent) read(t testing.TB) *unstructured.Unstructured { return p.patch(t, "{}") }

// TestServerFromKubectl: the Set refuses a set of kubectl. After TakeOver it prunes the
// members that kubectl has created, in each namespace and in the cluster, and no other
// object, and kubectl refuses it.
func TestServerFromKubectl(t *testing.T) {
	palette := define(t, "Palette", "Cluster", map[string]any{marked: "true"})
	for _, kind := range []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}, palette} {
		t.Run(kind.Kind, func(t *testing.T) {
			w, config := newWorld(t), testserver.Config(t)
			p, objects := w.parent(kind, w.one), w.objects("red", w.one)
			if kind == palette {
				p, objects = w.parent(kind, ""), w.objects("red", w.one, w.two)
				p.create(t, kind)
				p.patch(t, `{"metadata":{"labels":{"applyset.kubernetes.io/id":"`+idOf(kind, p.namespace)+`"},"annotations":{"`+tooling+`":"kubectl/v1","applyset.kubernetes.io/contains-group-kinds":""}}}`)
			}
			if err := kubectltest.Kubectl(t.Context(), config, p.namespace, p.flag, objects...); err != nil {
				t.Fatal(err)
			}
			w.want(t, "created by kubectl", objects)
			foreign := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "object-0", "namespace": w.one}}}
			if _, err := w.Resource(resource("configmaps")).Namespace(w.one).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			live := p.patch(t, `{"metadata":{"finalizers":["`+finalizer+`"]}}`)
			s := newSet(t, config, kind)
			rest := objects[1:3]
			if _, err := s.Apply(t.Context(), live, members(rest)...); err == nil || !strings.Contains(err.Error(), `is "kubectl/`) {
				t.Fatalf("a set of kubectl: error %v", err)
			}
			if err := s.TakeOver(t.Context(), live, "kubectl"); err != nil {
				t.Fatal(err)
			}
			w.want(t, "taken over", objects, nameOf(foreign))
			if err := kubectltest.Kubectl(t.Context(), config, p.namespace, p.flag, rest...); err == nil || !strings.Contains(err.Error(), `managed by tooling "`+manager+`"`) {
				t.Errorf("kubectl on the set: error %v", err)
			}
			w.want(t, "refused by kubectl", objects, nameOf(foreign))
			if _, err := s.Apply(t.Context(), p.read(t), members(rest)...); err != nil {
				t.Fatal(err)
			}
			w.want(t, "pruned", rest, nameOf(foreign))
			if _, err := s.Delete(t.Context(), p.read(t)); err != nil {
				t.Fatal(err)
			}
			w.want(t, "deleted", nil, nameOf(foreign))
			p.patch(t, `{"metadata":{"finalizers":null}}`)
		})
	}
}

// TestServerToKubectl: kubectl refuses a set of ours. After a change of its annotation
// kubectl prunes the members that the Set has created and no other object, also in other
// namespaces, and the Set refuses it until it takes it over again.
func TestServerToKubectl(t *testing.T) {
	w, config := newWorld(t), testserver.Config(t)
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	s, p := newSet(t, config, kind), w.parent(kind, w.one)
	p.create(t, kind, finalizer)
	objects := w.objects("red", w.one, w.two)
	if _, err := s.Apply(t.Context(), p.read(t), members(objects)...); err != nil {
		t.Fatal(err)
	}
	rest := objects[1:3]
	if err := kubectltest.Kubectl(t.Context(), config, w.one, p.flag, rest...); err == nil || !strings.Contains(err.Error(), `managed by tooling "`+manager+`"`) {
		t.Errorf("kubectl on a set of ours: error %v", err)
	}
	w.want(t, "refused by kubectl", objects)
	p.patch(t, `{"metadata":{"annotations":{"`+tooling+`":"kubectl/v1"}}}`)
	if err := kubectltest.Kubectl(t.Context(), config, w.one, p.flag, rest...); err != nil {
		t.Fatal(err)
	}
	w.want(t, "pruned by kubectl", rest)
	if _, err := s.Apply(t.Context(), p.read(t), members(objects)...); err == nil || !strings.Contains(err.Error(), `is "kubectl/`) {
		t.Errorf("a set of kubectl: error %v", err)
	}
	w.want(t, "refused by the Set", rest)
	if err := s.TakeOver(t.Context(), p.read(t), "kubectl"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), p.read(t), members(objects)...); err != nil {
		t.Fatal(err)
	}
	w.want(t, "applied again", objects)
	if _, err := s.Delete(t.Context(), p.read(t)); err != nil {
		t.Fatal(err)
	}
	w.want(t, "deleted", nil)
	p.patch(t, `{"metadata":{"finalizers":null}}`)
}

// TestServerParentKinds: the Set and kubectl accept the same kinds of parents.
func TestServerParentKinds(t *testing.T) {
	w, config := newWorld(t), testserver.Config(t)
	widget := define(t, "Widget", "Namespaced", map[string]any{marked: "true"})
	gadget := define(t, "Gadget", "Namespaced", map[string]any{marked: "false"})
	plain := define(t, "Plain", "Namespaced", nil)
	for _, tt := range []struct {
		kind    schema.GroupVersionKind
		allowed bool
	}{
		{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, true},
		{schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, true},
		{schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"}, false},
		{schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, false},
		{widget, true},
		{gadget, true},
		{plain, false},
	} {
		t.Run(tt.kind.Kind, func(t *testing.T) {
			p := w.parent(tt.kind, w.one)
			p.create(t, tt.kind, finalizer)
			member := w.objects("red", w.one)[:1]
			_, err := newSet(t, config, tt.kind).Apply(t.Context(), p.read(t), members(member)...)
			if (err == nil) != tt.allowed || !tt.allowed && !strings.Contains(err.Error(), "a parent is a ConfigMap, a Secret") {
				t.Errorf("ours: allowed %v, error %v", tt.allowed, err)
			}
			err = kubectltest.Kubectl(t.Context(), config, w.one, p.flag, member...)
			want := "not permitted as an ApplySet parent"
			if tt.allowed {
				want = "managed by tooling" // ours
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("kubectl: error %v, want %q", err, want)
			}
			if tt.allowed {
				if _, err := newSet(t, config, tt.kind).Delete(t.Context(), p.read(t)); err != nil {
					t.Error(err)
				}
			}
			p.patch(t, `{"metadata":{"finalizers":null}}`)
		})
	}
}
