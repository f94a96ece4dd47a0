package reconcile

import (
	"cmp"
	"fmt"
	"net/http"
	"time"
)

const leastStall = 5 * time.Minute

func (c *Controller[K]) stallTimeout() time.Duration {
	return cmp.Or(c.StallTimeout, max(leastStall, 2*min(c.Timeout, 1<<62-1)))
}

// Check reports whether the workers make progress, for a liveness endpoint; the request
// is ignored. If calls run and no call has ended for StallTimeout, it returns an error
// that names some keys, and the process should be restarted. It returns nil if Run does
// not run, or if no call runs.
func (c *Controller[K]) Check(*http.Request) error {
	r := c.current.Load()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	busy, stalled := r.busy, time.Since(r.progress)
	r.mu.Unlock()
	if busy == 0 || stalled < c.stallTimeout() {
		return nil
	}
	_, keys := r.runningKeys()
	return fmt.Errorf("reconcile: controller %q: no call has ended for %v: %d running: %q, %d keys waiting",
		c.Name, stalled.Round(time.Second), busy, keys, c.Queue.Len())
}

// Ready returns nil if Run runs and has called Reconcile once with each key that Sources
// reported before HasSynced was done, as the handlers of informers do with their first list.
// Otherwise its error has the number of keys that are left, or what Run waits for. The results
// of the calls do not matter. Of more than 65,536 keys the rest does not count.
//
// It fits shutdown's AddReady, for a process that must not be used before it has seen all
// objects. On a replica that waits for leadership Run does not run, so do not add Ready where
// standbys must be ready. Package operator does not add it.
func (c *Controller[K]) Ready() error {
	switch r := c.current.Load(); {
	case r == nil:
		return fmt.Errorf("reconcile: controller %q is not running", c.Name)
	case !r.synced.Load():
		return fmt.Errorf("reconcile: controller %q waits for HasSynced", c.Name)
	}
	if left := c.triggers.Uncalled(); left > 0 {
		return fmt.Errorf("reconcile: controller %q has not reconciled %d keys of the first list", c.Name, left)
	}
	return nil
}
