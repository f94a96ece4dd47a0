package kubectltest_test

import (
	"context"
	"testing"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// flux returns a function that applies objects with Flux's manager and its defaults, and deletes
// those that the call before had and this one lacks, as Flux's inventory does.
func flux(t testing.TB, config *rest.Config) func(ctx context.Context, objects []*unstructured.Unstructured) error {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	manager := ssa.NewResourceManager(c, nil, ssa.Owner{Field: "flux", Group: "flux.example.com"})
	manager.SetConcurrency(8) // as many as a Set
	var before []*unstructured.Unstructured
	return func(ctx context.Context, objects []*unstructured.Unstructured) error {
		wanted := map[string]bool{}
		for _, o := range objects {
			wanted[o.GetName()] = true
		}
		var stale []*unstructured.Unstructured
		for _, o := range before {
			if !wanted[o.GetName()] {
				stale = append(stale, o)
			}
		}
		before = nil
		for _, o := range objects { // the manager changes its arguments
			before = append(before, o.DeepCopy())
		}
		if _, err := manager.ApplyAllStaged(ctx, objects, ssa.DefaultApplyOptions()); err != nil {
			return err
		}
		_, err := manager.DeleteAll(ctx, stale, ssa.DefaultDeleteOptions())
		return err
	}
}
