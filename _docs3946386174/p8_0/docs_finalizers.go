package page

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
)

const (
	oldName = "bucket.example.com"
	newName = "example.com/bucket"
)

// ensure guards the work by newName. Earlier releases added oldName.
func ensure[T metav1.Object](ctx context.Context, client controllerkit.Patcher[T], obj T, cleanup func(context.Context, finalizer.Held[T]) error) (held finalizer.Held[T], live bool, err error) {
	name := newName
	if obj.GetDeletionTimestamp() != nil && !finalizer.Has(obj, newName) {
		name = oldName // the API server adds no finalizer to a deleted object
	}
	held, live, err = finalizer.Ensure(ctx, client, obj, name, cleanup)
	if err == nil && live {
		_, err = finalizer.Remove(ctx, client, held.Object(), oldName)
	}
	return held, live && err == nil, err
}
