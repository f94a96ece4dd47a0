package operator

import (
	"context"

	"github.com/controllerkit/controllerkit/operator/internal/previews"
	"github.com/controllerkit/controllerkit/shutdown"
)

// preview runs each key once. The parts of the user's Group, such as a server or a migration, could write
// by clients of their own, or take a Lease of the present version, so they are left out.
func (op *Operator) preview(ctx context.Context) error {
	p := op.options.Preview
	op.Group = &shutdown.Group{GracePeriod: op.Group.GracePeriod}
	op.Elector, op.Events, op.debugServer, op.options.Listen = nil, nil, nil, ""
	for _, c := range op.controllers {
		c.Loop.Queue, c.Loop.Resync = c.once, 0
		if c.Loop.Reconcile != nil {
			c.Loop.Reconcile = previews.Func(p, c.Loop.Name, c.Loop.Reconcile)
		}
	}
	return p.Run(ctx, op.run)
}
