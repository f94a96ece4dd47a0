package crd_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/watcher"
)

type (
	client  = *crd.Client[*Website]
	untyped = *unstructured.Unstructured
)

// The shape that package operator takes.
type listerOf[T any] interface {
	List(labels.Selector) ([]T, error)
}

type informerOf[L any] interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}

// infer stands for a function of package operator, which infers T and L.
func infer[T any, L listerOf[T]](informerOf[L], ...T) {}

// A client of package crd, and a dynamic client, are what each package takes.
var (
	_ controllerkit.Patcher[*Website]                    = client(nil)
	_ finalizer.Children[*crd.List[*Website]]            = client(nil)
	_ status.Updater[*Website]                           = client(nil)
	_ controllerkit.Patcher[*Website]                    = client(nil)
	_ status.Applier[*Website, any]                      = client(nil)
	_ controllerkit.Getter[*Website]                     = client(nil)
	_ controllerkit.Getter[*Website]                     = client(nil)
	_ controllerkit.Patcher[*Website]                    = client(nil)
	_ controllerkit.Patcher[*Website]                    = client(nil)
	_ watcher.Source[*Website]                           = watcher.Client[*Website](client(nil))
	_ informerOf[crd.Lister[*Website]]                   = (*crd.Informer[*Website])(nil)
	_ cache.ListerWatcherWithContext                     = client(nil).ListWatch(nil)
	_ cache.ListerWatcher                                = client(nil).ListWatch(nil)
	_ listerOf[*Website]                                 = crd.Lister[*Website]{}
	_ controllerkit.Patcher[untyped]                     = (*crd.DynamicClient)(nil)
	_ finalizer.Children[*unstructured.UnstructuredList] = (*crd.DynamicClient)(nil)
	_ status.Updater[untyped]                            = (*crd.DynamicClient)(nil)
	_ controllerkit.Patcher[untyped]                     = (*crd.DynamicClient)(nil)
	_ status.Applier[untyped, untyped]                   = (*crd.DynamicClient)(nil)
	_ controllerkit.Getter[untyped]                      = (*crd.DynamicClient)(nil)
	_ controllerkit.Getter[untyped]                      = (*crd.DynamicClient)(nil)
	_ controllerkit.Patcher[untyped]                     = (*crd.DynamicClient)(nil)
	_ controllerkit.Patcher[untyped]                     = (*crd.DynamicClient)(nil)
	_ watcher.Source[untyped]                            = watcher.Client[untyped](crd.Dynamic(nil))
)

// calls compiles only if the compiler infers the types of each call.
func calls(ctx context.Context, c client, w *Website, ri dynamic.ResourceInterface, u untyped) {
	mine := func(metav1.Object) bool { return true }
	_, _, _ = finalizer.Ensure(ctx, c, w, "example.com/f", nil)
	_ = finalizer.Delete(ctx, c, w, metav1.DeletePropagationBackground)
	_, _ = finalizer.Remaining(ctx, c, metav1.ListOptions{}, mine)
	_, _ = finalizer.DeleteAll(ctx, c, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
	_, _ = status.Update(ctx, c, w, func(*Website) {})
	_, _ = status.Patch(ctx, c, w, func(*Website) {})
	_, _ = status.Apply(ctx, "m", c, w, any(u))
	_, _ = ssa.Apply(ctx, "m", c.Apply, any(u))
	_, _ = ssa.TryApply(ctx, "m", c.Apply, any(u), w)
	_, _, _ = ssa.ApplyChanged(ctx, "m", c.Apply, any(u), w, nil)
	_, _, _ = ssa.Migrate(ctx, "m", c.Patch, w)
	_, _ = consistency.ConfirmLive(ctx, c, w)
	_, _ = owner.Claim(ctx, c, w, websiteKind, c, labels.Everything(), []*Website{w})
	_, _ = external.Once(ctx, c, w, external.Resource{})
	infer(c.Informer(0, nil), w)

	d := crd.Dynamic(ri)
	_, _, _ = finalizer.Ensure(ctx, d, u, "example.com/f", nil)
	_ = finalizer.Delete(ctx, d, u, metav1.DeletePropagationBackground)
	_, _ = finalizer.Remaining(ctx, d, metav1.ListOptions{}, mine)
	_, _ = finalizer.DeleteAll(ctx, d, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
	_, _ = status.Update(ctx, d, u, func(untyped) {})
	_, _ = status.Patch(ctx, d, u, func(untyped) {})
	_, _ = status.Apply(ctx, "m", d, u, u)
	_, _ = ssa.Apply(ctx, "m", d.Apply, u)
	_, _ = ssa.TryApply(ctx, "m", d.Apply, u, u)
	_, _, _ = ssa.ApplyChanged(ctx, "m", d.Apply, u, u, nil)
	_, _, _ = ssa.Migrate(ctx, "m", d.Patch, u)
	_, _ = consistency.ConfirmLive(ctx, d, u)
	_, _ = owner.Claim(ctx, d, u, websiteKind, d, labels.Everything(), []untyped{u})
	_, _ = external.Once(ctx, d, u, external.Resource{})
	_ = types.JSONPatchType
}

// TestFit keeps calls in use, which the compiler checks.
func TestFit(t *testing.T) { _ = calls }
