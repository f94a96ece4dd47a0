package outcome

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

// Write writes the status of obj, which Report has filled. If the schema lacks a field of it, such as
// while the CustomResourceDefinition is older than the program, Write returns an error with the field's name, and
// writes the other fields. After a call without an error, Ready then shows that one.
func Write[T controllerkit.Object](ctx context.Context, client controllerkit.Patcher[T], before, obj T, c Call) (T, error) {
	take := func(target T) { Take(target, obj) }
	stored, err := status.Patch(ctx, client, before, take)
	if _, ok := errors.AsType[*kube.UnknownFieldError](err); !ok {
		return stored, err
	}
	if list := conditions(obj); c.Err == nil && list != nil {
		c.Err, c.Class = err, reconcile.Class(err)
		ready, _ := c.ready()
		restore(list, before)
		if failed := status.Set(list, c.Generation, ready); failed != nil {
			return stored, errors.Join(err, failed)
		}
		c.setPhase(member(obj, "status"), ready)
	}
	_, failed := status.Patch(ctx, lenient[T]{client}, before, take)
	return stored, errors.Join(err, failed)
}

// lenient is a client whose patches lose the fields that the schema lacks.
type lenient[T controllerkit.Object] struct{ controllerkit.Patcher[T] }

func (l lenient[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	opts.FieldValidation = metav1.FieldValidationIgnore
	return l.Patcher.Patch(ctx, name, pt, data, opts, subresources...)
}
