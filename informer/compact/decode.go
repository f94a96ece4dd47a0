package compact

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

const lastApplied = "metadata.annotations[" + corev1.LastAppliedConfigAnnotation + "]"

// isTrim reports whether a transform is informer.Trim, which is a function and no closure.
func isTrim(f cache.TransformFunc) bool {
	return reflect.ValueOf(f).Pointer() == reflect.ValueOf(informer.Trim).Pointer()
}

// malformedError is the error of an object that does not fit the Go type.
type malformedError struct{ text string }

func (e *malformedError) Error() string { return e.text }

func (e *malformedError) Is(target error) bool { return target == malformed.Err }

// Rejected reports that a retry has the same result until something else changes.
func (e *malformedError) Rejected() bool { return true }

const maxText = 512 // of an error about an object

// decode returns a new object.
func (i *Informer[T]) decode(o *encoded.Object) (obj T, err error) {
	defer func() {
		if r := recover(); r != nil { // of a type with its own UnmarshalJSON
			err = fmt.Errorf("panic: %v", r)
		}
		if err != nil {
			i.bad.add(o)
			var none T
			obj, err = none, &malformedError{fmt.Sprintf("compact: %s %s does not fit the Go type: correct the object, or change the type: %s",
				i.kind, kube.Printable(kube.NameOf(o), maxText), kube.Printable(err.Error(), maxText))}
		}
	}()
	obj = reflect.New(i.typ).Interface().(T)
	return obj, o.Decode(obj)
}

// bad has the last objects that did not decode, also those that have changed since then. decode can
// run under the lock of the cache, so bad does not read it.
type bad struct {
	mu   sync.Mutex // guards the field below
	last map[cache.ObjectName]state
}

// state identifies a state of an object, without its memory.
type state struct{ uid, version string }

func stateOf(o metav1.Object) state { return state{string(o.GetUID()), o.GetResourceVersion()} }

const maxBad = 1000

func (b *bad) add(o *encoded.Object) {
	name := cache.MetaObjectToName(o)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[cache.ObjectName]state{}
	}
	if _, known := b.last[name]; known || len(b.last) < maxBad {
		b.last[name] = stateOf(o)
	}
}

// in returns the keys of those that a cache still has in that state, and forgets the others. namespace
// is "" for all.
func (b *bad) in(store headers.Store, namespace string) (keys []string) {
	b.mu.Lock()
	all := maps.Clone(b.last)
	b.mu.Unlock()
	for name, s := range all {
		o, ok := store.Header(name.String())
		switch {
		case !ok || stateOf(o) != s:
			b.mu.Lock()
			if b.last[name] == s {
				delete(b.last, name)
			}
			b.mu.Unlock()
		case namespace == "" || namespace == name.Namespace:
			keys = append(keys, name.String())
		}
	}
	return keys
}

const maxErrors = 10 // that an error joins

// decodeAll decodes what it can.
func (i *Informer[T]) decodeAll(found []any) ([]T, error) {
	objects := make([]T, 0, len(found))
	var errs []error
	for _, f := range found {
		o, ok := f.(*encoded.Object)
		if !ok {
			continue
		}
		obj, err := i.decode(o)
		if err == nil {
			objects = append(objects, obj)
		} else if len(errs) < maxErrors {
			errs = append(errs, err)
		}
	}
	return objects, errors.Join(errs...)
}

// encode returns what the cache keeps of a T.
func (i *Informer[T]) encode(obj any) (*encoded.Object, error) {
	return i.encodeWithout(i.reader.Drop, obj)
}

func (i *Informer[T]) encodeEvent(event watch.EventType, obj runtime.Object) (*encoded.Object, error) {
	return i.encodeWithout(i.reader.Dropped(event), obj)
}

func (i *Informer[T]) encodeWithout(drop *encoded.Drop, obj any) (*encoded.Object, error) {
	typed, ok := obj.(T)
	if want := reflect.PointerTo(i.typ); !ok || kube.IsNil(typed) || reflect.TypeOf(obj) != want {
		return nil, fmt.Errorf("compact: a %T in place of a %s", obj, want)
	}
	var data []byte
	var err error
	format := encoded.JSON
	if m, ok := obj.(interface{ Marshal() ([]byte, error) }); ok && isProtobuf(i.typ) {
		format = encoded.Protobuf
		data, err = m.Marshal()
	} else {
		data, err = json.Marshal(obj)
	}
	if err == nil {
		var o *encoded.Object
		if o, err = encoded.Parse(data, format, drop, nil); err == nil {
			return o, nil
		}
	}
	return nil, fmt.Errorf("compact: encode %s %s: %w", i.kind, kube.Printable(kube.NameOf(typed), maxText), err)
}

// stand returns what stands for an object that does not decode.
func (i *Informer[T]) stand(o *encoded.Object, err error) *malformed.Object {
	m, broken := o.Metadata()
	if broken != nil {
		m = metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
	}
	return &malformed.Object{ObjectMeta: m, Err: err}
}

// shared returns a T that handlers share, or what stands for it.
func (i *Informer[T]) shared(obj any) any {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		lost.Obj = i.shared(lost.Obj)
		return lost
	}
	o, ok := obj.(*encoded.Object)
	if !ok {
		return obj
	}
	return i.recent.of(o, func() any {
		decoded, err := i.decode(o)
		if err != nil {
			i.report.Log(err, "The informer goes on without an object that does not fit its Go type")
			return i.stand(o, err)
		}
		return decoded
	})
}

// recent has the last objects that were decoded for handlers. The handlers of an event run at
// about the same time, so one decoding is enough for them.
type recent struct {
	mu   sync.Mutex // guards the fields below
	last [16]struct {
		key  *encoded.Object
		made *lazy
	}
	next int
}

type lazy struct {
	once sync.Once
	obj  any
}

const maxRecent = 64 << 10 // bytes of an object that recent keeps

func (r *recent) of(o *encoded.Object, decode func() any) any {
	if len(o.Bytes()) > maxRecent {
		return decode()
	}
	l := r.lazy(o)
	l.once.Do(func() { l.obj = decode() })
	return l.obj
}

func (r *recent) lazy(o *encoded.Object) *lazy {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.last {
		if e.key == o {
			return e.made
		}
	}
	l := &lazy{}
	r.last[r.next].key, r.last[r.next].made = o, l
	r.next = (r.next + 1) % len(r.last)
	return l
}
