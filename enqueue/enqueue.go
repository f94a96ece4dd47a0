package enqueue

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// LowPriority is the priority at which Handler adds keys for the initial
// list and for resyncs, so that they do not hold up what changes meanwhile.
const LowPriority = -100

// Adder is the queue that a Handler adds to: a *Queue, or any queue of
// client-go.
type Adder[K comparable] interface {
	Add(key K)
}

// Handler adds to q the keys that keys names for each object that an
// informer reports. For an update it adds the keys of the old and the new
// object, so that an owner that lost the object hears of it too. keys may name
// any number of keys, and one twice.
//
// Objects of the informer's initial list, and updates that change nothing (the
// resourceVersion is the same: a resync or a relist), are added at LowPriority
// if q has AddWith, as *Queue has, and plainly if not.
//
// If q has AddEvent, as the Source of a reconcile.Controller has, keys are added by it,
// with the kind of event: "add", "update", "delete", "list" for the initial list, or
// "resync".
//
// A deletion that the informer missed comes as a cache.DeletedFinalStateUnknown,
// and is taken for a deletion of the object in it. Informers always put one in.
// If it holds none, keys is given a new object that has nothing but the namespace
// and the name of the deleted one: KeyOf names it as ever, ControllerOf, which
// cannot know the owner, names nothing. Such an object can be made if T has the
// methods of metav1.Object and is a pointer to a struct that works without more,
// as *v1.Pod and *unstructured.Unstructured do, or an interface that
// *metav1.PartialObjectMetadata satisfies. For any other T, and for a key that is
// no name, there is nothing to name keys by and the deletion is ignored.
//
// keys must not change the object. It is never given a nil one: an event with a
// nil object, or with one of another type than T, is a mistake in the wiring,
// and the handler panics at the first one, since it would see none that it
// wants. Handler panics at once if q or keys is nil.
func Handler[T any, K comparable](q Adder[K], keys func(T) []K) cache.ResourceEventHandler {
	if isNil(q) {
		panic("enqueue: Handler: q is nil: make the queue before its handlers")
	}
	if keys == nil {
		panic("enqueue: Handler: keys is nil: KeyOf names each object by itself")
	}
	h := &eventHandler[T, K]{q: q, keys: keys}
	h.with, _ = q.(interface {
		AddWith(opts addOptions, keys ...K)
	})
	h.event, _ = q.(interface {
		AddEvent(kind string, opts addOptions, keys ...K)
	})
	return h
}

// addOptions is what AddWith of a queue takes: unnamed, so that a queue need not
// import this package to have the method.
type addOptions = struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}

type eventHandler[T any, K comparable] struct {
	q    Adder[K]
	with interface {
		AddWith(opts addOptions, keys ...K)
	} // nil if q cannot
	event interface {
		AddEvent(kind string, opts addOptions, keys ...K)
	} // nil if q cannot
	keys func(T) []K
}

func (h *eventHandler[T, K]) OnAdd(obj any, isInInitialList bool) {
	kind := "add"
	if isInInitialList {
		kind = "list"
	}
	h.add(h.keys(h.object(obj)), kind, isInInitialList)
}

func (h *eventHandler[T, K]) OnUpdate(oldObj, newObj any) {
	before, after := h.object(oldObj), h.object(newObj)
	kind, same := "update", sameVersion(oldObj, newObj)
	if same {
		kind = "resync"
	}
	keys := h.keys(after)
	h.add(keys, kind, same)
	if old := h.keys(before); !slices.Equal(old, keys) {
		h.add(without(old, keys), kind, same)
	}
}

func (h *eventHandler[T, K]) OnDelete(obj any) {
	last, key, known := deleted(obj)
	if known {
		h.add(h.keys(h.object(last)), "delete", false)
	} else if t, ok := named[T](key); ok {
		h.add(h.keys(t), "delete", false)
	}
}

func (h *eventHandler[T, K]) object(obj any) T { return typed[T]("Handler", obj) }

func (h *eventHandler[T, K]) add(keys []K, kind string, low bool) {
	var opts addOptions
	if low {
		opts.Priority = LowPriority
	}
	switch {
	case h.event != nil:
		h.event.AddEvent(kind, opts, keys...)
	case low && h.with != nil:
		h.with.AddWith(opts, keys...)
	default:
		for _, key := range keys {
			h.q.Add(key)
		}
	}
}

// without returns the keys that are not among others. Both may be long.
func without[K comparable](keys, others []K) []K {
	has := make(map[K]bool, len(others))
	for _, key := range others {
		has[key] = true
	}
	var left []K
	for _, key := range keys {
		if !has[key] {
			left = append(left, key)
		}
	}
	return left
}

// deleted returns the object of a deletion. If the informer missed the deletion
// and kept no object, known is false and key names the object.
func deleted(obj any) (last any, key string, known bool) {
	var tombstone cache.DeletedFinalStateUnknown
	switch obj := obj.(type) {
	case cache.DeletedFinalStateUnknown:
		tombstone = obj
	case *cache.DeletedFinalStateUnknown:
		if obj != nil {
			tombstone = *obj
		}
	default:
		return obj, "", true
	}
	return tombstone.Obj, tombstone.Key, !isNil(tombstone.Obj)
}

func isNil(obj any) bool {
	v := reflect.ValueOf(obj)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// typed returns what the informer of a handler reported as what it is.
func typed[T any](handler string, obj any) T {
	if isNil(obj) {
		panic(fmt.Sprintf("enqueue: %s for %v is given a nil object", handler, reflect.TypeFor[T]()))
	}
	t, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("enqueue: %s for %v is given a %T: register it with the informer of its type", handler, reflect.TypeFor[T](), obj))
	}
	return t
}

// named returns an object that has nothing but a namespace and a name, which key
// holds as informers write it; ok is false if there is no such T or no name.
func named[T any](key string) (obj T, ok bool) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil || name == "" {
		return obj, false
	}
	var empty any
	switch typ := reflect.TypeFor[T](); {
	case !typ.Implements(reflect.TypeFor[metav1.Object]()):
		return obj, false
	case typ.Kind() == reflect.Interface:
		empty = &metav1.PartialObjectMetadata{}
	case typ.Kind() == reflect.Pointer && typ.Elem().Kind() == reflect.Struct && !borrowed(typ.Elem()):
		empty = reflect.New(typ.Elem()).Interface()
	}
	if obj, ok = empty.(T); !ok {
		return obj, false
	}
	meta := empty.(metav1.Object)
	meta.SetNamespace(namespace)
	meta.SetName(name)
	return obj, true
}

// borrowed says whether a struct has the methods of metav1.Object from a pointer or
// an interface in it, which is nil in a new one.
func borrowed(typ reflect.Type) bool {
	for _, field := range reflect.VisibleFields(typ) {
		kind := field.Type.Kind()
		if field.Anonymous && (kind == reflect.Pointer || kind == reflect.Interface) && field.Type.Implements(reflect.TypeFor[metav1.Object]()) {
			return true
		}
	}
	return false
}

// sameVersion says whether an update changed nothing. Objects without a
// resourceVersion, as some fakes make them, always count as changed.
func sameVersion(a, b any) bool {
	oldObj, ok1 := a.(metav1.Object)
	newObj, ok2 := b.(metav1.Object)
	return ok1 && ok2 && newObj.GetResourceVersion() != "" && oldObj.GetResourceVersion() == newObj.GetResourceVersion()
}

// KeyOf names an object by itself: for Handler, when what changed is what
// is reconciled.
func KeyOf[T metav1.Object](obj T) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// ControllerOf names an object by its controlling owner: for Handler, when
// the owner is reconciled. The owner must be of the given kind, in any version,
// and in the object's namespace, as namespaced owners are; objects without such
// an owner name nothing. For a cluster-scoped owner of namespaced objects the
// namespace would be wrong: wrap the function in one that empties it, as the
// example does. It panics if the kind is empty, as it is in objects of typed
// clients: no object would name anything.
func ControllerOf[T metav1.Object](owner schema.GroupKind) func(T) []types.NamespacedName {
	if owner.Kind == "" {
		panic("enqueue: ControllerOf: owner has no kind: name it, as in appsv1.SchemeGroupVersion.WithKind(\"Deployment\").GroupKind()")
	}
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
