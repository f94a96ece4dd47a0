package ssa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// TryApply takes no field of another manager, whatever the types of the old and the new
// value are, in the spec, in the status and in items of lists.
//
// Proves A1.
func TestServerTryApplyTypes(t *testing.T) {
	anything := map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	fields := map[string]any{"type": "object", "properties": map[string]any{
		"conf": anything,
		"items": map[string]any{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"}, "items": map[string]any{
			"type": "object", "required": []any{"name"}, "properties": map[string]any{"name": map[string]any{"type": "string"}, "conf": anything},
		}},
	}}
	crd := definition("Untyped")
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": fields, "status": fields}}}
	testserver.InstallCRD(t, crd)
	client := dynamic.NewForConfigOrDie(testserver.Config(t))
	gvk := schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: "Untyped"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(gvk, meta.RESTScopeNamespace)
	namespace := testserver.Namespace(t)
	requests := newDynamicFor(client, mapper)
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		t.Fatal(err)
	}
	resource := client.Resource(mapping.Resource).Namespace(namespace)

	const other = "example.org/fashion"
	values := []string{`{"host":"db","port":1}`, `{"host":"other"}`, `{}`, `["l"]`, `[]`, `[{"host":"db"}]`, `"text"`, `7`, `true`, `null`}
	places := map[string]string{"conf": `{"conf":%s}`, "item": `{"items":[{"name":"b"},{"name":"a","conf":%s}]}`}
	taken := 0
	for place, format := range places {
		for _, part := range []string{"spec", "status"} {
			request := requests.Apply
			var subresources []string
			if part == "status" {
				request, subresources = requests.ApplyStatus, []string{"status"}
			}
			object := func(value string) *unstructured.Unstructured {
				return object(fmt.Sprintf(`{"apiVersion":"ssa.example.com/v1","kind":"Untyped","metadata":{"name":"one","namespace":%q},%q:%s}`,
					namespace, part, fmt.Sprintf(format, value)))
			}
			for i, theirs := range values {
				for j, ours := range values {
					name := fmt.Sprintf("%s-%s-%d-%d", part, place, i, j)
					named := func(value string) *unstructured.Unstructured {
						u := object(value)
						u.SetName(name)
						return u
					}
					if _, err := resource.Create(t.Context(), func() *unstructured.Unstructured {
						u := named(`null`)
						delete(u.Object, part)
						return u
					}(), metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					live, err := ssa.Apply(t.Context(), other, request, named(theirs))
					if apierrors.IsInvalid(err) {
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					before := entryOf(live, other)
					after, err := ssa.TryApply(t.Context(), manager, request, named(ours), live)
					var conflict *ssa.ConflictError
					switch {
					case apierrors.IsInvalid(err):
					case errors.As(err, &conflict):
						if !apierrors.IsConflict(err) || conflict.Conflicts[0].Manager != other || !strings.HasPrefix(conflict.Conflicts[0].Field, "."+part) {
							t.Errorf("%s: %s over %s: %v", name, ours, theirs, err)
						}
						if owners := conflict.Owners(manager, live); owners[0].Operation != metav1.ManagedFieldsOperationApply {
							t.Errorf("%s: %s over %s: owners %v", name, ours, theirs, owners)
						}
						force := false
						if got, err := resource.Patch(t.Context(), name, types.ApplyPatchType, must2(json.Marshal(named(ours))), metav1.PatchOptions{FieldManager: string(manager), Force: &force}, subresources...); err == nil {
							taken++ // the API server alone takes it
							if entryOf(got, other) == before {
								t.Errorf("%s: %s over %s is refused, and takes nothing", name, ours, theirs)
							}
						}
					case err != nil:
						t.Errorf("%s: %s over %s: %v", name, ours, theirs, err)
					default:
						if got := entryOf(after, other); got != before {
							t.Errorf("%s: %s over %s: %s owned %s and owns %s", name, ours, theirs, other, before, got)
						}
					}
				}
			}
		}
	}
	t.Logf("%d conflicts that the API server does not report", taken)
	if taken == 0 {
		t.Error("the API server reports all conflicts: TryApply needs no live object any more")
	}
}

// entryOf returns the fields that a manager applied.
func entryOf(u *unstructured.Unstructured, manager string) string {
	for _, e := range u.GetManagedFields() {
		if e.Manager == manager {
			return e.FieldsV1.GetRawString()
		}
	}
	return ""
}

// If live is stale, TryApply fails, because another manager may have written since.
//
// Proves A1.
func TestServerTryApplyStale(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	live, err := ssa.Apply(t.Context(), manager, c.Apply, configMapOf(s.namespace, "red"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"data":{"size":"1"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = ssa.TryApply(t.Context(), manager, c.Apply, configMapOf(s.namespace, "blue"), live)
	var conflict *ssa.ConflictError
	if !apierrors.IsConflict(err) || errors.As(err, &conflict) {
		t.Errorf("error = %v, want a Conflict that is no ConflictError", err)
	}
	bare := live.DeepCopy()
	bare.ManagedFields = nil
	if _, err := ssa.TryApply(t.Context(), manager, c.Apply, configMapOf(s.namespace, "blue"), bare); err == nil || !strings.Contains(err.Error(), "metadata.managedFields") {
		t.Errorf("without managedFields: error = %v", err)
	}
}
