package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
)

// preview runs each key once.
func (op *Operator) preview(ctx context.Context) error {
	p := op.options.Preview
	op.Elector, op.Events, op.debugServer, op.options.Listen = nil, nil, nil, ""
	for _, c := range op.controllers {
		c.Loop.Queue, c.Loop.Resync = preview.NewQueue[types.NamespacedName](p), 0
		if c.Loop.Reconcile != nil {
			c.Loop.Reconcile = previewed(p, c.Loop.Name, c.Loop.Reconcile)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-p.Done():
			stop()
		case <-ctx.Done():
		}
	}()
	err := op.run(ctx)
	select {
	case <-p.Done():
	default:
		if err == nil {
			err = errors.New("operator: the preview was stopped before each key has run")
		}
	}
	return err
}

// previewed returns a function whose calls are in the report.
func previewed(p *preview.Preview, controller string, call reconcile.Func[types.NamespacedName]) reconcile.Func[types.NamespacedName] {
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
