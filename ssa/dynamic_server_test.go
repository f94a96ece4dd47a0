package ssa_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// dynamicClient has the request functions of unstructured objects.
type dynamicClient struct {
	Apply, ApplyStatus func(context.Context, *unstructured.Unstructured, metav1.ApplyOptions) (*unstructured.Unstructured, error)
}

func newDynamic(t *testing.T, kinds ...schema.GroupVersionKind) dynamicClient {
	t.Helper()
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	for _, kind := range kinds {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	return newDynamicFor(client, mapper)
}

func newDynamicFor(client dynamic.Interface, mapper meta.RESTMapper) dynamicClient {
	return dynamicClient{Apply: ssa.Dynamic(client, mapper), ApplyStatus: ssa.Dynamic(client, mapper, "status")}
}

// The client of unstructured objects has all that typed ones have.
//
// Proves A3.
func TestServerDynamic(t *testing.T) {
	namespace := testserver.Namespace(t)
	c := newDynamic(t)
	configuration := func(color string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "one", "namespace": namespace},
			"data":     map[string]any{"color": color},
		}}
	}
	live, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration("red"), nil, nil)
	if err != nil || !applied {
		t.Fatalf("applied = %v, error %v", applied, err)
	}
	again, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration("red"), live, nil)
	if err != nil || applied || again != live {
		t.Errorf("the same: applied = %v, error %v", applied, err)
	}
	_, err = ssa.TryApply(t.Context(), "example.org/fashion", c.Apply, configuration("blue"), nil)
	var conflict *ssa.ConflictError
	if !errors.As(err, &conflict) || conflict.Conflicts[0].Field != ".data.color" {
		t.Errorf("error = %v, want a ConflictError about .data.color", err)
	}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace, "labels": map[string]any{"a": "b"}},
	}}
	if ns, err := ssa.Apply(t.Context(), manager, c.Apply, cluster); err != nil || ns.GetLabels()["a"] != "b" {
		t.Errorf("a Namespace: %v, error %v", ns, err)
	}
	if err := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	config := configuration("red")
	config.SetUID(live.GetUID())
	if _, err := ssa.Apply(t.Context(), manager, c.Apply, config); !errors.Is(err, ssa.ErrUIDMismatch) {
		t.Errorf("error = %v, want ErrUIDMismatch", err)
	}
}
