// Package definition reads CustomResourceDefinitions.
package definition

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddKinds adds the kinds that a CustomResourceDefinition serves to a mapper, and returns them. It ignores
// malformed ones, which the API server rejects.
func AddKinds(mapper *meta.DefaultRESTMapper, crd *unstructured.Unstructured) (kinds []schema.GroupVersionKind) {
	text := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, append([]string{"spec"}, fields...)...)
		return s
	}
	scope := meta.RESTScopeNamespace
	if text("scope") == "Cluster" {
		scope = meta.RESTScopeRoot
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if version["served"] != true || name == "" || text("names", "kind") == "" || text("names", "plural") == "" {
			continue
		}
		gv := schema.GroupVersion{Group: text("group"), Version: name}
		gvk := gv.WithKind(text("names", "kind"))
		mapper.AddSpecific(gvk, gv.WithResource(text("names", "plural")), gv.WithResource(text("names", "singular")), scope)
		kinds = append(kinds, gvk)
	}
	return kinds
}

// ErrNames is the error for names that another CustomResourceDefinition has.
var ErrNames = errors.New("spec.names: the API server does not accept them")

// IsEstablished reports whether the API server serves the kinds of a
// CustomResourceDefinition. It returns an error if the API server rejects them.
func IsEstablished(crd *unstructured.Unstructured) (bool, error) {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	established, refused := false, ""
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		switch {
		case condition["type"] == "Established":
			established = condition["status"] == "True"
		case condition["type"] == "NamesAccepted" && condition["status"] == "False":
			refused = fmt.Sprint(condition["reason"], ": ", condition["message"])
		}
	}
	if refused != "" && !established {
		return false, fmt.Errorf("%w: %s", ErrNames, refused)
	}
	return established, nil
}
