package malformed

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// AddEventHandler implements cache.SharedInformer.
func (i *Informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (i *Informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &period})
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *Informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if _, takes := h.(Taker); !takes && !kube.IsNil(h) {
		h = Fit(h)
	}
	return i.SharedIndexInformer.AddEventHandlerWithOptions(h, options)
}

// Taker is a handler that an [Informer] calls with each [Object], too, because its own handlers have a
// Handler.
type Taker interface {
	cache.ResourceEventHandler
	TakesMalformed()
}

// Fit returns a Handler that calls next.
func Fit(next cache.ResourceEventHandler) *Handler {
	return &Handler{next, map[cache.ObjectName]any{}}
}

// Handler is a handler that may get an [Object]. It calls another one with objects that fit:
//
//   - If an object becomes malformed, or changes while it is, next gets an update to its last
//     state that fits with the new metadata, so that its keys are queued.
//   - If it fits again, next gets an update from there.
//   - If next has not seen the object, it gets no event until the object fits, which is an
//     addition, or is deleted: that is a cache.DeletedFinalStateUnknown with the [Object].
type Handler struct {
	next cache.ResourceEventHandler
	last map[cache.ObjectName]any // what next has seen last of the malformed objects
}

// OnAdd implements cache.ResourceEventHandler.
func (h *Handler) OnAdd(obj any, isInInitialList bool) {
	if !Is(obj) {
		h.next.OnAdd(obj, isInInitialList)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *Handler) OnUpdate(before, after any) {
	old, wasBad := before.(*Object)
	bad, isBad := after.(*Object)
	if !wasBad && !isBad {
		h.next.OnUpdate(before, after)
		return
	}
	if wasBad {
		before = h.take(old)
	}
	switch {
	case before == nil && isBad:
	case before == nil:
		h.next.OnAdd(after, false)
	case !isBad:
		h.next.OnUpdate(before, after)
	case uid(before) != bad.UID: // another object of the name, of which no state fits
		h.next.OnDelete(cache.DeletedFinalStateUnknown{Key: nameOf(bad).String(), Obj: before})
	default:
		now := before // a resync
		if before.(metav1.Object).GetResourceVersion() != bad.ResourceVersion {
			now = with(before, bad)
		}
		h.last[nameOf(bad)] = now
		h.next.OnUpdate(before, now)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *Handler) OnDelete(obj any) {
	lost, missed := obj.(cache.DeletedFinalStateUnknown)
	if missed {
		obj = lost.Obj
	}
	bad, ok := obj.(*Object)
	if !ok {
		if o, ok := obj.(metav1.Object); ok {
			delete(h.last, cache.MetaObjectToName(o))
		}
		if missed {
			obj = lost
		}
		h.next.OnDelete(obj)
		return
	}
	last := h.take(bad)
	switch {
	case last == nil:
		h.next.OnDelete(cache.DeletedFinalStateUnknown{Key: nameOf(bad).String(), Obj: bad})
	case missed:
		h.next.OnDelete(cache.DeletedFinalStateUnknown{Key: lost.Key, Obj: last})
	default:
		h.next.OnDelete(with(last, bad))
	}
}

// Leave is OnDelete for an object that was not deleted, and is not the handler's any more. If next has
// not seen the object, it gets no event.
func (h *Handler) Leave(obj any) {
	if bad, ok := obj.(*Object); ok && h.last[nameOf(bad)] == nil {
		return
	}
	h.OnDelete(obj)
}

// take removes and returns what next has seen last of an object, or nil.
func (h *Handler) take(o *Object) any {
	last := h.last[nameOf(o)]
	delete(h.last, nameOf(o))
	return last
}

func nameOf(o *Object) cache.ObjectName { return cache.MetaObjectToName(o) }

// with returns a copy of the last state that fits, with the metadata of a malformed one.
func with(last any, bad *Object) any {
	obj := last.(runtime.Object).DeepCopyObject()
	if m := metadata(obj); m != nil {
		*m = *bad.ObjectMeta.DeepCopy()
	}
	return obj
}

// metadata returns the metadata of an object that embeds it, or nil.
func metadata(obj any) *metav1.ObjectMeta {
	if a, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := a.GetObjectMeta().(*metav1.ObjectMeta); ok {
			return m
		}
	}
	return nil
}

func uid(obj any) types.UID {
	if m, err := meta.Accessor(obj); err == nil {
		return m.GetUID()
	}
	return ""
}
