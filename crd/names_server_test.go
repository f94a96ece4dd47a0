package crd_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// New accepts each group, version, kind and resource that the API server accepts in a
// CustomResourceDefinition.
func TestServerNames(t *testing.T) {
	config := testserver.Config(t)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	names := testnames.All(t)
	for part, with := range map[string]func(name string) (schema.GroupVersionKind, string){
		"group": func(name string) (schema.GroupVersionKind, string) {
			return schema.GroupVersionKind{Group: name, Version: "v1", Kind: "Thing"}, "things"
		},
		"version": func(name string) (schema.GroupVersionKind, string) {
			return schema.GroupVersionKind{Group: "example.com", Version: name, Kind: "Thing"}, "things"
		},
		"kind": func(name string) (schema.GroupVersionKind, string) {
			return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: name}, "things"
		},
		"resource": func(name string) (schema.GroupVersionKind, string) {
			return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}, name
		},
	} {
		t.Run(part, func(t *testing.T) {
			testnames.Compare(t, names, func(name string) error {
				kind, resource := with(name)
				_, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: m{
					"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
					"metadata": m{"name": resource + "." + kind.Group, "annotations": m{"api-approved.kubernetes.io": "unapproved, a test"}},
					"spec": m{
						"group": kind.Group, "scope": "Namespaced", "names": m{"plural": resource, "kind": kind.Kind, "singular": "singular", "listKind": "OneList"},
						"versions": []any{m{"name": kind.Version, "served": true, "storage": true, "schema": m{"openAPIV3Schema": m{"type": "object"}}}},
					},
				}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			}, func(name string) error {
				kind, resource := with(name)
				_, err := crd.New[*Website](config, kind, resource)
				return err
			}, nil)
		})
	}
}
