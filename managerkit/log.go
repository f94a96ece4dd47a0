package managerkit

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/controller"

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

// logConstructor returns the LogConstructor of a controller, which may be the builder's. A later
// controller-runtime may not have that field; then all loggers are that of the controller.
func logConstructor[request comparable](c controller.TypedController[request]) func(*request) logr.Logger {
	if v := reflect.Indirect(reflect.ValueOf(c)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("LogConstructor"); f.IsValid() && f.CanInterface() {
			if construct, ok := f.Interface().(func(*request) logr.Logger); ok && construct != nil {
				return construct
			}
		}
	}
	return func(*request) logr.Logger { return c.GetLogger() }
}
