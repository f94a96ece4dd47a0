// Package results makes what a Reconciler of controller-runtime returns what a loop of package reconcile gets.
package results

import (
	"context"
	"errors"
	"time"

	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Of returns r as a Func.
func Of[request comparable](r crreconcile.TypedReconciler[request]) reconcile.Func[request] {
	requeue := queue.Exponential[request](5*time.Millisecond, 5*time.Minute)
	return func(ctx context.Context, key request) (reconcile.Result, error) {
		got, err := r.Reconcile(ctx, key)
		result := reconcile.Result{RequeueAfter: max(got.RequeueAfter, 0), Priority: got.Priority}
		switch {
		case err != nil:
			if errors.Is(err, crreconcile.TerminalError(nil)) {
				err = terminalError{err}
			}
			// As in controller-runtime, the error decides when the key runs again.
			result.RequeueAfter = 0
		//lint:ignore SA1019 reconcilers still use it
		case got.Requeue && got.RequeueAfter <= 0: //nolint:staticcheck // reconcilers still use it
			result.RequeueAfter = requeue.When(key)
			return result, nil
		}
		requeue.Forget(key)
		return result, err
	}
}

// terminalError gives a TerminalError the method by which a loop knows it.
type terminalError struct{ error }

func (terminalError) Terminal() bool  { return true }
func (e terminalError) Unwrap() error { return e.error }
