package status_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/dynamic"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

// dryRunStatus makes a dry run of each apply.
type dryRunStatus struct {
	policyclient.PodDisruptionBudgetInterface
}

func (d dryRunStatus) ApplyStatus(ctx context.Context, c *policyac.PodDisruptionBudgetApplyConfiguration, opts metav1.ApplyOptions) (*policyv1.PodDisruptionBudget, error) {
	opts.DryRun = []string{metav1.DryRunAll}
	return d.PodDisruptionBudgetInterface.ApplyStatus(ctx, c, opts)
}

// Apply accepts the field managers that the API server accepts and can show.
func TestServerFieldManagers(t *testing.T) {
	client, requests := newBudgets(t)
	live := createBudget(t, client)
	testnames.Compare(t, testnames.All(t), func(name string) error {
		_, err := client.Patch(t.Context(), live.Name, types.ApplyPatchType, []byte(`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"one"}}`),
			metav1.PatchOptions{FieldManager: name, DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}, func(name string) error {
		before := requests.Load()
		stored, err := status.Apply(t.Context(), name, dryRunStatus{client}, live, policyac.PodDisruptionBudget(live.Name, live.Namespace), status.True("Ready", "Ready", ""))
		switch {
		case err != nil && requests.Load() > before:
			t.Errorf("%.80q: Apply sent a request that the API server rejects: %v", name, err)
		case err == nil && !slices.ContainsFunc(stored.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == name }):
			t.Errorf("%.80q: managedFields do not have it, so that no apply would be a no-op: %v", name, stored.ManagedFields)
		}
		return err
	}, func(name string) bool { return !utf8.ValidString(name) })
}

// Set accepts the types and reasons that the API server accepts by the schema that
// controller-gen makes of metav1.Condition, except a type whose name is longer than built-in
// kinds accept.
func TestServerConditionNames(t *testing.T) {
	const group = "conditions.test.controllerkit.dev"
	object := widgetObject(group)
	properties := at(object, "spec", "versions", "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items", "properties")
	properties["type"] = map[string]any{"type": "string", "maxLength": int64(316),
		"pattern": `^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`}
	properties["reason"].(map[string]any)["maxLength"] = int64(1024)
	testserver.InstallCRD(t, object)
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	client := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}).Namespace(testserver.Namespace(t))
	live := createServed(t, client, &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"}}})
	compare := func(with func(name string) metav1.Condition, reason func(name string) bool) {
		testnames.Compare(t, testnames.All(t), func(name string) error {
			c := with(name)
			u := live.DeepCopy()
			u.Object["status"] = map[string]any{"conditions": []any{map[string]any{
				"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
			}}}
			_, err := client.UpdateStatus(t.Context(), u, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}, func(name string) error {
			var conditions []metav1.Condition
			return status.Set(&conditions, 1, with(name))
		}, reason)
	}
	compare(func(name string) metav1.Condition { return status.True(name, "Reason", "") }, func(name string) bool {
		slash := strings.IndexByte(name, '/')
		return len(name)-slash-1 > 63 || slash > 253
	})
	compare(func(name string) metav1.Condition { return status.True("Ready", name, "") }, nil)
}
