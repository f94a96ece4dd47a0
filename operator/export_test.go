package operator

import (
	"context"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// ChildKeys returns the keys that an event of a child runs.
func ChildKeys(c *Controller, child metav1.Object) []types.NamespacedName { return c.ownerKeys(child) }

// CacheOwner adds an object of Kind to the cache of a controller, whose informer does not run.
func CacheOwner(c *Controller, owner metav1.Object) error {
	for _, s := range c.op.sources {
		if s.GroupResource == c.owner {
			return s.GetStore().Add(owner)
		}
	}
	return errors.New("Kind has no informer")
}
