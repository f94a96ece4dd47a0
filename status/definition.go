package status

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrDefinition is wrapped by the error of [CheckDefinition] if the definition was read
// and a status of its kind cannot be kept right.
var ErrDefinition = errors.New("status: the custom resource definition is unfit")

// Getter is the one method of a client that [CheckDefinition] calls: the dynamic client
// for customresourcedefinitions.apiextensions.k8s.io/v1 has it.
type Getter interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions, subresources ...string) (*unstructured.Unstructured, error)
}

// CheckDefinition reads the definition of a custom resource and names its defects that
// silently break a status. Call it at start and stop the program if the error is an
// [ErrDefinition], which lists:
//
//   - The version is not served.
//   - The status subresource is missing. This package gets NotFound, and other writes change the status together with the spec.
//   - The schema has no status, or lacks a field of a condition. The API server drops unknown fields, so each reconcile writes the same status again. Without a conversion webhook it also drops the fields that the stored version lacks.
//   - The conditions are not a map by type (x-kubernetes-list-type: map and x-kubernetes-list-map-keys: [type]). Then each [Apply] replaces the conditions of other managers.
//   - The schema accepts values that metav1.Condition cannot hold, such as an empty lastTransitionTime, because a field lacks its type or the format date-time. One such value from any writer breaks every typed read and list of the kind.
//
// A kind without conditions in its schema has only the first two defects. CheckDefinition
// needs the verb get on customresourcedefinitions in the group apiextensions.k8s.io,
// which only a ClusterRole grants; it can be limited to the name, such as
// widgets.example.com. Without that verb the error is a Forbidden: log it and go on. If
// the kind is not a custom resource, it is a NotFound.
func CheckDefinition(ctx context.Context, c Getter, resource schema.GroupVersionResource) error {
	if resource.Group == "" || resource.Version == "" || resource.Resource == "" {
		return fmt.Errorf("status: resource %q of group %q in version %q: name all three", resource.Resource, resource.Group, resource.Version)
	}
	if kube.IsNil(c) {
		return errNoClient
	}
	name := resource.GroupResource().String()
	definition, err := c.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("status: definition %s is not checked: a ClusterRole must allow the verb get on customresourcedefinitions in apiextensions.k8s.io: %w", name, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("status: there is no definition %s: install it, or leave out the check of a kind that is built in: %w", name, err)
	case err != nil:
		return fmt.Errorf("status: read definition %s: %w", name, err)
	}
	var found []error
	for _, defect := range defects(definition.Object, resource.Version) {
		found = append(found, fmt.Errorf("%w: %s version %s: %s", ErrDefinition, name, resource.Version, defect))
	}
	return errors.Join(found...)
}

// defects returns the defects of a version of a definition.
func defects(definition map[string]any, version string) []string {
	var v, stored map[string]any
	versions, _, _ := unstructured.NestedSlice(definition, "spec", "versions")
	for _, item := range versions {
		item, _ := item.(map[string]any)
		if item["name"] == version && item["served"] == true {
			v = item
		}
		if item["storage"] == true {
			stored = item
		}
	}
	if v == nil {
		return []string{"it is not served: add it, or set served to true"}
	}
	var found []string
	if _, ok, _ := unstructured.NestedMap(v, "subresources", "status"); !ok {
		found = append(found, "the status subresource is missing: add subresources: {status: {}}")
	}
	lost, conditions := dropped(v, false)
	if conditions == nil {
		return append(found, lost...)
	}
	if conditions["x-kubernetes-list-type"] != "map" || !reflect.DeepEqual(conditions["x-kubernetes-list-map-keys"], []any{"type"}) {
		found = append(found, "status.conditions is not a map by type: add x-kubernetes-list-type: map and x-kubernetes-list-map-keys: [type]")
	}
	found = append(found, lost...)
	// The conversion of a webhook is unknown.
	if strategy, _, _ := unstructured.NestedString(definition, "spec", "conversion", "strategy"); stored != nil && stored["name"] != version && strategy != "Webhook" {
		lost, _ := dropped(stored, true)
		for _, defect := range lost {
			found = append(found, fmt.Sprintf("it is stored as version %v: %s", stored["name"], defect))
		}
	}
	return found
}

// dropped returns the defects of a version's status, and the schema of its conditions, or
// nil. used means that the objects have conditions.
func dropped(version map[string]any, used bool) (found []string, conditions map[string]any) {
	root, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
	status, ok := property(root, "status")
	if !ok {
		if !keepsUnknown(root) {
			found = append(found, "the schema has no status, so that it is dropped: add it")
		}
		return found, nil
	}
	if conditions, ok = property(status, "conditions"); !ok {
		if used && !keepsUnknown(status) {
			found = append(found, "the schema has no status.conditions, so that they are dropped: add them")
		}
		return found, nil
	}
	items, _, _ := unstructured.NestedMap(conditions, "items")
	for _, field := range []struct{ name, want string }{
		{"type", "type: string"}, {"status", "type: string"}, {"observedGeneration", "type: integer"},
		{"lastTransitionTime", "type: string and format: date-time"}, {"reason", "type: string"}, {"message", "type: string"},
	} {
		p, ok := property(items, field.name)
		want := fmt.Sprint("type: ", p["type"])
		if format := p["format"]; format == "date-time" {
			want += fmt.Sprint(" and format: ", format)
		}
		switch {
		case !ok && !keepsUnknown(items):
			found = append(found, fmt.Sprintf("status.conditions has no field %s, so that it is dropped: add it", field.name))
		case want != field.want:
			found = append(found, fmt.Sprintf("status.conditions accepts values of %s that clients cannot read: add %s", field.name, field.want))
		}
	}
	return found, conditions
}

func property(schema map[string]any, name string) (map[string]any, bool) {
	p, ok, _ := unstructured.NestedMap(schema, "properties", name)
	return p, ok
}

func keepsUnknown(schema map[string]any) bool {
	return schema["x-kubernetes-preserve-unknown-fields"] == true
}
