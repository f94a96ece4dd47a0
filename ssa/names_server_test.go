package ssa_test

import (
	"context"
	"slices"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// Apply accepts each field manager that the API server accepts, except invalid UTF-8, which
// managedFields show as another name.
func TestServerFieldManagers(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(testserver.Namespace(t))
	patch := func(name string) (*corev1.ConfigMap, error) {
		return client.Patch(t.Context(), "one", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"a":"1"}}`),
			metav1.PatchOptions{FieldManager: name, DryRun: []string{metav1.DryRunAll}, Force: new(true)})
	}
	owns := func(cm *corev1.ConfigMap, name string) bool {
		return slices.ContainsFunc(cm.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == name })
	}
	names := testnames.All(t)
	testnames.Compare(t, names, func(name string) error {
		_, err := patch(name)
		return err
	}, func(name string) error {
		requests := 0
		stored, err := ssa.Apply(t.Context(), ssa.FieldManager(name), func(ctx context.Context, c *corev1ac.ConfigMapApplyConfiguration, opts metav1.ApplyOptions) (*corev1.ConfigMap, error) {
			requests++
			opts.DryRun = []string{metav1.DryRunAll}
			return client.Apply(ctx, c, opts)
		}, corev1ac.ConfigMap("one", "").WithData(map[string]string{"a": "1"}))
		switch {
		case err == nil && !owns(stored, name):
			t.Errorf("%.80q: managedFields do not have it: %v", name, stored.ManagedFields)
		case err != nil && requests > 0:
			t.Errorf("%.80q: Apply sent a request that the API server rejects: %v", name, err)
		}
		return err
	}, func(name string) bool {
		stored, err := patch(name)
		return err == nil && !utf8.ValidString(name) && !owns(stored, name)
	})
}
