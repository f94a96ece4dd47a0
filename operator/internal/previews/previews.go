// Package previews runs the calls and the loops of a preview.
package previews

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
)

var errDone = errors.New("each key has run")

// Run calls run with a context that is done when each key has run, and returns its error, or one if it ended before.
func Run(ctx context.Context, p *preview.Preview, run func(context.Context) error) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-p.Done():
			stop(errDone) // without an effect after the end of ctx, which also ends the workers
		case <-running.Done():
		}
	}()
	err := run(running)
	if err == nil && !errors.Is(context.Cause(running), errDone) {
		err = errors.New("operator: the preview was stopped before each key has run")
	}
	return err
}

// Func returns a function whose calls are in the report.
func Func(p *preview.Preview, controller string, call reconcile.Func[types.NamespacedName]) reconcile.Func[types.NamespacedName] {
	return func(ctx context.Context, key types.NamespacedName) (res reconcile.Result, err error) {
		ctx, end := p.Begin(ctx, controller, strings.TrimPrefix(key.String(), "/"))
		defer func() {
			if v := recover(); v != nil {
				end(fmt.Errorf("panic: %v", v))
				panic(v)
			}
			end(err)
		}()
		return call(ctx, key)
	}
}
