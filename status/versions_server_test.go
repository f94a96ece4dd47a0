package status_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

// TestServerApplyRemovedVersion: if managedFields have an entry of a version that the
// CustomResourceDefinition has lost, Update and Patch write the status, and the error of
// Apply is rejected and names the cure.
func TestServerApplyRemovedVersion(t *testing.T) {
	t.Parallel()
	v, namespace := testserver.InstallVersioned(t), testserver.Namespace(t)
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"a": "1"}}}
	object.SetAPIVersion(v.Kind.Group + "/v1alpha1")
	object.SetKind(v.Kind.Kind)
	object.SetName("one")
	if _, err := v.At("v1alpha1", namespace).Create(t.Context(), object, metav1.CreateOptions{FieldManager: "creator"}); err != nil {
		t.Fatal(err)
	}
	v.Remove(t, "v1alpha1")
	c := v.At("v1", namespace)
	get := func() *unstructured.Unstructured {
		live, err := c.Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return live
	}
	config := new(unstructured.Unstructured)
	config.SetGroupVersionKind(v.Kind)
	config.SetNamespace(namespace)
	config.SetName("one")
	_, err := status.Apply(t.Context(), "example.com/status", applier{c}, get(), config, status.True("Ready", "Done", ""))
	var rejected controllerkit.RejectedError
	if !errors.Is(err, kube.ErrRemovedVersion) || !errors.As(err, &rejected) || !rejected.Rejected() || !strings.Contains(err.Error(), "ssa.Migrate") {
		t.Errorf("Apply: error %v, want a rejected one that names ssa.Migrate", err)
	}
	set := func(value int64) func(u *unstructured.Unstructured) error {
		return func(u *unstructured.Unstructured) error {
			return unstructured.SetNestedField(u.Object, value, "status", "n")
		}
	}
	if _, err := status.Update(t.Context(), c, get(), set(1)); err != nil {
		t.Errorf("Update: %v", err)
	}
	if _, err := status.Patch(t.Context(), c, get(), set(2)); err != nil {
		t.Errorf("Patch: %v", err)
	}
	if n, _, _ := unstructured.NestedInt64(get().Object, "status", "n"); n != 2 {
		t.Errorf("status.n is %d", n)
	}
}
