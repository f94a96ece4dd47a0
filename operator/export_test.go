package operator

import (
	"context"
	"net/http"
	"time"

	"github.com/controllerkit/controllerkit/operator/internal/optional"
)

// Register gives the informers to the Set.
func (op *Operator) Register() { op.register() }

// DebugServer returns the server of the page.
func (op *Operator) DebugServer() *http.Server { return op.debugServer }

// AskEvery sets how often the operator asks for optional resources.
func (op *Operator) AskEvery(d time.Duration) {
	op.asks = optional.Intervals{Absent: d, Present: d}
}

// Failed reports whether a read or an Apply of the call has failed, so that it prunes nothing.
func Failed(ctx context.Context) bool {
	call, err := callOf(ctx)
	return err == nil && call.failed
}
