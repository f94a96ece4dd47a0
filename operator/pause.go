package operator

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/operator/internal/outcome"
	"github.com/controllerkit/controllerkit/operator/internal/source"
	"github.com/controllerkit/controllerkit/reconcile"
)

// annotations returns the annotations by which users pause an object.
func (o Options) annotations() pause.Annotations {
	return pause.Annotations{Prefix: o.AnnotationPrefix}
}

// count counts the objects of For by their conditions, and those of Kind that are paused.
func (c *Controller) count(typ reflect.Type, s *source.Source) {
	s.Own(typ, c.readies, c.children != nil, c.op.options.annotations(), c.op.Metrics)
	if c.op.Debug != nil && s.Paused != nil {
		c.page().Paused = s.Paused
	}
}

// rest reports that an object is paused. Nothing else happens to it.
func (k *kind[T]) rest(ctx context.Context, key types.NamespacedName, before T, a pause.Annotations) (reconcile.Result, error) {
	k.failing.Forget(key)
	return reconcile.Result{}, outcome.Rest(ctx, k.Client.Namespace(before.GetNamespace()), before, a.Condition(before), k.writes)
}
