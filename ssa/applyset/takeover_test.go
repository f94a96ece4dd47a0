package applyset_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds of parents that kubectl rejects are an error with the cure, before the parent or a
// member is read. Deletion works for each kind.
func TestSetParentKinds(t *testing.T) {
	const marked = "applyset.kubernetes.io/is-parent-type"
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	for _, tt := range []struct {
		name   string
		kind   schema.GroupVersionKind
		labels map[string]string
		none   bool // no CustomResourceDefinition
		want   string
	}{
		{name: "built in", kind: schema.GroupVersionKind{Version: "v1", Kind: "ServiceAccount"}, want: "ParentKind is ServiceAccount: a parent is a ConfigMap, a Secret"},
		{name: "built in, of a group", kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, want: "which no CustomResourceDefinition defines"},
		{name: "no definition", kind: gvk, none: true, want: "which no CustomResourceDefinition defines"},
		{name: "no label", kind: gvk, want: "add the label " + marked + "=true to the CustomResourceDefinition widgets.example.com"},
		{name: "label", kind: gvk, labels: map[string]string{marked: "true"}},
		{name: "any value, as for kubectl", kind: gvk, labels: map[string]string{marked: ""}},
		{name: "Secret", kind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, _, _ := cached(0)
			parent := &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: tt.kind.GroupVersion().String(), Kind: tt.kind.Kind},
				ObjectMeta: metav1.ObjectMeta{Name: "parent", Namespace: "a", UID: "u", ResourceVersion: "1", Finalizers: []string{setFinalizer}},
			}
			objects := []runtime.Object{parent}
			if !tt.none {
				objects = append(objects, &metav1.PartialObjectMetadata{
					TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
					ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", Labels: tt.labels},
				})
			}
			client := metadataClient(objects...)
			mapper := setMapper(gvk)
			mapper.Add(gvk, meta.RESTScopeNamespace)
			s.ParentKind, s.Metadata, s.Mapper = tt.kind, client, mapper
			for name, method := range map[string]func() error{
				"Apply": func() error { _, err := s.Apply(t.Context(), parent); return err },
				"Plan":  func() error { _, err := s.Plan(t.Context(), parent); return err },
				"TakeOver": func() error {
					err := s.TakeOver(t.Context(), parent, "kubectl")
					if err != nil && strings.Contains(err.Error(), "the parent has no set") {
						return nil
					}
					return err
				},
			} {
				client.ClearActions()
				if err := method(); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%s: error %v, want %q", name, err, tt.want)
				}
				if n := len(client.Actions()); tt.want != "" && n > 1 {
					t.Errorf("%s: %d requests: %v", name, n, client.Actions())
				}
			}
			if _, err := s.Delete(t.Context(), parent); err != nil {
				t.Errorf("Delete: error %v", err)
			}
			// The kind is read once.
			client.ClearActions()
			if _, err := s.Apply(t.Context(), parent); tt.want == "" && err == nil {
				for _, a := range client.Actions() {
					if a.GetResource().Resource == "customresourcedefinitions" {
						t.Error("the CustomResourceDefinition was read again")
					}
				}
			}
		})
	}
	s, client, parent, _ := cached(0)
	if err := s.TakeOver(t.Context(), parent, "kubectl"); err != nil || len(client.Actions()) != 1 {
		t.Errorf("the Set's own: error %v, requests %v", err, client.Actions())
	}
	s.Metadata = nil
	if err := s.TakeOver(t.Context(), parent, "kubectl"); err == nil || !strings.Contains(err.Error(), "Metadata is nil") {
		t.Errorf("bad input: error %v", err)
	}
}
