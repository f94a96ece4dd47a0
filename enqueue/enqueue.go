package enqueue

import (
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// LowPriority is the priority that [Handler] gives to the keys of the initial
// list and of resyncs, so that they do not delay the keys of changed objects.
const LowPriority = -100

// Handler returns an event handler that calls keys with each object that an
// informer reports, and adds the returned keys to q. It is [HandlerAt] with
// [LowPriority].
func Handler[T any, K comparable](q controllerkit.Adder[K], keys func(T) []K) cache.ResourceEventHandler {
	return newHandler("Handler", q, keys, LowPriority)
}

// HandlerAt returns an event handler that calls keys with each object that an
// informer reports, and adds the returned keys to q.
//
// For an update it adds the keys of both the old and the new object. If a child
// moves from one owner to another, both owners are therefore reconciled. The
// function keys may return any number of keys, and a key twice. It must not
// change the object, which is never nil.
//
// The handler has these further rules:
//
//   - Objects of the initial list, and updates with an unchanged resourceVersion,
//     are added at the given priority if q is a controllerkit.OptionAdder.
//
//   - If q is a controllerkit.EventAdder, the handler calls AddEvent instead of Add and
//     AddWith, with the objects of the event. The kind is "add", "update", "delete", "list"
//     for the initial list, or "resync".
//
//   - A cache.DeletedFinalStateUnknown, also called a tombstone, is the deletion of
//     the object in it.
//
//   - If a tombstone has no object, keys gets a new T with the namespace and the
//     name of the deleted object only. [KeyOf] returns its key as usual,
//     [ControllerOf] returns no key. If the object never fit its Go type, which an
//     informer of package crd tells, the new T has all its metadata. The new T can be made if T is a pointer to a
//     struct with the methods of metav1.Object, e.g. *v1.Pod, or an interface that
//     *metav1.PartialObjectMetadata implements. Otherwise the deletion is ignored.
//
// A nil object, or an object of another type than T, is a programming error, and
// the handler panics at the first such event. HandlerAt itself panics if q or keys
// is nil.
//
// If T is metav1.Object, as in KeyOf[metav1.Object], an informer of package compact does not
// decode the objects: keys gets their metadata, which it must not change.
func HandlerAt[T any, K comparable](q controllerkit.Adder[K], keys func(T) []K, priority int) cache.ResourceEventHandler {
	return newHandler("HandlerAt", q, keys, priority)
}

func newHandler[T any, K comparable](name string, q controllerkit.Adder[K], keys func(T) []K, priority int) *handler[T, K] {
	if kube.IsNil(q) {
		panic("enqueue: " + name + ": q is nil: make the queue before its handlers")
	}
	if keys == nil {
		panic("enqueue: " + name + ": keys is nil: use KeyOf to add the key of each object")
	}
	h := &handler[T, K]{name: name, q: q, keys: keys, low: controllerkit.AddOptions{Priority: priority}}
	h.with, _ = q.(controllerkit.OptionAdder[K])
	h.event, _ = q.(controllerkit.EventAdder[K])
	return h
}

type handler[T any, K comparable] struct {
	name  string // of the exported function, for panics
	q     controllerkit.Adder[K]
	with  controllerkit.OptionAdder[K] // nil if q is none
	event controllerkit.EventAdder[K]  // nil if q is none
	keys  func(T) []K
	low   controllerkit.AddOptions // for the initial list and resyncs
}

// MetadataAlone reports whether keys gets any object of the API. See package headers.
func (h *handler[T, K]) MetadataAlone() bool { return anyObject[T]() }

// Listless reports that the handler only adds keys. See package listless.
func (h *handler[T, K]) Listless() bool { return true }

func anyObject[T any]() bool { return reflect.TypeFor[T]() == reflect.TypeFor[metav1.Object]() }

func (h *handler[T, K]) OnAdd(obj any, isInInitialList bool) {
	kind := calls.Add
	if isInInitialList {
		kind = calls.List
	}
	h.add(h.keys(h.object(obj)), event(kind, obj, nil), isInInitialList)
}

func (h *handler[T, K]) OnUpdate(oldObj, newObj any) {
	before, after := h.object(oldObj), h.object(newObj)
	kind, same := "update", sameVersion(oldObj, newObj)
	if same {
		kind = calls.Resync
	}
	keys, e := h.keys(after), event(kind, newObj, oldObj)
	h.add(keys, e, same)
	if old := h.keys(before); !slices.Equal(old, keys) {
		h.add(without(old, keys), e, same)
	}
}

func (h *handler[T, K]) OnDelete(obj any) {
	last, known := deleted(obj)
	if known {
		h.add(h.keys(h.object(last)), event(calls.Delete, last, nil), false)
	} else if t, ok := named[T](last); ok {
		h.add(h.keys(t), event(calls.Delete, nil, nil), false)
	}
}

// event describes an event to an EventAdder.
func event(kind string, object, old any) controllerkit.Event {
	e := controllerkit.Event{Kind: kind}
	e.Object, _ = object.(metav1.Object)
	e.Old, _ = old.(metav1.Object)
	return e
}

func (h *handler[T, K]) object(obj any) T { return typed[T](h.name, obj) }

func (h *handler[T, K]) add(keys []K, e controllerkit.Event, low bool) {
	var opts controllerkit.AddOptions
	if low {
		opts = h.low
	}
	switch {
	case h.event != nil:
		h.event.AddEvent(e, opts, keys...)
	case low && h.with != nil:
		h.with.AddWith(opts, keys...)
	default:
		for _, key := range keys {
			h.q.Add(key)
		}
	}
}

// without returns the keys that are not among others. It takes linear time.
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

// deleted returns the object of a deletion. If the event is a tombstone without an object, or
// with one that never fit its Go type, known is false and last is its *metav1.ObjectMeta.
func deleted(obj any) (last any, known bool) {
	var tombstone cache.DeletedFinalStateUnknown
	switch obj := obj.(type) {
	case cache.DeletedFinalStateUnknown:
		tombstone = obj
	case *cache.DeletedFinalStateUnknown:
		if obj != nil {
			tombstone = *obj
		}
	default:
		return obj, true
	}
	if o, ok := tombstone.Obj.(*malformed.Object); ok {
		return &o.ObjectMeta, false
	}
	if !kube.IsNil(tombstone.Obj) {
		return tombstone.Obj, true
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(tombstone.Key)
	if err != nil {
		name = ""
	}
	return &metav1.ObjectMeta{Namespace: namespace, Name: name}, false
}

// typed converts the object of an event to T.
func typed[T any](handler string, obj any) T {
	if kube.IsNil(obj) {
		panic(fmt.Sprintf("enqueue: %s for %v got a nil object", handler, reflect.TypeFor[T]()))
	}
	t, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("enqueue: %s for %v got a %T: register it with the informer of its type", handler, reflect.TypeFor[T](), obj))
	}
	return t
}

// named returns a new object with the metadata of a tombstone. If no T can be made, or the
// metadata has no name, ok is false.
func named[T any](last any) (obj T, ok bool) {
	from, ok := last.(*metav1.ObjectMeta)
	if !ok || from.Name == "" {
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
	meta.SetNamespace(from.Namespace)
	meta.SetName(from.Name)
	meta.SetUID(from.UID)
	meta.SetResourceVersion(from.ResourceVersion)
	meta.SetLabels(from.Labels)
	meta.SetAnnotations(from.Annotations)
	meta.SetOwnerReferences(from.OwnerReferences)
	return obj, true
}

// borrowed reports whether a struct gets the methods of metav1.Object from an
// embedded pointer or interface, which is nil in a new struct.
func borrowed(typ reflect.Type) bool {
	for _, field := range reflect.VisibleFields(typ) {
		kind := field.Type.Kind()
		if field.Anonymous && (kind == reflect.Pointer || kind == reflect.Interface) && field.Type.Implements(reflect.TypeFor[metav1.Object]()) {
			return true
		}
	}
	return false
}

// sameVersion reports whether two objects have the same resourceVersion. Some
// fakes set no resourceVersion: their objects always count as changed.
func sameVersion(a, b any) bool {
	oldObj, ok1 := a.(metav1.Object)
	newObj, ok2 := b.(metav1.Object)
	return ok1 && ok2 && newObj.GetResourceVersion() != "" && oldObj.GetResourceVersion() == newObj.GetResourceVersion()
}

// KeyOf returns the key of an object. Use it with [Handler] for the objects that
// the controller reconciles.
func KeyOf[T metav1.Object](obj T) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// ControllerOf returns a function that returns the key of an object's controller
// owner. Use it with [Handler] for the children of the objects that the controller
// reconciles.
//
// The function returns no key if the object has no controller owner, or an owner
// of another group or kind. The version of the owner is ignored. The key has the
// namespace of the child. If the owner is cluster-scoped, wrap the function and
// clear the namespace, as the example does.
//
// ControllerOf panics if the kind is empty, as in objects that a typed client
// returns.
func ControllerOf[T metav1.Object](owner schema.GroupKind) func(T) []types.NamespacedName {
	if owner.Kind == "" {
		panic("enqueue: ControllerOf: owner has no kind: use e.g. appsv1.SchemeGroupVersion.WithKind(\"Deployment\").GroupKind()")
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
