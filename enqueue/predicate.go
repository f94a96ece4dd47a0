package enqueue

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/listless"
)

// Event is an event that an informer reports of one object. If neither Created nor
// Deleted is set, it is an update or a resync.
//
//   - Old is the object before the event. It is the zero T in a creation. In a
//     deletion it is the last state that the informer received.
//   - New is the object after the event. It is the zero T in a deletion.
//   - Created: the informer did not know the object before. The object itself may
//     be old.
//   - Initial: the creation is part of the informer's initial list.
//   - Deleted: the object was deleted.
type Event[T any] struct {
	Old, New                  T
	Created, Initial, Deleted bool
}

// Predicate reports whether an event passes. Several informers may call it at the
// same time, each in its own goroutine. It must return quickly, keep no state, and
// not change the objects.
type Predicate[T any] func(Event[T]) bool

// Filter returns a handler that calls h with the events that pass, unchanged:
//
//	deployments.AddEventHandler(enqueue.Filter(handler, enqueue.GenerationChanged[*appsv1.Deployment]))
//
// It differs from cache.FilteringResourceEventHandler: the predicate sees the
// change, not the object alone, and an update stays an update.
//
// A filtered event does not come again. Filter only the changes that the reconcile
// does not read.
//
// If a cache.DeletedFinalStateUnknown has no object, it passes without a call of
// the predicate. A nil object, or an object of another type than T, is a
// programming error, and the handler panics. Filter itself panics if h or pass is
// nil.
func Filter[T any](h cache.ResourceEventHandler, pass Predicate[T]) cache.ResourceEventHandler {
	if kube.IsNil(h) {
		panic("enqueue: Filter: h is nil: set the handler for the events that pass")
	}
	checked("Filter", pass)
	return &filter[T]{h: h, pass: pass}
}

type filter[T any] struct {
	h    cache.ResourceEventHandler
	pass Predicate[T]
}

// MetadataAlone reports whether pass and the handler get any object of the API. See package headers.
func (f *filter[T]) MetadataAlone() bool { return anyObject[T]() && headers.Alone(f.h) }

// Listless reports whether the handler needs no first list: a Predicate keeps no state.
func (f *filter[T]) Listless() bool { return listless.Is(f.h) }

func (f *filter[T]) OnAdd(obj any, isInInitialList bool) {
	if f.pass(Event[T]{New: f.object(obj), Created: true, Initial: isInInitialList}) {
		f.h.OnAdd(obj, isInInitialList)
	}
}

func (f *filter[T]) OnUpdate(oldObj, newObj any) {
	if f.pass(Event[T]{Old: f.object(oldObj), New: f.object(newObj)}) {
		f.h.OnUpdate(oldObj, newObj)
	}
}

func (f *filter[T]) OnDelete(obj any) {
	if last, known := deleted(obj); !known || f.pass(Event[T]{Old: f.object(last), Deleted: true}) {
		f.h.OnDelete(obj)
	}
}

func (f *filter[T]) object(obj any) T { return typed[T]("Filter", obj) }

// GenerationChanged passes updates that change metadata.generation, creations, and
// deletions. Use it if the controller reads only the spec of an object. A change is
// never missed: the informer compares with the state that it reported before.
//
// The API server changes the generation when the spec changes, and when it sets
// deletionTimestamp. It does not change the generation for:
//
//   - Labels, annotations, finalizers, and owner references. Do not use
//     GenerationChanged alone if the controller reads a setting from an annotation,
//     waits for a finalizer, or adopts by label. (The annotations of a Deployment
//     do change its generation.)
//   - The status. Do not use GenerationChanged if the controller waits until a
//     Deployment is ready or a Pod ends.
//   - Resyncs. Do not use GenerationChanged if the controller relies on them.
//
// Many kinds have no generation, e.g. ConfigMap, Secret, Service, Namespace, Node,
// Lease, and Role. All their events pass, including resyncs. If a CRD has no status
// subresource, a write of the status changes the generation too, and a controller
// that writes the status triggers itself.
//
// If an object is deleted and created again while the informer has no connection,
// the informer reports an update. GenerationChanged passes it, because the UID
// differs.
func GenerationChanged[T metav1.Object](e Event[T]) bool {
	if e.Created || e.Deleted {
		return true
	}
	return e.New.GetGeneration() == 0 || e.Old.GetGeneration() != e.New.GetGeneration() || e.Old.GetUID() != e.New.GetUID()
}

// ResourceVersionChanged passes all events except resyncs. Objects without a
// resourceVersion, as some fakes return them, always pass.
func ResourceVersionChanged[T metav1.Object](e Event[T]) bool {
	return e.Created || e.Deleted || !sameVersion(e.Old, e.New)
}

// Selects passes the events of objects whose labels match the selector. It passes
// an update if the old or the new object matches. The reconcile therefore also
// gets an object that has left the selection, and must check its labels. Selects
// panics if selector is nil.
//
// To exclude objects, select all others, e.g. with "paused!=true". The comment of
// [Not] explains the difference.
func Selects[T metav1.Object](selector labels.Selector) Predicate[T] {
	if selector == nil {
		panic("enqueue: Selects: selector is nil: use labels.Everything() to match every object")
	}
	return func(e Event[T]) bool {
		return !e.Created && selector.Matches(labels.Set(e.Old.GetLabels())) ||
			!e.Deleted && selector.Matches(labels.Set(e.New.GetLabels()))
	}
}

// And passes an event if all predicates pass it. It calls them in order until the
// first that does not. Without predicates it passes every event. And panics if a
// predicate is nil.
func And[T any](passes ...Predicate[T]) Predicate[T] {
	passes = checked("And", passes...)
	return func(e Event[T]) bool {
		for _, pass := range passes {
			if !pass(e) {
				return false
			}
		}
		return true
	}
}

// Or passes an event if at least one predicate passes it. It calls them in order
// until the first that does. Without predicates it passes no event. Or panics if a
// predicate is nil.
func Or[T any](passes ...Predicate[T]) Predicate[T] {
	passes = checked("Or", passes...)
	return func(e Event[T]) bool {
		for _, pass := range passes {
			if pass(e) {
				return true
			}
		}
		return false
	}
}

// Not passes an event if pass does not. It is rarely useful:
//
//   - Not of [Selects] passes an update only if neither the old nor the new object
//     matches. With the selector "paused=true" it filters the update that ends the
//     pause. Use Selects with "paused!=true" instead.
//   - Not of [GenerationChanged] or [ResourceVersionChanged] filters all creations
//     and deletions.
//
// Not panics if pass is nil.
func Not[T any](pass Predicate[T]) Predicate[T] {
	checked("Not", pass)
	return func(e Event[T]) bool { return !pass(e) }
}

// checked returns a copy of the predicates. It panics if one is nil, because a call
// of a nil predicate may come late or never.
func checked[T any](caller string, passes ...Predicate[T]) []Predicate[T] {
	for i, pass := range passes {
		if pass == nil {
			panic(fmt.Sprintf("enqueue: %s: predicate %d of %d is nil", caller, i+1, len(passes)))
		}
	}
	return slices.Clone(passes)
}
