package ondemand

import (
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/guard"
)

// listener is a handler of a Watch, which gets no event after its removal. client-go's own
// registrations say since 0.37 when a removed handler has ended; this one also does with 0.36.
type listener struct {
	guard.Handler
	handle cache.ResourceEventHandlerRegistration

	once    sync.Once
	removed chan struct{} // closed by remove
	turn    chan struct{} // has the token of the running call
}

// remove makes the handler drop its next events.
func (h *listener) remove() { h.once.Do(func() { close(h.removed) }) }

// wait waits for the running call of a removed handler. It has no other call afterwards.
func (h *listener) wait() {
	h.turn <- struct{}{}
	h.finish() // others may wait, too
}

// ended reports whether a removed handler runs no more.
func (h *listener) ended() bool {
	select {
	case h.turn <- struct{}{}:
		h.finish()
		return true
	default:
		return false
	}
}

// begin reports whether the handler gets the event. If so, the caller calls finish.
func (h *listener) begin() bool {
	select {
	case <-h.removed:
		return false
	case h.turn <- struct{}{}:
	}
	select {
	case <-h.removed:
		h.finish()
		return false
	default:
		return true
	}
}

func (h *listener) finish() { <-h.turn }

// OnAdd implements cache.ResourceEventHandler.
func (h *listener) OnAdd(obj any, isInInitialList bool) {
	if h.begin() {
		defer h.finish()
		h.Handler.OnAdd(obj, isInInitialList)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *listener) OnUpdate(oldObj, newObj any) {
	if h.begin() {
		defer h.finish()
		h.Handler.OnUpdate(oldObj, newObj)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *listener) OnDelete(obj any) {
	if h.begin() {
		defer h.finish()
		h.Handler.OnDelete(obj)
	}
}
