package reconcile

import (
	"context"

	"github.com/controllerkit/controllerkit/internal/calls"
)

// explored registers the loop with package controllertest, if ctx comes from an
// exploration. end takes it back.
func (r *run[K]) explored(ctx context.Context) (end func()) {
	register, ok := ctx.Value(calls.Explored{}).(func(queue interface{ Len() int }, gated func() int) (end func()))
	if !ok {
		return func() {}
	}
	return register(r.Queue, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.gated)
	})
}
