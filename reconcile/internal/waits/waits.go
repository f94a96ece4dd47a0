// Package waits ends the waits of several goroutines together, again and again.
package waits

import (
	"context"
	"sync"
)

// Waits makes contexts. The zero value is ready to use. It is safe for concurrent use.
type Waits struct {
	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	cancel context.CancelFunc
}

// Context returns a context with the values of a parent, which ends at the next End and not with a
// parent. A caller that gets it before it checks whether to wait misses no End.
func (w *Waits) Context(parent context.Context) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(parent))
	}
	return w.ctx
}

// End ends the context that Context returned, if it did.
func (w *Waits) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx != nil {
		w.cancel()
		w.ctx, w.cancel = nil, nil
	}
}
