// Package requestlog gives the loop of package reconcile and its calls the loggers that the workers
// of controller-runtime have.
package requestlog

import (
	"context"
	"reflect"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// WithID returns a function that gives a call a reconcileID of its own, in its context and logger.
func WithID() func(context.Context, logr.Logger) (context.Context, logr.Logger) {
	asked := &asked{Context: context.Background()}
	controller.ReconcileIDFromContext(asked)
	return func(ctx context.Context, logger logr.Logger) (context.Context, logr.Logger) {
		if asked.key == nil {
			return ctx, logger
		}
		id := uuid.NewUUID()
		return context.WithValue(ctx, asked.key, id), logger.WithValues("reconcileID", id)
	}
}

// asked is a context that keeps the key of the value that is read from it: controller-runtime
// does not export the key of its reconcileID.
type asked struct {
	context.Context
	key any
}

func (a *asked) Value(key any) any {
	a.key = key
	return nil
}

// Without returns a logger that drops the values of the key "controller", for a logger that has one:
// some stores of logs reject a line with a key twice.
func Without(l logr.Logger) logr.Logger {
	if l.GetSink() == nil {
		return l
	}
	return l.WithSink(named{l.GetSink()})
}

type named struct{ logr.LogSink }

func (n named) WithValues(values ...any) logr.LogSink {
	kept := make([]any, 0, len(values))
	for i := 0; i < len(values); i += 2 {
		if values[i] != "controller" {
			kept = append(kept, values[i:min(i+2, len(values))]...)
		}
	}
	return named{n.LogSink.WithValues(kept...)}
}

func (n named) WithName(name string) logr.LogSink { return named{n.LogSink.WithName(name)} }

// WithCallDepth keeps file and line of the log correct.
func (n named) WithCallDepth(depth int) logr.LogSink {
	if s, ok := n.LogSink.(logr.CallDepthLogSink); ok {
		return named{s.WithCallDepth(depth)}
	}
	return n
}

// Constructor returns the LogConstructor of a controller, which may be the builder's. A later
// controller-runtime may not have that field; then all loggers are that of the controller.
func Constructor[request comparable](c controller.TypedController[request]) func(*request) logr.Logger {
	if v := reflect.Indirect(reflect.ValueOf(c)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("LogConstructor"); f.IsValid() && f.CanInterface() {
			if construct, ok := f.Interface().(func(*request) logr.Logger); ok && construct != nil {
				return construct
			}
		}
	}
	return func(*request) logr.Logger { return c.GetLogger() }
}
