package reconcile

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// callContext is the context of a call. It behaves as a context of
// context.WithDeadlineCause whose loggers have the values key and triggers, but it makes
// the timer and the loggers only when they are used. Many calls find no work, and would
// otherwise spend most of their time on them.
type callContext[K comparable] struct {
	run      *run[K]
	parent   context.Context
	key      K
	why      uint64    // the triggers
	attempt  int       // calls since the key's last success, this one included
	deadline time.Time // zero means no Timeout

	real atomic.Pointer[realContext]
	mu   sync.Mutex // guards over, and the making of real
	over bool       // the call has returned
}

type realContext struct {
	context.Context
	cancel context.CancelFunc
}

func (r *run[K]) newCallContext(parent context.Context, key K, start time.Time, why uint64, attempt int) *callContext[K] {
	c := &callContext[K]{run: r, parent: parent, key: key, why: why, attempt: attempt}
	if r.Timeout > 0 {
		c.deadline = start.Add(r.Timeout)
	}
	return c
}

// make returns the real context. It is done if the call has returned.
func (c *callContext[K]) make() *realContext {
	if real := c.real.Load(); real != nil {
		return real
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if real := c.real.Load(); real != nil {
		return real
	}
	real := &realContext{}
	if c.deadline.IsZero() {
		real.Context, real.cancel = context.WithCancel(c.parent)
	} else {
		real.Context, real.cancel = context.WithDeadlineCause(c.parent, c.deadline, c.run.timeoutCause)
	}
	if c.over {
		real.cancel()
	}
	c.real.Store(real)
	return real
}

// end is called when the call has returned. It reports whether its Timeout was over at now.
func (c *callContext[K]) end(now time.Time) (timedOut bool) {
	c.mu.Lock()
	c.over = true
	real := c.real.Load()
	c.mu.Unlock()
	if real == nil {
		return !c.deadline.IsZero() && !now.Before(c.deadline)
	}
	timedOut = real.Err() == context.DeadlineExceeded //nolint:errorlint // a context returns this value
	real.cancel()
	return timedOut
}

// Deadline returns the deadline by Timeout. The parent has no deadline.
func (c *callContext[K]) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func (c *callContext[K]) Done() <-chan struct{} { return c.make().Done() }

func (c *callContext[K]) Err() error { return c.make().Err() }

// Value returns a value of the parent. A logger among them gets the values of the call.
// Other values come from the real context, so that package context finds it.
func (c *callContext[K]) Value(key any) any {
	switch key {
	case calls.Triggers{}:
		return c.triggers()
	case calls.Changed{}:
		return c.run.triggers.Changed(c.why)
	case calls.Attempt{}:
		return c.attempt
	case calls.Metrics{}:
		return any(c.run.metrics)
	case calls.Versions{}:
		return c
	case calls.Checks{}:
		return &c.run.checks
	case calls.Writes{}:
		if c.run.metrics != nil {
			return c
		}
		return nil
	}
	value := c.parent.Value(key)
	if value == nil { // nor has the real context one: package context finds the parent's
		return nil
	}
	logger, ok := value.(klog.Logger)
	if !ok {
		return c.make().Value(key)
	}
	if triggers := c.triggers(); triggers != nil {
		return logger.WithValues("key", loggable(c.key), "triggers", triggers)
	}
	return logger.WithValues("key", loggable(c.key))
}

// loggable returns key for a line of log, as a text if it is not printable: an author of
// objects may have written it, as the name in a reference to another object.
func loggable[K comparable](key K) any {
	text := fmt.Sprint(key)
	if printable := kube.Printable(text, snapshotText); printable != text {
		return printable
	}
	return key
}

// Wrote counts a write of the call.
func (c *callContext[K]) Wrote(kind string, sent bool) {
	c.run.metrics.ReconcileWrote(c.run.Name, kind, sent)
}

// Sending implements calls.VersionObserver. The events of writes that outlast the call are others'.
func (c *callContext[K]) Sending() { c.during(func() { c.run.echoes.Sending(c.key) }) }

// Answered implements calls.VersionObserver.
func (c *callContext[K]) Answered(v calls.Version) {
	c.during(func() { c.run.echoes.Answered(c.key, v) })
}

// during calls f, unless the call has returned.
func (c *callContext[K]) during(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		f()
	}
}

func (c *callContext[K]) triggers() []string {
	return c.run.triggers.Text(c.why, c.attempt > 1)
}

// Attempt returns the number of the call that ctx belongs to: 1 for the first call of a key
// and for the first call after a success, 2 for the call after one failure. It is the number
// of attempts in the call's line of log. It is 0 for other contexts.
func Attempt(ctx context.Context) int {
	n, _ := ctx.Value(calls.Attempt{}).(int)
	return n
}
