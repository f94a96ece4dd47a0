package status_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

// TestServerAtomicConditions: if the conditions are not a map by type, each apply removes those of the
// other managers. Apply returns an error that no retry cures. In a map it returns none.
func TestServerAtomicConditions(t *testing.T) {
	t.Parallel()
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, isMap := range []bool{true, false} {
		group := map[bool]string{true: "map.test.controllerkit.dev", false: "atomic.test.controllerkit.dev"}[isMap]
		d := widgetObject(group)
		if !isMap {
			version := d["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
			conditions := []string{"schema", "openAPIV3Schema", "properties", "status", "properties", "conditions"}
			unstructured.RemoveNestedField(version, append(conditions, "x-kubernetes-list-type")...)
			unstructured.RemoveNestedField(version, append(conditions, "x-kubernetes-list-map-keys")...)
		}
		testserver.InstallCRD(t, d)
		namespace := testserver.Namespace(t)
		widgets := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}).Namespace(namespace)
		blank := func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": namespace},
			}}
		}
		obj := createServed(t, widgets, blank())
		_, err := status.Apply(t.Context(), "a", applier{widgets}, obj, blank(), status.True("Ready", "Fine", ""))
		var mark controllerkit.RejectedError
		if isMap && err != nil {
			t.Errorf("apply of a map: %v", err)
		}
		if !isMap && (!errors.As(err, &mark) || !mark.Rejected() || !strings.Contains(err.Error(), "status: the API server stored the conditions, but status.conditions is not a map by type in the schema")) {
			t.Errorf("apply of an atomic list: %v, want an error that no retry cures", err)
		}
	}
}
