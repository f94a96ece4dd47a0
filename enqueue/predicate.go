package enqueue

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// Event is what an informer says of one object. It is a creation, a deletion,
// or, with neither set, an update or a resync. The zero value is none of them.
//
//   - Old is the object before; the zero T in a creation.
//   - New is the object after; the zero T in a deletion.
//   - Created: the informer did not have the object before. The object may be
//     older.
//   - Initial: a creation of the informer's initial list.
//   - Deleted: the object is gone. Old is the last that the informer saw of it.
type Event[T any] struct {
	Old, New                  T
	Created, Initial, Deleted bool
}

// Predicate says whether an event passes. It is called in the informer's
// goroutine, and at the same time by several if it is given to several
// informers: it must be quick, keep no state, and not change the objects.
type Predicate[T any] func(Event[T]) bool

// Filter returns a handler that hands to h the events that pass, unchanged:
//
//	deployments.AddEventHandler(enqueue.Filter(handler, enqueue.GenerationChanged[*appsv1.Deployment]))
//
// Unlike cache.FilteringResourceEventHandler it judges the change and not the
// object, and never makes an update into a creation or a deletion.
//
// What is held back is gone: nothing comes again later to make up for it. A
// reconcile that reads something must hear of its changes, so filter out only
// what it does not read. Most controllers need no filter: the queue takes
// changes of one key together, and a reconcile that finds nothing to do is
// cheap.
//
// A cache.DeletedFinalStateUnknown is a deletion of the object in it. One that
// holds no object passes without asking, as there is nothing to judge. A nil
// object and one of another type than T are mistakes in the wiring, and panic as
// in Handler. Filter panics at once if h or pass is nil.
func Filter[T any](h cache.ResourceEventHandler, pass Predicate[T]) cache.ResourceEventHandler {
	if h == nil {
		panic("enqueue: Filter: h is nil: give it the handler that the events are for")
	}
	given("Filter", pass)
	return &filter[T]{h: h, pass: pass}
}

type filter[T any] struct {
	h    cache.ResourceEventHandler
	pass Predicate[T]
}

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
	if last, _, known := deleted(obj); !known || f.pass(Event[T]{Old: f.object(last), Deleted: true}) {
		f.h.OnDelete(obj)
	}
}

func (f *filter[T]) object(obj any) T { return typed[T]("Filter", obj) }

// GenerationChanged passes updates that move metadata.generation, creations and
// deletions. It is for a controller that reads of an object only its spec. The
// informer compares with what it reported before, so a move is never missed,
// however many versions the informer skipped.
//
// The API server moves the generation when the spec changes and when
// deletionTimestamp is set. Know what it does not move for:
//
//   - Labels, annotations, finalizers and owner references. A controller that
//     reads its settings from an annotation, waits for another one's finalizer
//     to go, or adopts by label must not use this alone. (The annotations of a
//     Deployment do move it, those of other kinds do not.)
//   - The status. A controller that waits for its Deployment to be ready, or its
//     Pod to end, must not use this for these.
//   - A resync. It does not pass, so a controller that relies on resyncs must
//     not use this.
//
// Many kinds have no generation, among them ConfigMap, Secret, Service,
// Namespace, Node, Lease and those of RBAC. Theirs is 0, and all their events
// pass, resyncs too. A custom resource whose definition has no status subresource
// has a generation that moves with its status as well: a controller that writes
// the status there wakes itself.
//
// An object that was deleted and made anew while the informer was cut off comes
// as an update, possibly with the same generation. It has another UID, and
// passes.
func GenerationChanged[T metav1.Object](e Event[T]) bool {
	if e.Created || e.Deleted {
		return true
	}
	return e.New.GetGeneration() == 0 || e.Old.GetGeneration() != e.New.GetGeneration() || e.Old.GetUID() != e.New.GetUID()
}

// ResourceVersionChanged passes everything but resyncs: updates that change
// anything at all, creations and deletions. Objects without a resourceVersion,
// as some fakes make them, always pass.
func ResourceVersionChanged[T metav1.Object](e Event[T]) bool {
	return e.Created || e.Deleted || !sameVersion(e.Old, e.New)
}

// Selects passes the events of objects whose labels match: of an update, if the
// old object matches or the new one. An object that leaves the selection is so
// seen once more, and the reconcile must look at its labels. It panics if
// selector is nil.
//
// To leave objects out, select the others, as in "paused!=true", and do not use
// Not: see there.
func Selects[T metav1.Object](selector labels.Selector) Predicate[T] {
	if selector == nil {
		panic("enqueue: Selects: selector is nil: labels.Everything() matches every object")
	}
	return func(e Event[T]) bool {
		return !e.Created && selector.Matches(labels.Set(e.Old.GetLabels())) ||
			!e.Deleted && selector.Matches(labels.Set(e.New.GetLabels()))
	}
}

// And passes what all of passes pass, asked in order until one does not. Without
// any it passes everything. It panics if one is nil.
func And[T any](passes ...Predicate[T]) Predicate[T] {
	passes = given("And", passes...)
	return func(e Event[T]) bool {
		for _, pass := range passes {
			if !pass(e) {
				return false
			}
		}
		return true
	}
}

// Or passes what one of passes passes, asked in order until one does. Without
// any it passes nothing. It panics if one is nil.
func Or[T any](passes ...Predicate[T]) Predicate[T] {
	passes = given("Or", passes...)
	return func(e Event[T]) bool {
		for _, pass := range passes {
			if pass(e) {
				return true
			}
		}
		return false
	}
}

// Not passes what pass does not. That is rarely what is wanted:
//
//   - Not of Selects passes an update only if neither the old nor the new object
//     matches: with "paused=true" the update that ends the pause is held back,
//     and the object is not seen until something else changes. Selects of
//     "paused!=true" passes it.
//   - Not of GenerationChanged or ResourceVersionChanged passes no creation and
//     no deletion.
//
// It panics if pass is nil.
func Not[T any](pass Predicate[T]) Predicate[T] {
	given("Not", pass)
	return func(e Event[T]) bool { return !pass(e) }
}

// given returns a copy of the predicates that the caller gave. One that is nil may
// be asked late, or never, and is a mistake all the same.
func given[T any](to string, passes ...Predicate[T]) []Predicate[T] {
	for i, pass := range passes {
		if pass == nil {
			panic(fmt.Sprintf("enqueue: %s: predicate %d of %d is nil", to, i+1, len(passes)))
		}
	}
	return slices.Clone(passes)
}
