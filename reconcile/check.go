package reconcile

import (
	"cmp"
	"fmt"
	"net/http"
	"time"
)

const leastStall = 5 * time.Minute

func (c *Controller[K]) stallTimeout() time.Duration {
	return cmp.Or(c.StallTimeout, max(leastStall, 2*c.Timeout))
}

// Check reports whether the workers make progress, for a liveness endpoint; the request
// is ignored. It returns an error that names some keys if calls run, none has ended for
// StallTimeout, and the process should be restarted. It returns nil if Run does not run,
// or if no call runs.
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
