// Package serial makes the calls of an event handler come one after another.
package serial

import (
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/listless"
)

// A Handler calls another handler, so that a loop can call it beside an informer.
type Handler struct {
	open *atomic.Bool // the loop takes keys

	mu   sync.Mutex
	next cache.ResourceEventHandler
}

// New returns a Handler of next. While open is false, it leaves out first lists if next needs none: after open becomes
// true, the loop must call Replay with each object of the store.
func New(next cache.ResourceEventHandler, open *atomic.Bool) *Handler {
	return &Handler{next: next, open: open}
}

// MetadataAlone reports whether the next handler needs no more than metadata.
func (h *Handler) MetadataAlone() bool { return headers.Alone(h.next) }

// OnAdd implements cache.ResourceEventHandler.
func (h *Handler) OnAdd(obj any, isInInitialList bool) {
	if isInInitialList && !h.open.Load() && listless.Is(h.next) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *Handler) OnUpdate(old, obj any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next.OnUpdate(old, obj)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *Handler) OnDelete(obj any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next.OnDelete(obj)
}

// Replay calls OnAdd with the object that has the key in the store, if there is one. It reads the
// store during the call, so that the handler gets no object after its deletion.
func (h *Handler) Replay(store cache.Store, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.MetadataAlone() && headers.Decodes(store) {
		if obj, ok := headers.Get(store, key); ok {
			h.next.OnAdd(obj, true)
		}
		return
	}
	if obj, ok, err := store.GetByKey(key); ok && err == nil {
		h.next.OnAdd(obj, true)
	}
}
