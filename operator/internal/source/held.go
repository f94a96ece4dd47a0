package source

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

const (
	// sampled is how rarely Held estimates the size of an object: once in so many events, after
	// the first ones, because the estimate takes longer than the event.
	sampled = 64
	first   = 8
)

// Held is the first handler of an informer, and knows what its cache holds.
type Held struct {
	next   cache.ResourceEventHandler
	before chain // of Source.Shared, in front of next
	timed  bool  // note the time of events; set by Time

	objects, last atomic.Int64

	events, sizes int          // only the informer's goroutine uses them
	mean          atomic.Int64 // bytes of an object; only the informer's goroutine sets it
}

// Time makes LastEvent return the time of the last event. The informer must not run yet.
func (h *Held) Time() { h.timed = true }

// Size returns the number of objects, and about the bytes that they take.
func (h *Held) Size() (objects, bytes int64) {
	objects = h.objects.Load()
	return objects, objects * h.mean.Load()
}

// Objects returns the number of objects.
func (h *Held) Objects() int64 { return h.objects.Load() }

// LastEvent returns the time of the last event, which is zero without one, and without
// Time.
func (h *Held) LastEvent() time.Time {
	if at := h.last.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func (h *Held) note(objects int64, obj any) {
	h.objects.Add(objects)
	if h.timed {
		h.last.Store(time.Now().UnixNano())
	}
	if obj == nil {
		return
	}
	if h.events++; h.events <= first || h.events%sampled == 0 {
		h.sizes++
		mean := h.mean.Load()
		h.mean.Store(mean + (informer.Size(obj)-mean)/int64(min(h.sizes, sampled)))
	}
}

// MetadataAlone reports whether the next handler needs no more than metadata.
func (h *Held) MetadataAlone() bool { return headers.Alone(h.next) }

// OnAdd implements cache.ResourceEventHandler.
func (h *Held) OnAdd(obj any, isInInitialList bool) {
	h.note(1, obj)
	h.before.OnAdd(obj, isInInitialList)
	h.next.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *Held) OnUpdate(old, obj any) {
	h.note(0, obj)
	h.before.OnUpdate(old, obj)
	h.next.OnUpdate(old, obj)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *Held) OnDelete(obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); !ok || !malformed.Is(lost.Obj) { // which it has not seen
		h.note(-1, nil)
	}
	h.before.OnDelete(obj)
	h.next.OnDelete(obj)
}
