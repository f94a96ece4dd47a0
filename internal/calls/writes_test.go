package calls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applypolicyv1 "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

type observer []string

func (o *observer) Wrote(kind string, sent bool) { *o = append(*o, fmt.Sprint(kind, " ", sent)) }

// budgets is a client that accepts every write.
type budgets struct{ live *policyv1.PodDisruptionBudget }

func (b budgets) UpdateStatus(_ context.Context, obj *policyv1.PodDisruptionBudget, _ metav1.UpdateOptions) (*policyv1.PodDisruptionBudget, error) {
	return obj, nil
}

func (b budgets) ApplyStatus(context.Context, *applypolicyv1.PodDisruptionBudgetApplyConfiguration, metav1.ApplyOptions) (*policyv1.PodDisruptionBudget, error) {
	return b.live, nil
}

func (b budgets) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*policyv1.PodDisruptionBudget, error) {
	return b.live, nil
}

// TestPackagesReport: each function of ssa and status reports the request that it sends and its
// response, or the request that it skips.
func TestPackagesReport(t *testing.T) {
	const manager ssa.FieldManager = "example.com/test"
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "7", Generation: 1, ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "policy/v1", FieldsV1: metav1.NewFieldsV1(`{}`)},
	}}}
	c := budgets{budget}
	ready := status.True("Ready", "Fine", "")
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:color":{}}}`)},
		}},
		Data: map[string]string{"color": "red"},
	}
	apply := func(context.Context, *applycorev1.ConfigMapApplyConfiguration, metav1.ApplyOptions) (*corev1.ConfigMap, error) {
		return configMap, nil
	}
	config := func(color string) *applycorev1.ConfigMapApplyConfiguration {
		return applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": color})
	}
	// The server drops the label, so the Memory skips the second apply.
	memory := &ssa.Memory[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration]{}
	dropped := func(ctx context.Context) error {
		_, _, err := memory.ApplyChanged(ctx, manager, apply, config("red").WithLabels(map[string]string{"a": "b"}), configMap, applycorev1.ExtractConfigMap)
		return err
	}
	for _, tt := range []struct {
		name string
		run  func(ctx context.Context) error
		want string
	}{
		{"ssa.Apply", func(ctx context.Context) error { _, err := ssa.Apply(ctx, manager, apply, config("blue")); return err }, "apply true"},
		{"ssa.TryApply", func(ctx context.Context) error {
			_, err := ssa.TryApply(ctx, manager, apply, config("blue"), configMap)
			return err
		}, "apply true"},
		{"ssa.ApplyChanged", func(ctx context.Context) error {
			_, _, err := ssa.ApplyChanged(ctx, manager, apply, config("blue"), configMap, applycorev1.ExtractConfigMap)
			return err
		}, "apply true"},
		{"ssa.ApplyChanged of nothing", func(ctx context.Context) error {
			_, _, err := ssa.ApplyChanged(ctx, manager, apply, config("red"), configMap, applycorev1.ExtractConfigMap)
			return err
		}, "apply false"},
		{"ssa.Memory", dropped, "apply true"},
		{"ssa.Memory, again", dropped, "apply false"},
		{"status.Update", func(ctx context.Context) error {
			_, err := status.Update(ctx, c, budget, func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 1 })
			return err
		}, "status true"},
		{"status.Update of nothing", func(ctx context.Context) error {
			_, err := status.Update(ctx, c, budget, func(*policyv1.PodDisruptionBudget) {})
			return err
		}, "status false"},
		{"status.Patch", func(ctx context.Context) error {
			_, err := status.Patch(ctx, c, budget, func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 1 })
			return err
		}, "status true"},
		{"status.Patch of nothing", func(ctx context.Context) error {
			_, err := status.Patch(ctx, c, budget, func(*policyv1.PodDisruptionBudget) {})
			return err
		}, "status false"},
		{"status.Apply", func(ctx context.Context) error {
			_, err := status.Apply(ctx, string(manager), c, budget, applypolicyv1.PodDisruptionBudget("one", "default"), ready)
			return err
		}, "status true"},
		{"status.Apply of nothing", func(ctx context.Context) error {
			_, err := status.Apply(ctx, string(manager), c, budget, applypolicyv1.PodDisruptionBudget("one", "default"))
			return err
		}, "status false"},
	} {
		var got observer
		var written int
		ctx := context.WithValue(t.Context(), calls.Writes{}, &got)
		err := tt.run(context.WithValue(ctx, calls.Written{}, func(metav1.Object) { written++ }))
		if diff := cmp.Diff(observer{tt.want}, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
		if sent := strings.HasSuffix(tt.want, "true"); written > 1 || sent != (written == 1) {
			t.Errorf("%s: %d responses, and the request was sent: %t", tt.name, written, sent)
		}
	}
}

// TestPatchesReport: the patches of the packages finalizer, owner and external report their responses,
// and their dry runs, which are reads, do not.
func TestPatchesReport(t *testing.T) {
	c := budgets{&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "a"}}}
	var got []types.UID
	ctx := context.WithValue(t.Context(), calls.Written{}, func(obj metav1.Object) { got = append(got, obj.GetUID()) })
	for _, opts := range []metav1.PatchOptions{{}, {DryRun: []string{metav1.DryRunAll}}} {
		if _, err := kube.Patch(ctx, c, "one", nil, opts); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]types.UID{"a"}, got); diff != "" {
		t.Errorf("responses (-want +got):\n%s", diff)
	}
}
