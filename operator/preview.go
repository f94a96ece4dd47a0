package operator

import (
	"context"

	"github.com/controllerkit/controllerkit/operator/internal/previews"
)

// preview runs each key once.
func (op *Operator) preview(ctx context.Context) error {
	p := op.options.Preview
	op.Elector, op.Events, op.debugServer, op.options.Listen = nil, nil, nil, ""
	for _, c := range op.controllers {
		c.Loop.Queue, c.Loop.Resync = c.once, 0
		if c.Loop.Reconcile != nil {
			c.Loop.Reconcile = previews.Func(p, c.Loop.Name, c.Loop.Reconcile)
		}
	}
	return p.Run(ctx, op.run)
}
