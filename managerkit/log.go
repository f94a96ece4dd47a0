package managerkit

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/managerkit/internal/requestlog"
	"github.com/controllerkit/controllerkit/reconcile"
)

// hook returns a Hook that gives each call the logger and the reconcileID that the workers of
// controller-runtime give it, and then calls next.
func (d *dispatch[request]) hook(next hook[request]) hook[request] {
	withID := requestlog.WithID()
	return func(ctx context.Context, key request) (context.Context, func(string, error)) {
		logger := d.logger(&key).WithValues("key", kube.Printable(fmt.Sprint(key), maxKey))
		if triggers := reconcile.Triggers(ctx); len(triggers) > 0 {
			logger = logger.WithValues("triggers", triggers)
		}
		ctx, logger = withID(ctx, logger)
		ctx = klog.NewContext(ctx, logger)
		if next == nil {
			return ctx, nil
		}
		return next(ctx, key)
	}
}

const maxKey = 512 // bytes of a key in the log

type hook[request comparable] = func(context.Context, request) (context.Context, func(string, error))
