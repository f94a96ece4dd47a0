// Package guard keeps a panic of an informer's handler from ending the process.
package guard

import (
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/listless"
)

const (
	maxText    = 2048        // bounds the text of a panic in the log
	maxStack   = 4096        // bounds its stack
	panicEvery = time.Second // is the least time between two lines of a handler
)

// Handler is a handler whose panics are logged. client-go would end the process. The methods
// are called one after another, as client-go does, so the fields have no lock.
type Handler struct {
	cache.ResourceEventHandler

	// Logger returns the logger of a panic. Required.
	Logger func() klog.Logger

	logged  time.Time // of the last line
	omitted int       // panics since then
}

// MetadataAlone reports whether the handler needs no more than metadata.
func (h *Handler) MetadataAlone() bool { return headers.Alone(h.ResourceEventHandler) }

// Listless reports whether the handler needs no first list.
func (h *Handler) Listless() bool { return listless.Is(h.ResourceEventHandler) }

// OnAdd implements cache.ResourceEventHandler.
func (h *Handler) OnAdd(obj any, isInInitialList bool) {
	defer h.recovered()
	h.ResourceEventHandler.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *Handler) OnUpdate(oldObj, newObj any) {
	defer h.recovered()
	h.ResourceEventHandler.OnUpdate(oldObj, newObj)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *Handler) OnDelete(obj any) {
	defer h.recovered()
	h.ResourceEventHandler.OnDelete(obj)
}

// recovered is deferred.
func (h *Handler) recovered() {
	reason := recover()
	if reason == nil {
		return
	}
	if time.Since(h.logged) < panicEvery {
		h.omitted++ // a handler can panic at each of many objects
		return
	}
	stack := debug.Stack()
	h.Logger().Error(fmt.Errorf("panic: %s", kube.Printable(fmt.Sprint(reason), maxText)), "A handler panicked and missed the event",
		"handler", fmt.Sprintf("%T", h.ResourceEventHandler), "omitted", h.omitted, "stack", string(stack[:min(len(stack), maxStack)]))
	h.logged, h.omitted = time.Now(), 0
}
