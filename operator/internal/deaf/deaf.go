// Package deaf finds calls that go on after the end of their context.
package deaf

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/operator/internal/mistakes"
)

// Line is the line of log.
const Line = "A call goes on after its Timeout and keeps its worker: pass its context to all that waits, such as requests and channels"

const (
	slack = 5 * time.Second // for the end of a call
	quiet = time.Hour       // between two lines
)

// Calls are the running calls of a controller. Its fields are set before the first call.
type Calls struct {
	Timeout time.Duration // of a call; a call without one is not watched
	Slack   time.Duration // after it, if longer than 5s

	mu      sync.Mutex // guards the rest
	last    uint64     // number of a call
	running map[uint64]context.Context
	timer   *time.Timer // nil, or set to when the oldest running call is late or before
	logged  time.Time
}

// late is the time from the begin of a call, which is the deadline of its context minus Timeout, to when it is late.
func (c *Calls) late() time.Duration { return c.Timeout + max(c.Slack, slack) }

// Begin notes the begin of a call. The caller passes the result to End.
func (c *Calls) Begin(ctx context.Context) (number uint64) {
	if c.Timeout <= 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[uint64]context.Context{}
	}
	c.last++
	c.running[c.last] = ctx
	if c.timer == nil {
		c.timer = time.AfterFunc(c.late(), c.check)
	}
	return c.last
}

// End notes the end of a call.
func (c *Calls) End(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, number)
}

// check logs a call that is late.
func (c *Calls) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	next := time.Duration(-1)
	for _, ctx := range c.running {
		deadline, ok := ctx.Deadline()
		if !ok {
			continue
		}
		running := time.Since(deadline) + c.Timeout
		wait := c.late() - running
		if wait <= 0 {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && (c.logged.IsZero() || time.Since(c.logged) >= quiet) {
				c.logged = time.Now()
				mistakes.Note(ctx, mistakes.IgnoredContext)
				klog.FromContext(ctx).Info(Line, "timeout", c.Timeout, "running", running.Round(time.Second))
			}
			wait = c.late() // a later line can be due for it
		}
		if next < 0 || wait < next {
			next = wait
		}
	}
	if next >= 0 {
		c.timer = time.AfterFunc(next, c.check)
	}
}
