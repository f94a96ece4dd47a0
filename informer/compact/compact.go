package compact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/informer/compact/internal/responses"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// Options are the options of an informer. The zero value means all namespaces, all objects and
// no index but the one by namespace.
type Options struct {
	// Namespace limits the informer to one. "" means all, and cluster-scoped resources need it.
	Namespace string

	// Kind is the kind of the objects. "" means the name of T, which differs from the kind
	// in few APIs.
	Kind string

	// Tweak changes the options of each request, for example to set a LabelSelector. nil
	// changes nothing.
	Tweak func(*metav1.ListOptions)

	// Drop has the fields that the cache does not keep, by their names in JSON:
	//
	//   - "data" or "spec.template": a field with all that is in it
	//   - "spec.containers.env": the field of each element of the list
	//   - "metadata.annotations[example.com/large]": the value of one key of a map
	//
	// Never write an object of the cache back by an Update: it would remove the fields. A Patch
	// and an apply are safe. An event comes also if only such a field has changed.
	Drop []string

	// ManagedFields keeps metadata.managedFields, which are dropped otherwise.
	ManagedFields bool

	// Indexers are the functions of indexes, which get objects of the Go type without the
	// dropped fields.
	Indexers cache.Indexers

	// Resync is the interval at which handlers see all objects again. 0 means never.
	Resync time.Duration
}

// Header is the metadata of an object in a cache. Its methods are those of metav1.Object, and decode
// what they return. It is immutable, and safe for concurrent use.
type Header interface {
	GetName() string
	GetNamespace() string
	GetUID() types.UID
	GetResourceVersion() string
	GetGeneration() int64
	GetCreationTimestamp() metav1.Time
	GetDeletionTimestamp() *metav1.Time
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetFinalizers() []string
	GetOwnerReferences() []metav1.OwnerReference
}

// inner is an informer of *encoded.Object.
type inner = cache.SharedIndexInformer

// Informer is an informer with a compact cache. [New] and [Over] make one. It is safe for
// concurrent use. Its other methods are those of cache.SharedIndexInformer.
type Informer[T controllerkit.Object] struct {
	inner

	kind     string
	resource schema.GroupResource
	typ      reflect.Type // of what T points to
	reader   *responses.Reader
	paths    []string // of Options that reader drops
	report   malformed.Report

	mu       sync.Mutex                     // held while indexers changes
	indexers atomic.Pointer[cache.Indexers] // with the functions of the caller
	recent   recent
	bad      bad
}

// New returns an informer of the resource, such as "pods", by the client of its group and
// version, which each generated clientset has:
//
//	pods, err := compact.New[*corev1.Pod](client.CoreV1().RESTClient(), "pods", compact.Options{})
//
// In the factory of a clientset, it replaces the informer of the type for everybody:
//
//	factory.InformerFor(&corev1.Pod{}, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return pods })
//
// For a custom resource, client is the result of crd.Client.RESTClient, or another client of the
// group and version, and crd.Client.Over makes a lister of the informer.
//
// A T with an encoding in protobuf, as all built-in types have, is asked for in it, whatever the
// content type of client.
//
// New sends no request. It returns an error if client is nil, which a fake clientset returns, if T
// is a built-in type of another version, or if a path of options.Drop does not exist. An
// informer.Set, the factory or the caller runs the informer, once: for a second run make another
// one.
func New[T controllerkit.Object](client rest.Interface, resource string, options Options) (*Informer[T], error) {
	i, err := newInformer[T](reflect.TypeFor[T](), options)
	switch {
	case err != nil:
		return nil, err
	case kube.IsNil(client):
		return nil, fmt.Errorf("compact: New of %s without a client: a fake clientset has none, so use Over with a ListWatch of it", i.kind)
	case resource == "":
		return nil, fmt.Errorf("compact: New of %s without a resource: name it, for example \"pods\"", i.kind)
	}
	version := client.APIVersion()
	if err := fits(i.typ, version); err != nil {
		return nil, fmt.Errorf("compact: New: %w", err)
	}
	i.resource = version.WithResource(resource).GroupResource()
	from := source{client: client, resource: resource, namespace: options.Namespace, protobuf: isProtobuf(i.typ), reader: i.reader}
	if err := i.listWatch(from.listWatch(options.Tweak), options); err != nil {
		return nil, err
	}
	return i, nil
}

// Over returns an informer whose lists and watches are those of lw, and have objects of T. It is
// for a fake clientset, and for what has no client of its own. Over returns an error if lw is nil,
// if a path of options.Drop does not exist, or if options has a Namespace or Tweak, which lw decides.
func Over[T controllerkit.Object](lw cache.ListerWatcher, options Options) (*Informer[T], error) {
	return newOver[T](reflect.TypeFor[T](), lw, options)
}

// NewInformer is Over for the caches of controller-runtime, and has the signature of
// cache.NewSharedIndexInformer:
//
//	manager.Options{Cache: cache.Options{NewInformer: compact.NewInformer, DefaultUnsafeDisableDeepCopy: new(true)}}
//
// Reads of the manager's client then decode objects instead of copying them: the second option
// is safe, because each read of the informer's cache returns a new object. With that option,
// objects have no apiVersion and kind. Set no transform for managedFields, which are dropped: each
// transform costs more than a decoding.
//
// Unstructured objects and metadata are not held encoded. Their cache is client-go's, whose reads
// return copies.
func NewInformer(lw cache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	i, err := newOver[controllerkit.Object](reflect.TypeOf(obj), lw, Options{Resync: resync, Indexers: indexers})
	if err != nil {
		return copying{cache.NewSharedIndexInformer(lw, obj, resync, indexers)}
	}
	return i
}

func newOver[T controllerkit.Object](t reflect.Type, lw cache.ListerWatcher, options Options) (*Informer[T], error) {
	i, err := newInformer[T](t, options)
	switch {
	case err != nil:
		return nil, err
	case kube.IsNil(lw):
		return nil, fmt.Errorf("compact: Over of %s without a ListerWatcher", i.kind)
	case options.Namespace != "" || options.Tweak != nil:
		return nil, fmt.Errorf("compact: Over of %s with a Namespace or Tweak: the ListerWatcher decides what it lists", i.kind)
	}
	i.resource = schema.GroupResource{Resource: strings.ToLower(i.kind)}
	if err := i.listWatch(over(lw, i.encodeEvent), options); err != nil {
		return nil, err
	}
	return i, nil
}

const managedFields = "metadata.managedFields"

// newInformer returns an informer of objects of t, which is T unless T is an interface.
func newInformer[T controllerkit.Object](t reflect.Type, options Options) (*Informer[T], error) {
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("compact: %v is no pointer to a struct: use e.g. *corev1.Pod", t)
	}
	i := &Informer[T]{typ: t.Elem(), kind: cmp.Or(options.Kind, t.Elem().Name()), paths: slices.Clone(options.Drop)}
	switch reflect.New(i.typ).Interface().(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		return nil, fmt.Errorf("compact: %s has no fields to decode: give New a Go type, or use a dynamic or metadata-only informer", t)
	}
	if !options.ManagedFields {
		i.paths = append(i.paths, managedFields)
	}
	i.reader = &responses.Reader{Kind: i.kind, Custom: !isProtobuf(i.typ)}
	if err := i.drop(); err != nil {
		return nil, fmt.Errorf("compact: Drop of %s: %w", i.kind, err)
	}
	return i, nil
}

// drop makes the reader drop the paths of Options and those of a transform.
func (i *Informer[T]) drop(more ...string) (err error) {
	i.reader.Drop = nil
	if paths := slices.Concat(i.paths, more); len(paths) > 0 {
		i.reader.Drop, err = encoded.NewDrop(i.typ, paths...)
	}
	return err
}

// listWatch makes the informer around what lists and watches encoded objects.
func (i *Informer[T]) listWatch(lw cache.ListerWatcher, options Options) error {
	name := reflect.PointerTo(i.typ).String()
	i.inner = cache.NewSharedIndexInformerWithOptions(lw, &encoded.Object{}, cache.SharedIndexInformerOptions{
		ResyncPeriod:      options.Resync,
		Indexers:          cache.Indexers{cache.NamespaceIndex: byNamespace},
		ObjectDescription: name,
	})
	own := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	i.indexers.Store(&own)
	others := maps.Clone(options.Indexers)
	delete(others, cache.NamespaceIndex)
	return i.AddIndexers(others)
}

// fits reports whether a type of k8s.io/api is of the client's version.
func fits(t reflect.Type, of schema.GroupVersion) error {
	_, path, ok := strings.Cut(t.PkgPath(), "k8s.io/api/")
	group, version, two := strings.Cut(path, "/")
	if !ok || !two {
		return nil
	}
	short, _, _ := strings.Cut(of.Group, ".")
	if short == "" {
		short = "core"
	}
	if version == of.Version && (group == short || group == "apiserverinternal") {
		return nil
	}
	return fmt.Errorf("%s does not belong to the client's version %s: use the RESTClient of its version", t, of)
}

func isProtobuf(t reflect.Type) bool {
	_, ok := reflect.New(t).Interface().(encoded.Message)
	return ok
}

// RunWithContext implements cache.SharedInformer.
func (i *Informer[T]) RunWithContext(ctx context.Context) {
	i.report.Begin(ctx)
	i.inner.RunWithContext(ctx)
}

// SetTransform implements cache.SharedInformer. transform gets a decoded object and must return a T,
// which is encoded. That costs more than the decoding, but for informer.Trim, which is done on the
// encoded object. The last call before the start counts; after it, SetTransform returns an error. A
// transform that panics or returns an error does what it does to client-go's informer: informer.Guard
// wraps it.
func (i *Informer[T]) SetTransform(transform cache.TransformFunc) error {
	if err := i.inner.SetTransform(nil); err != nil {
		return err // it was started
	}
	if isTrim(transform) {
		return i.drop(managedFields, lastApplied)
	}
	if err := i.drop(); err != nil || transform == nil { // without the paths of an earlier Trim
		return err
	}
	return i.inner.SetTransform(func(obj any) (any, error) {
		o, ok := obj.(*encoded.Object)
		if !ok {
			return obj, nil // a tombstone, whose object is transformed
		}
		decoded, err := i.decode(o)
		if err != nil {
			return o, nil //nolint:nilerr // Get returns it, for as long as the object does not fit
		}
		changed, err := transform(decoded)
		if err != nil {
			return nil, err
		}
		return i.encode(changed)
	})
}

// Get returns a new object from the cache. If there is none, the error is a NotFound of
// apierrors. namespace is "" for a cluster-scoped resource.
func (i *Informer[T]) Get(namespace, name string) (obj T, err error) {
	o, ok := i.object(namespace, name)
	if !ok {
		return obj, apierrors.NewNotFound(i.resource, name)
	}
	return i.decode(o)
}

func (i *Informer[T]) object(namespace, name string) (*encoded.Object, bool) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	obj, _, _ := i.store().GetByKey(key) // it returns no error
	o, ok := obj.(*encoded.Object)
	return o, ok
}

// List returns the selected objects of a namespace, in no order. "" means all namespaces, and a nil
// selector means all objects. It decodes the selected ones. If some do not decode, it returns the
// others and an error that names up to 10 of them.
func (i *Informer[T]) List(namespace string, selector labels.Selector) ([]T, error) {
	var selected []any
	all, err := i.objects(namespace)
	if err != nil {
		return nil, err
	}
	for _, obj := range all {
		if o, ok := obj.(*encoded.Object); ok && (selector == nil || selector.Empty() || selector.Matches(labels.Set(o.GetLabels()))) {
			selected = append(selected, o)
		}
	}
	return i.decodeAll(selected)
}

func (i *Informer[T]) objects(namespace string) ([]any, error) {
	if namespace == "" {
		return i.store().List(), nil
	}
	return i.store().ByIndex(cache.NamespaceIndex, namespace)
}

// ByIndex returns the objects that have the value in an index of Options.Indexers or AddIndexers,
// in no order. If the values of some objects of the cache are unknown, because they do not decode or
// the function failed, it returns the others and an error that names up to 10 of them, for every value.
func (i *Informer[T]) ByIndex(index, value string) ([]T, error) {
	found, err := i.store().ByIndex(index, value)
	if err != nil {
		return nil, fmt.Errorf("compact: %w", err)
	}
	objects, err := i.decodeAll(found)
	return objects, errors.Join(err, i.unindexed(index))
}

// All yields the objects of the cache in no order, each decoded when its turn comes, or the error of
// decoding it. It sees the cache as it was at its begin.
func (i *Informer[T]) All() iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, obj := range i.store().List() {
			if o, ok := obj.(*encoded.Object); ok && !yield(i.decode(o)) {
				return
			}
		}
	}
}

// Header returns the metadata of an object, and false if the cache has none of the name.
func (i *Informer[T]) Header(namespace, name string) (Header, bool) {
	o, ok := i.object(namespace, name)
	if !ok {
		return nil, false
	}
	return o, true
}

// Headers yields the metadata of all objects of the cache, in no order. It sees the cache as it was
// at its begin.
func (i *Informer[T]) Headers() iter.Seq[Header] {
	return func(yield func(Header) bool) {
		for _, obj := range i.store().List() {
			if o, ok := obj.(*encoded.Object); ok && !yield(o) {
				return
			}
		}
	}
}
