package reads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// A Reader reads the cache of an informer, and remembers for the key of the call what it reads. Its
// objects are copies that belong to the caller. It is safe for concurrent use. [From] makes one.
type Reader[T controllerkit.Object, K comparable] struct {
	t       *Tracker[K]
	source  uint16
	cache   copying[T]
	indexes map[string]func(T) []string
	closed  atomic.Pointer[error]
}

// From returns a Reader of the informer's cache, which has objects of T. resource is for errors.
// indexes has the functions that return the values of an object, by the name of the index, and can
// be nil. If such a function panics for an object, each ByIndex of the index returns an error that
// names it.
//
// From returns an error if an argument is nil, or if the informer has an index of the name or runs
// and takes no further indexes.
func From[T controllerkit.Object, K comparable](t *Tracker[K], resource schema.GroupResource, informer cache.SharedIndexInformer, indexes map[string]func(T) []string) (*Reader[T, K], error) {
	switch {
	case t == nil:
		return nil, errors.New("reads: the Tracker is nil")
	case kube.IsNil(informer):
		return nil, fmt.Errorf("reads: the informer of %s is nil", resource)
	}
	r := &Reader[T, K]{t: t, source: t.source(), indexes: maps.Clone(indexes)}
	indexers := cache.Indexers{}
	for name, values := range indexes {
		if name == "" || values == nil {
			return nil, fmt.Errorf("reads: the index %q of %s has an empty name or a nil function", name, resource)
		}
		indexers[name] = func(obj any) ([]string, error) { return valuesOf(values, obj), nil }
	}
	if len(indexers) > 0 {
		if err := informer.AddIndexers(indexers); err != nil {
			return nil, fmt.Errorf("reads: index %s: %w", resource, err)
		}
	}
	r.cache = copying[T]{indexer: informer.GetIndexer(), resource: resource}
	r.cache.own, _ = informer.(lister[T])
	return r, nil
}

// Get returns the object in the cache. ctx is that of the call. namespace is "" for a cluster-scoped
// resource. If there is no such object, apierrors.IsNotFound is true for the error.
func (r *Reader[T, K]) Get(ctx context.Context, namespace, object string) (obj T, err error) {
	if err := r.Remember(ctx, namespace, object); err != nil {
		return obj, err
	}
	if err := r.err(); err != nil {
		return obj, fmt.Errorf("reads: Get: %w", err)
	}
	return r.cache.Get(namespace, object)
}

// Remember is Get without the read, for an object that is read from another cache. Call it before the read.
func (r *Reader[T, K]) Remember(ctx context.Context, namespace, object string) error {
	if err := r.t.read(ctx, r.source, func() uint64 { return r.t.hash(name{r.source, false, namespace, object}) }); err != nil {
		return fmt.Errorf("reads: Get: %w", err)
	}
	return nil
}

// Remembers reports whether a key has read the object by its name.
func (r *Reader[T, K]) Remembers(namespace, object string) bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	return r.t.graph.refs[r.t.hash(name{r.source, false, namespace, object})] != 0
}

// List returns the selected objects of a namespace, in no order. "" means all namespaces, and
// labels.Everything all objects. A nil selector is an error, because a selector that does not
// parse is often nil. If some of the selected objects do not fit the Go type, List returns the
// others and an error that names up to 10 of them.
func (r *Reader[T, K]) List(ctx context.Context, namespace string, selector labels.Selector) ([]T, error) {
	if err := r.RememberList(ctx, namespace, selector); err != nil {
		return nil, err
	}
	if err := r.err(); err != nil {
		return nil, fmt.Errorf("reads: List: %w", err)
	}
	if _, selectable := selector.Requirements(); !selectable {
		return nil, nil
	}
	return r.untilRemembered(ctx, func() ([]T, error) { return r.cache.List(namespace, selector) }, func(o *malformed.Object) bool {
		return (namespace == "" || namespace == o.Namespace) && selector.Matches(labels.Set(o.Labels))
	})
}

// untilRemembered returns the result of a read. A read fails if objects that concern it do not fit their Go
// type. Then untilRemembered remembers the name of the first such object, and reads again. When the object
// fits, its labels and values can be others, so only the name finds the key. One name is enough, because the
// read fails until the last object fits.
func (r *Reader[T, K]) untilRemembered(ctx context.Context, read func() ([]T, error), concerns func(*malformed.Object) bool) ([]T, error) {
	objects, err := read()
	for last := ""; err != nil; objects, err = read() {
		bad := r.cache.malformed(concerns)
		if bad == nil || kube.NameOf(bad) == last {
			break
		}
		last = kube.NameOf(bad)
		if err := r.Remember(ctx, bad.Namespace, bad.Name); err != nil {
			return nil, err
		}
	}
	return objects, err
}

var errNilSelector = fmt.Errorf("reads: List: %w", errReject("the selector is nil: use labels.Everything() for all objects"))

// RememberList is List without the read, for objects that are read elsewhere. Call it before the read.
func (r *Reader[T, K]) RememberList(ctx context.Context, namespace string, selector labels.Selector) error {
	if selector == nil {
		return errNilSelector
	}
	requirements, selectable := selector.Requirements()
	err := r.t.read(ctx, r.source, func() uint64 {
		if !selectable { // only Close changes the result
			return r.t.hash(name{source: r.source})
		}
		return r.t.lists.of(r.source, namespace, selector, requirements).ref
	})
	if err != nil {
		return fmt.Errorf("reads: List: %w", err)
	}
	return nil
}

// ByIndex returns the objects that have the value in an index of From, in no order.
func (r *Reader[T, K]) ByIndex(ctx context.Context, index, value string) ([]T, error) {
	if r.indexes[index] == nil {
		return nil, fmt.Errorf("reads: ByIndex: %w", errReject(fmt.Sprintf("there is no index %q: use one of %q, which From got", index, slices.Sorted(maps.Keys(r.indexes)))))
	}
	err := r.t.read(ctx, r.source,
		func() uint64 { return r.t.hash(name{r.source, true, index, value}) },
		func() uint64 { return r.t.hash(name{r.source, true, index, unknown}) })
	if err == nil {
		err = r.err()
	}
	if err != nil {
		return nil, fmt.Errorf("reads: ByIndex: %w", err)
	}
	return r.untilRemembered(ctx, func() ([]T, error) { return r.cache.ByIndex(index, value) }, func(*malformed.Object) bool { return true })
}

// Close makes each read return err, until Close(nil), for a cache that is not usable at present. Such reads are
// remembered, too. It returns the keys whose last call has read anything by r: add them to the queue.
func (r *Reader[T, K]) Close(err error) []K {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.closed.Store(&err)
	return r.t.graph.readersOf(r.source)
}

// Err returns the error of Close, or nil. It is a read that is remembered: after the next Close the key runs.
func (r *Reader[T, K]) Err(ctx context.Context) error {
	if err := r.t.read(ctx, r.source, func() uint64 { return r.t.hash(name{source: r.source}) }); err != nil {
		return fmt.Errorf("reads: Err: %w", err)
	}
	return r.err()
}

// err is the error of Close.
func (r *Reader[T, K]) err() error {
	if err := r.closed.Load(); err != nil {
		return *err
	}
	return nil
}

// Handler returns a handler of the informer's events that adds the keys that have read what
// changed. q is for example the queue, or the Source of a reconcile.Controller.
func (r *Reader[T, K]) Handler(q controllerkit.Adder[K]) cache.ResourceEventHandler {
	if len(r.indexes) == 0 {
		return enqueue.Filter(enqueue.Handler(q, r.Keys), enqueue.ResourceVersionChanged[metav1.Object])
	}
	keys := func(obj T) []K { return r.keys(obj, r.values(obj)) }
	return enqueue.Filter(enqueue.Handler(q, keys), enqueue.ResourceVersionChanged[T])
}

// Keys returns the keys whose last call has read an object in this state by its name or by a selector, but not
// by an index. It is for event handlers of another kind than [Reader.Handler], which call it with the object
// before and after an event.
func (r *Reader[T, K]) Keys(obj metav1.Object) []K { return r.keys(obj, nil) }

// keys returns the keys that have read an object in this state, whose indexes have the values.
func (r *Reader[T, K]) keys(obj metav1.Object, values [][2]string) (keys []K) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.graph.used == 0 {
		return nil
	}
	var few [16]uint64
	refs := append(few[:0], t.hash(name{r.source, false, obj.GetNamespace(), obj.GetName()}))
	refs = t.lists.selecting(refs, r.source, obj.GetNamespace(), obj.GetLabels())
	for _, v := range values {
		refs = append(refs, t.hash(name{r.source, true, v[0], v[1]}))
	}
	for _, ref := range refs {
		keys = t.graph.readers(keys, ref)
	}
	return distinct(keys)
}

// values returns the values of an object, each with its index.
func (r *Reader[T, K]) values(obj T) (all [][2]string) {
	for index, values := range r.indexes {
		for _, value := range valuesOf(values, obj) {
			all = append(all, [2]string{index, value})
		}
	}
	return all
}

// unknown is the value of objects whose values are unknown.
const unknown = "\x00unknown"

// valuesOf returns the values of an object.
func valuesOf[T any](values func(T) []string, obj any) (found []string) {
	typed, ok := obj.(T)
	if !ok {
		return []string{unknown}
	}
	defer func() {
		if recover() != nil { // it would end the process. ByIndex reports it
			found = []string{unknown}
		}
	}()
	return values(typed)
}

// copying reads copies from the cache of an informer.
type copying[T controllerkit.Object] struct {
	indexer  cache.Indexer
	resource schema.GroupResource
	own      lister[T] // of an informer of package compact, otherwise nil
}

// lister has the reads of a compact informer, each of which returns new objects.
type lister[T any] interface {
	Get(namespace, name string) (T, error)
	List(namespace string, selector labels.Selector) ([]T, error)
}

func (c copying[T]) Get(namespace, name string) (obj T, err error) {
	if c.own != nil {
		return c.own.Get(namespace, name)
	}
	item, ok, err := c.indexer.GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
	switch {
	case err != nil:
		return obj, err
	case !ok:
		return obj, apierrors.NewNotFound(c.resource, name)
	}
	objects, err := c.copies([]any{item})
	if err != nil {
		return obj, err
	}
	return objects[0], nil
}

func (c copying[T]) List(namespace string, selector labels.Selector) ([]T, error) {
	if c.own != nil {
		return c.own.List(namespace, selector)
	}
	items, ok := malformed.List(c.indexer, namespace)
	if !ok {
		if err := cache.ListAllByNamespace(c.indexer, namespace, labels.Everything(), func(obj any) { items = append(items, obj) }); err != nil {
			return nil, err
		}
	}
	return c.copies(slices.DeleteFunc(items, func(item any) bool {
		o, ok := item.(metav1.Object)
		return ok && !selector.Matches(labels.Set(o.GetLabels()))
	}))
}

func (c copying[T]) ByIndex(index, value string) ([]T, error) {
	items, failed := c.indexer.ByIndex(index, value) // it returns the others beside its error
	objects, err := c.copies(items)
	lost, _ := c.indexer.ByIndex(index, unknown)
	if len(lost) > 0 {
		const most = 10
		var names []string
		for _, item := range lost[:min(len(lost), most)] {
			if o, ok := item.(metav1.Object); ok {
				names = append(names, kube.Printable(kube.NameOf(o), 600))
			}
		}
		slices.Sort(names)
		err = errors.Join(err, fmt.Errorf("reads: the function of the index %q panics for %d objects of %s, among them %q", index, len(lost), c.resource, names))
	}
	return objects, errors.Join(failed, err)
}

// malformed returns the first object, in the order of the keys, that does not fit and concerns a read, or nil.
func (c copying[T]) malformed(concerns func(*malformed.Object) bool) *malformed.Object {
	keys := malformed.Keys(c.indexer)
	slices.Sort(keys)
	for _, key := range keys {
		item, _, _ := c.indexer.GetByKey(key) // the error is that of the object
		if o, ok := item.(*malformed.Object); ok && concerns(o) {
			return o
		}
	}
	return nil
}

// copies returns copies of the items that fit, and an error that names others.
func (c copying[T]) copies(items []any) ([]T, error) {
	objects := make([]T, 0, len(items))
	var bad []*malformed.Object
	for _, item := range items {
		switch o := item.(type) {
		case T:
			objects = append(objects, o.DeepCopyObject().(T))
		case *malformed.Object:
			bad = append(bad, o)
		default:
			return nil, fmt.Errorf("reads: the cache of %s has a %T: use an informer of %T", c.resource, item, *new(T))
		}
	}
	return objects, malformed.Join(bad)
}
