package queue

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// LowPriority is the priority at which EventHandler adds keys for the initial
// list and for resyncs, so that they do not hold up what changes meanwhile.
const LowPriority = -100

// Adder is the queue that an EventHandler adds to: a *Queue, or any queue of
// client-go.
type Adder[K comparable] interface {
	Add(key K)
}

// EventHandler adds to q the keys that keys names for each object that an
// informer reports. For an update it adds the keys of the old and the new
// object, so that an owner that lost the object hears of it too.
//
// Objects of the informer's initial list, and updates that change nothing (the
// resourceVersion is the same: a resync or a relist), are added at LowPriority
// if q has AddWith, as *Queue has, and plainly if not. A deletion that the
// informer missed comes as a cache.DeletedFinalStateUnknown, and is taken for a
// deletion of the object in it. If it holds no object there is nothing to name
// keys by: it is ignored. Informers always put the object in.
//
// keys must not change the object, and must not return the keys of a nil one.
// An object of another type than T is a mistake in the wiring: the handler
// panics at the first one, since it would see none that it wants.
func EventHandler[T any, K comparable](q Adder[K], keys func(T) []K) cache.ResourceEventHandler {
	h := &eventHandler[T, K]{q: q, keys: keys}
	h.with, _ = q.(interface {
		AddWith(opts AddOptions, keys ...K)
	})
	return h
}

type eventHandler[T any, K comparable] struct {
	q    Adder[K]
	with interface {
		AddWith(opts AddOptions, keys ...K)
	} // nil if q cannot
	keys func(T) []K
}

func (h *eventHandler[T, K]) OnAdd(obj any, isInInitialList bool) {
	h.add(h.keys(h.object(obj)), isInInitialList)
}

func (h *eventHandler[T, K]) OnUpdate(oldObj, newObj any) {
	same := sameVersion(oldObj, newObj)
	keys := h.keys(h.object(newObj))
	h.add(keys, same)
	for _, key := range h.keys(h.object(oldObj)) {
		if !slices.Contains(keys, key) {
			h.add([]K{key}, same)
		}
	}
}

func (h *eventHandler[T, K]) OnDelete(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		if obj = tombstone.Obj; obj == nil {
			return
		}
	}
	h.add(h.keys(h.object(obj)), false)
}

func (h *eventHandler[T, K]) object(obj any) T {
	t, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("queue: EventHandler for %v is given a %T: register it with the informer of its type", reflect.TypeFor[T](), obj))
	}
	return t
}

func (h *eventHandler[T, K]) add(keys []K, low bool) {
	if low && h.with != nil {
		h.with.AddWith(AddOptions{Priority: LowPriority}, keys...)
		return
	}
	for _, key := range keys {
		h.q.Add(key)
	}
}

// sameVersion says whether an update changed nothing. Objects without a
// resourceVersion, as some fakes make them, always count as changed.
func sameVersion(a, b any) bool {
	oldObj, ok1 := a.(metav1.Object)
	newObj, ok2 := b.(metav1.Object)
	return ok1 && ok2 && newObj.GetResourceVersion() != "" && oldObj.GetResourceVersion() == newObj.GetResourceVersion()
}

// KeyOf names an object by itself: for EventHandler, when what changed is what
// is reconciled.
func KeyOf[T metav1.Object](obj T) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// ControllerOf names an object by its controlling owner: for EventHandler, when
// the owner is reconciled. The owner must be of the given kind, in any version,
// and in the object's namespace, as namespaced owners are; objects without such
// an owner name nothing. For a cluster-scoped owner of namespaced objects the
// namespace would be wrong: write a function that leaves it out.
func ControllerOf[T metav1.Object](owner schema.GroupKind) func(T) []types.NamespacedName {
	return func(obj T) []types.NamespacedName {
		ref := metav1.GetControllerOfNoCopy(obj)
		if ref == nil || ref.Kind != owner.Kind {
			return nil
		}
		if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || gv.Group != owner.Group {
			return nil
		}
		return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: ref.Name}}
	}
}
