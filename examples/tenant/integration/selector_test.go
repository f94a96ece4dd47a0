package integration_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSelector checks that an instance with -selector reconciles only the tenants
// that it selects, and that a change of labels moves a tenant to and from it.
func TestSelector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(w.replica("-selector=shard=a"))
	label := func(name, shard string) {
		t.Helper()
		if _, err := w.Tenants.TenancyV1alpha1().Tenants().Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"shard":"`+shard+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	untouched := func(name string, since int64) {
		t.Helper()
		got, err := w.Tenants.TenancyV1alpha1().Tenants().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.ObservedGeneration != since {
			t.Errorf("tenant %s of another instance: observedGeneration is %d, want %d", name, got.Status.ObservedGeneration, since)
		}
	}
	// The other tenant is created first, so that it would be reconciled first.
	green := w.create(tenant("green"))
	blue := tenant("blue")
	blue.Labels = map[string]string{"shard": "a"}
	blue = w.create(blue)
	w.awaitState(blue, created())
	untouched("green", 0)

	label("green", "a")
	w.awaitState(green, created())

	label("green", "b")
	w.edit("green") // generation 2, for another instance
	blue = w.edit("blue")
	w.awaitState(blue, edited())
	untouched("green", 1)

	label("green", "a")
	w.awaitState(green, edited())
	w.delete("green")
	w.delete("blue")
}
