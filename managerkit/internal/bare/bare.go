// Package bare finds out that a cache removes the managedFields of its objects.
package bare

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/calls"
)

// A Line is logged once, at the first apply that proves it. The zero Line is ready.
type Line struct{ once sync.Once }

// Check logs the line if the apply was a no-op that ssa.ApplyChanged could not skip, because a
// transform or the informer had removed the managedFields of the cached object: the response has the
// same version, with managedFields.
func (l *Line) Check(ctx context.Context, kind string, response metav1.Object) {
	cached, ok := ctx.Value(calls.Bare{}).(metav1.Object)
	if !ok || cached.GetUID() != response.GetUID() || cached.GetResourceVersion() != response.GetResourceVersion() || len(response.GetManagedFields()) == 0 {
		return
	}
	l.once.Do(func() {
		klog.FromContext(ctx).Info("Each ApplyChanged sends a request, because the cache removes metadata.managedFields",
			"kind", kind, "cure", "remove the transform of this kind in Cache.ByObject or DefaultTransform, or compact.NewInformer in Cache.NewInformer, or call ApplyChanged of an ssa.Memory")
	})
}
