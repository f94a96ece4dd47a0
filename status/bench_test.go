package status_test

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/controllerkit/controllerkit/status"
)

type echo struct{}

func (echo) UpdateStatus(_ context.Context, o *policyv1.PodDisruptionBudget, _ metav1.UpdateOptions) (*policyv1.PodDisruptionBudget, error) {
	return o, nil
}

// BenchmarkUpdateUnchanged is the cost of the end of a reconcile that found nothing
// to do: copy, set a condition, compare, no request.
func BenchmarkUpdateUnchanged(b *testing.B) {
	obj := budget()
	b.ReportAllocs()
	for b.Loop() {
		got, err := status.Update(b.Context(), echo{}, obj, func(o *policyv1.PodDisruptionBudget) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.True("Ready", "Fine", ""))
		})
		if err != nil || got != obj {
			b.Fatal(got != obj, err)
		}
	}
}

// BenchmarkUpdateChanged is the same with a write, less the request.
func BenchmarkUpdateChanged(b *testing.B) {
	obj := budget()
	b.ReportAllocs()
	for b.Loop() {
		got, err := status.Update(b.Context(), echo{}, obj, func(o *policyv1.PodDisruptionBudget) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.False("Ready", "Broken", ""))
		})
		if err != nil || got == obj {
			b.Fatal(got == obj, err)
		}
	}
}

// BenchmarkPatchChanged is the patch of one condition, less the request.
func BenchmarkPatchChanged(b *testing.B) {
	obj := budget()
	client := &recorder[*policyv1.PodDisruptionBudget]{}
	b.ReportAllocs()
	for b.Loop() {
		_, err := status.Patch(b.Context(), client, obj, func(o *policyv1.PodDisruptionBudget) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.False("Ready", "Broken", ""))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApplyUnchanged is the decision from managedFields that nothing is to be
// sent.
func BenchmarkApplyUnchanged(b *testing.B) {
	obj := budget()
	obj.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "policy/v1", Subresource: "status",
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`),
	}}
	b.ReportAllocs()
	for b.Loop() {
		got, err := status.Apply(b.Context(), "m", &sender{}, obj, policyac.PodDisruptionBudget("one", "default"), status.True("Ready", "Fine", ""))
		if err != nil || got != obj {
			b.Fatal(got != obj, err)
		}
	}
}
