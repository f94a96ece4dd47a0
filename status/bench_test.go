package status_test

import (
	"context"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
