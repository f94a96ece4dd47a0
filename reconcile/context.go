package reconcile

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// callContext is the context that a call gets. It behaves as one of
// context.WithDeadlineCause with a logger, which it makes only when somebody asks
// for what such a context alone can tell. Arming a timer, stopping it and adding
// values to a logger were 40 % of a cycle whose Func does nothing, and 9 of 17
// allocations; many calls find nothing to do and ask for none of it.
type callContext[K comparable] struct {
	run      *run[K]
	calls    context.Context // what the call's context is derived from
	key      K
	why      uint64    // its triggers
	deadline time.Time // zero: none

	real atomic.Pointer[realContext]
	mu   sync.Mutex // guards over, and the making of real
	over bool       // the call has returned
}

type realContext struct {
	context.Context
	cancel context.CancelFunc
}

func (r *run[K]) newCallContext(calls context.Context, key K, start time.Time, why uint64) *callContext[K] {
	c := &callContext[K]{run: r, calls: calls, key: key, why: why}
	if r.Timeout > 0 {
		c.deadline = start.Add(r.Timeout)
	}
	return c
}

// make returns the real context. One that is asked for after the call is done.
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
		real.Context, real.cancel = context.WithCancel(c.calls)
	} else {
		real.Context, real.cancel = context.WithDeadlineCause(c.calls, c.deadline, c.run.timeoutCause)
	}
	if c.over {
		real.cancel()
	}
	c.real.Store(real)
	return real
}

// end says that the call has returned. It reports whether its Timeout was over.
func (c *callContext[K]) end() (timedOut bool) {
	c.mu.Lock()
	c.over = true
	real := c.real.Load()
	c.mu.Unlock()
	if real == nil {
		return !c.deadline.IsZero() && !time.Now().Before(c.deadline)
	}
	timedOut = real.Err() == context.DeadlineExceeded //nolint:errorlint // what a context returns
	real.cancel()
	return timedOut
}

// Deadline has no other source: calls has none.
func (c *callContext[K]) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func (c *callContext[K]) Done() <-chan struct{} { return c.make().Done() }

func (c *callContext[K]) Err() error { return c.make().Err() }

// Value needs the real context for most keys: context.Cause, and contexts that are
// derived from this one, find what they look for by a value.
func (c *callContext[K]) Value(key any) any {
	switch key {
	case c.run.loggerKey:
		if triggers := c.triggers(); triggers != nil {
			return c.run.logger.WithValues("key", c.key, "triggers", triggers)
		}
		return c.run.logger.WithValues("key", c.key)
	case triggersKey{}:
		return c.triggers()
	}
	return c.make().Value(key)
}

func (c *callContext[K]) triggers() []string {
	c.run.mu.Lock()
	_, retried := c.run.streaks[c.key]
	c.run.mu.Unlock()
	return c.run.triggers.text(c.why, retried)
}

// loggerKey is the key by which klog.FromContext finds a logger, which is not
// exported. If that looked for none the key is nil, and the logger of a call lacks
// the value key.
func loggerKey() any {
	var seen lookup
	_ = klog.FromContext(&seen)
	return seen.key
}

// lookup is a context that notes the last key that was looked for.
type lookup struct {
	context.Context
	key any
}

func (l *lookup) Value(key any) any {
	l.key = key
	return nil
}
