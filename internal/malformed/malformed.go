// Package malformed has the stand-in for an object of the API server that does not fit its Go
// type, and an informer that holds such objects without showing them. The informers of package
// crd are such informers. The other packages recognize a stand-in by this package.
package malformed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Object stands for an object that does not fit its Go type. It has the metadata alone. It is no
// T, so that an empty spec cannot pass for the real one.
type Object struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	// Err names the object, the reason and the cure.
	Err error
}

// Err is wrapped by the error of an object that does not fit its Go type. It is crd.ErrMalformed.
var Err = errors.New("crd: malformed object")

// Is reports whether obj is an Object.
func Is(obj any) bool {
	_, ok := obj.(*Object)
	return ok
}

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	return &Object{TypeMeta: o.TypeMeta, ObjectMeta: *o.ObjectMeta.DeepCopy(), Err: o.Err}
}

// Index is the index of malformed objects in a cache that can hold them. Its values are their
// namespaces, and All. With the prefix Every, ByIndex returns the other objects, too.
const (
	Index = "controllerkit.github.io/malformed"
	All   = ""
	Every = "*"
)

// Values is the function of Index.
func Values(obj any) ([]string, error) {
	switch o, ok := obj.(*Object); {
	case !ok:
		return nil, nil
	case o.Namespace == "":
		return []string{All}, nil
	default:
		return []string{All, o.Namespace}, nil
	}
}

// List returns all objects of a namespace with the malformed ones. "" means all namespaces. ok is
// false if the cache cannot hold malformed objects.
func List(indexer cache.Indexer, namespace string) (objects []any, ok bool) {
	objects, err := indexer.ByIndex(Index, Every+namespace)
	return objects, err == nil
}

// all returns the malformed objects of a cache.
func all(indexer cache.Indexer) []*Object {
	found, _ := indexer.ByIndex(Index, All) // an Informer has the index
	objects := make([]*Object, 0, len(found))
	for _, obj := range found {
		if o, ok := obj.(*Object); ok {
			objects = append(objects, o)
		}
	}
	return objects
}

// Keys returns the keys of the malformed objects in a cache.
func Keys(store cache.Store) []string {
	indexer, ok := store.(interface {
		IndexKeys(name, value string) ([]string, error)
	})
	if !ok {
		return nil
	}
	keys, _ := indexer.IndexKeys(Index, All) // fails for a cache that cannot hold them
	return keys
}

const maxErrors = 10 // bounds the errors that an error joins

// Join returns an error with the errors of the first objects, or nil.
func Join(objects []*Object) error {
	errs := make([]error, 0, min(len(objects), maxErrors))
	for _, o := range objects[:cap(errs)] {
		errs = append(errs, o.Err)
	}
	err := errors.Join(errs...)
	if len(objects) > len(errs) {
		err = fmt.Errorf("%d malformed objects, the first of them: %w", len(objects), err)
	}
	return err
}

// Informer is an informer whose cache can hold an [Object]. It shows none:
//
//   - Get and GetByKey of its cache return the error of the object with its metadata.
//   - Index and ByIndex return the error beside the other objects, except Index of the
//     namespaces, which client-go's listers call.
//   - A transform, a user's index and a handler see only objects that fit; [Handler] has the rules of
//     their events.
type Informer struct {
	cache.SharedIndexInformer
	name   string // of the type, for the name of the checker
	report Report
}

// New wraps an informer with the Index, which has not been started. name is that of the type of
// its objects.
func New(informer cache.SharedIndexInformer, name string) *Informer {
	i := &Informer{SharedIndexInformer: informer, name: name}
	_ = i.SetTransform(nil) // fails only for an informer that was started
	return i
}

// RunWithContext implements cache.SharedInformer.
func (i *Informer) RunWithContext(ctx context.Context) {
	i.report.Begin(ctx)
	i.SharedIndexInformer.RunWithContext(ctx)
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *Informer) HasSyncedChecker() cache.DoneChecker {
	return checker{i.SharedIndexInformer.HasSyncedChecker(), "SharedIndexInformer " + i.name}
}

type checker struct {
	cache.DoneChecker
	name string
}

func (c checker) Name() string { return c.name }

// GetStore implements cache.SharedInformer.
func (i *Informer) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer implements cache.SharedIndexInformer.
func (i *Informer) GetIndexer() cache.Indexer { return indexer{i.SharedIndexInformer.GetIndexer()} }

// AddIndexers implements cache.SharedIndexInformer.
func (i *Informer) AddIndexers(indexers cache.Indexers) error {
	return i.GetIndexer().AddIndexers(indexers)
}

// SetTransform implements cache.SharedInformer.
func (i *Informer) SetTransform(transform cache.TransformFunc) error {
	store := i.SharedIndexInformer.GetStore()
	return i.SharedIndexInformer.SetTransform(func(obj any) (any, error) {
		switch o, ok := obj.(*Object); {
		case ok:
			if held, _, _ := store.GetByKey(nameOf(o).String()); !same(held, o) {
				i.report.Log(o.Err, "The informer goes on without an object that does not fit its Go type")
			}
		case transform != nil:
			return transform(obj)
		}
		return obj, nil
	})
}

// same reports whether the cache has the malformed object already.
func same(held any, o *Object) bool {
	h, ok := held.(*Object)
	return ok && h.UID == o.UID && h.ResourceVersion == o.ResourceVersion
}

const reportEvery = time.Minute // a user can make any number of malformed objects

// Report logs at most one line a minute. Its zero value is ready.
type Report struct {
	logger atomic.Pointer[klog.Logger] // nil before the informer runs

	mu      sync.Mutex // guards the fields below
	last    time.Time
	omitted int
}

// Begin tells which logger the lines go to.
func (r *Report) Begin(ctx context.Context) {
	logger := klog.FromContext(ctx)
	r.logger.Store(&logger)
}

// Log logs a line with err, unless it is too early.
func (r *Report) Log(err error, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.last.IsZero() && now.Sub(r.last) < reportEvery {
		r.omitted++
		return
	}
	logger := klog.Background()
	if l := r.logger.Load(); l != nil {
		logger = *l
	}
	logger.Error(err, message, "omitted", r.omitted)
	r.last, r.omitted = now, 0
}

// indexer is the cache of an Informer.
type indexer struct{ cache.Indexer }

// fitting returns the objects that fit, and the error of the others. It reuses the slice.
func fitting(objects []any) ([]any, error) {
	var bad []*Object
	fit := objects[:0]
	for _, obj := range objects {
		if o, ok := obj.(*Object); ok {
			bad = append(bad, o)
		} else {
			fit = append(fit, obj)
		}
	}
	return fit, Join(bad)
}

// List implements cache.Store.
func (i indexer) List() []any {
	fit, _ := fitting(i.Indexer.List())
	return fit
}

// Get implements cache.Store.
func (i indexer) Get(obj any) (item any, exists bool, err error) {
	return shown(i.Indexer.Get(obj))
}

// GetByKey implements cache.Store.
func (i indexer) GetByKey(key string) (item any, exists bool, err error) {
	return shown(i.Indexer.GetByKey(key))
}

func shown(item any, exists bool, err error) (any, bool, error) {
	if o, ok := item.(*Object); ok {
		return o, true, o.Err
	}
	return item, exists, err
}

// Index implements cache.Indexer.
func (i indexer) Index(name string, obj any) ([]any, error) {
	found, err := i.Indexer.Index(name, obj)
	if err != nil || name == Index {
		return found, err
	}
	if name == cache.NamespaceIndex {
		found, _ = fitting(found)
		return found, nil
	}
	return found, Join(all(i.Indexer))
}

// ByIndex implements cache.Indexer.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	if namespace, ok := strings.CutPrefix(value, Every); ok && name == Index {
		if namespace == "" {
			return i.Indexer.List(), nil
		}
		return i.Indexer.ByIndex(cache.NamespaceIndex, namespace)
	}
	found, err := i.Indexer.ByIndex(name, value)
	switch {
	case err != nil || name == Index:
		return found, err
	case name == cache.NamespaceIndex:
		return fitting(found)
	}
	return found, Join(all(i.Indexer)) // their values are unknown
}

// AddIndexers implements cache.Indexer.
func (i indexer) AddIndexers(indexers cache.Indexers) error {
	safe := make(cache.Indexers, len(indexers))
	for name, values := range indexers {
		safe[name] = func(obj any) ([]string, error) {
			if Is(obj) {
				return nil, nil
			}
			return values(obj)
		}
	}
	return i.Indexer.AddIndexers(safe)
}
