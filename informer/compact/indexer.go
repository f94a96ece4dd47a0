package compact

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// unindexed begins the name of an index that goes with another one. It has the objects whose values
// are not known, because they do not decode, or because the function failed.
const unindexed = "controllerkit.github.io/unindexed/"

// byNamespace is cache.MetaNamespaceIndexFunc without a decoding.
func byNamespace(obj any) ([]string, error) {
	if o, ok := obj.(*encoded.Object); ok {
		return []string{o.GetNamespace()}, nil
	}
	return cache.MetaNamespaceIndexFunc(obj)
}

// store returns the cache of encoded objects.
func (i *Informer[T]) store() cache.Indexer { return i.inner.GetIndexer() }

// isTyped reports whether the function of an index gets decoded objects.
func isTyped(index string) bool {
	return index != cache.NamespaceIndex && !strings.HasPrefix(index, headers.Index)
}

// unindexed returns an error that names objects that an index does not have.
func (i *Informer[T]) unindexed(index string) error {
	if !isTyped(index) {
		return nil
	}
	found, _ := i.store().ByIndex(unindexed+index, "") // fails if there is no index
	var errs []error
	for _, f := range found[:min(len(found), maxErrors)] {
		if o, ok := f.(*encoded.Object); ok {
			errs = append(errs, i.memo(o, index).Errs[index])
		}
	}
	return errors.Join(errs...)
}

// memo returns the values of an object in an index, which are computed once. client-go calls it under
// the lock of the cache.
func (i *Informer[T]) memo(o *encoded.Object, index string) *encoded.Memo {
	memo := o.Memo()
	if memo != nil {
		if _, ok := memo.Values[index]; ok {
			return memo
		}
	}
	now := &encoded.Memo{Values: map[string][]string{}}
	if memo != nil { // an index that was added later
		maps.Copy(now.Values, memo.Values)
		now.Errs = maps.Clone(memo.Errs)
	}
	obj, err := i.decode(o)
	for name, f := range *i.indexers.Load() {
		if _, ok := now.Values[name]; ok || !isTyped(name) {
			continue
		}
		var values []string
		failed := err
		if failed == nil {
			if values, failed = call(f, obj); failed != nil {
				failed = fmt.Errorf("compact: index %q of %s %s: %w", name, i.kind, kube.Printable(kube.NameOf(o), maxText), failed)
				i.report.Log(failed, "An index function failed")
			}
		}
		now.Values[name] = values
		if failed != nil {
			if now.Errs == nil {
				now.Errs = map[string]error{}
			}
			now.Errs[name] = failed
		}
	}
	o.Note(now)
	return now
}

// call calls an index function.
func call(f cache.IndexFunc, obj any) (values []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			values, err = nil, fmt.Errorf("panic: %s", kube.Printable(fmt.Sprint(r), maxText))
		}
	}()
	if values, err = f(obj); err != nil {
		return nil, err
	}
	return values, nil
}

// AddIndexers implements cache.SharedIndexInformer.
func (i *Informer[T]) AddIndexers(indexers cache.Indexers) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.indexers.Load()
	wrapped := cache.Indexers{}
	after := maps.Clone(*before)
	for name, f := range indexers {
		switch {
		case f == nil:
			return fmt.Errorf("compact: index %q of %s has no function", name, i.kind)
		case after[name] != nil: // also before the function replaces the other one for memo
			return fmt.Errorf("compact: %s has an index %q already: use another name", i.kind, name)
		}
		after[name] = f
		if !isTyped(name) {
			wrapped[name] = func(obj any) ([]string, error) { return call(f, obj) }
			continue
		}
		wrapped[name] = func(obj any) ([]string, error) {
			if o, ok := obj.(*encoded.Object); ok {
				return i.memo(o, name).Values[name], nil
			}
			return call(f, obj)
		}
		wrapped[unindexed+name] = func(obj any) ([]string, error) {
			var values []string
			if o, ok := obj.(*encoded.Object); ok && i.memo(o, name).Errs[name] != nil {
				values = []string{""}
			}
			return values, nil
		}
	}
	i.indexers.Store(&after) // before the cache calls a function
	err := i.inner.AddIndexers(wrapped)
	if err != nil {
		i.indexers.Store(before)
	}
	return err
}

// GetStore implements cache.SharedInformer.
func (i *Informer[T]) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer implements cache.SharedIndexInformer. The reads of the indexer decode new objects.
func (i *Informer[T]) GetIndexer() cache.Indexer { return indexer[T]{i.store(), i} }

// indexer shows the cache with typed objects.
type indexer[T controllerkit.Object] struct {
	cache.Indexer
	informer *Informer[T]
}

// typed decodes what it can, and reports the rest.
func (x indexer[T]) typed(found []any) ([]any, error) {
	objects, err := x.informer.decodeAll(found)
	result := make([]any, len(objects))
	for n, obj := range objects {
		result[n] = obj
	}
	return result, err
}

// List implements cache.Store.
func (x indexer[T]) List() []any {
	result, err := x.typed(x.Indexer.List())
	if err != nil {
		x.informer.report.Log(err, "A list omits objects that do not fit their Go type")
	}
	return result
}

// Get implements cache.Store.
func (x indexer[T]) Get(obj any) (item any, exists bool, err error) {
	return x.one(x.Indexer.Get(obj))
}

// GetByKey implements cache.Store.
func (x indexer[T]) GetByKey(key string) (item any, exists bool, err error) {
	return x.one(x.Indexer.GetByKey(key))
}

func (x indexer[T]) one(item any, exists bool, err error) (any, bool, error) {
	o, ok := item.(*encoded.Object)
	if !ok || err != nil {
		return item, exists, err
	}
	obj, err := x.informer.decode(o)
	if err != nil {
		return x.informer.stand(o, err), true, err
	}
	return obj, true, nil
}

// Index implements cache.Indexer.
func (x indexer[T]) Index(name string, obj any) ([]any, error) {
	found, err := x.Indexer.Index(name, obj)
	return x.found(name, found, err)
}

// ByIndex implements cache.Indexer.
func (x indexer[T]) ByIndex(name, value string) ([]any, error) {
	if name == malformed.Index {
		return x.malformed(value)
	}
	found, err := x.Indexer.ByIndex(name, value)
	return x.found(name, found, err)
}

// malformed is the ByIndex of malformed.Index, which this cache has no index for.
func (x indexer[T]) malformed(value string) ([]any, error) {
	namespace, every := strings.CutPrefix(value, malformed.Every)
	all, err := x.informer.objects(namespace)
	if err != nil {
		return nil, err
	}
	var found []any
	for _, item := range all {
		o, ok := item.(*encoded.Object)
		if !ok {
			continue
		}
		if obj, err := x.informer.decode(o); err != nil {
			found = append(found, x.informer.stand(o, err))
		} else if every {
			found = append(found, obj)
		}
	}
	return found, nil
}

func (x indexer[T]) found(name string, found []any, err error) ([]any, error) {
	if err != nil {
		return nil, err
	}
	result, err := x.typed(found)
	if name == cache.NamespaceIndex { // client-go's listers drop what comes with an error
		if err != nil {
			x.informer.report.Log(err, "A list omits objects that do not fit their Go type")
		}
		return result, nil
	}
	return result, errors.Join(err, x.informer.unindexed(name))
}

// Header implements headers.Store.
func (x indexer[T]) Header(key string) (metav1.Object, bool) {
	item, _, _ := x.Indexer.GetByKey(key) // it returns no error
	o, ok := item.(*encoded.Object)
	if !ok {
		return nil, false
	}
	return o, true
}

// Typed implements headers.Store.
func (x indexer[T]) Typed(obj any) any { return x.informer.shared(obj) }

// IndexKeys implements cache.Indexer.
func (x indexer[T]) IndexKeys(name, value string) ([]string, error) {
	if name != malformed.Index {
		return x.Indexer.IndexKeys(name, value)
	}
	return x.informer.bad.in(x, value), nil
}

// GetIndexers implements cache.Indexer.
func (x indexer[T]) GetIndexers() cache.Indexers { return maps.Clone(*x.informer.indexers.Load()) }

// AddIndexers implements cache.Indexer.
func (x indexer[T]) AddIndexers(indexers cache.Indexers) error {
	return x.informer.AddIndexers(indexers)
}

// Add implements cache.Store.
func (x indexer[T]) Add(obj any) error { return x.write(obj, x.Indexer.Add) }

// Update implements cache.Store.
func (x indexer[T]) Update(obj any) error { return x.write(obj, x.Indexer.Update) }

func (x indexer[T]) write(obj any, to func(any) error) error {
	o, err := x.informer.encode(obj)
	if err != nil {
		return err
	}
	return to(o)
}

// Replace implements cache.Store.
func (x indexer[T]) Replace(objects []any, version string) error {
	all := make([]any, len(objects))
	for n, obj := range objects {
		o, err := x.informer.encode(obj)
		if err != nil {
			return err
		}
		all[n] = o
	}
	return x.Indexer.Replace(all, version)
}

// AddEventHandler implements cache.SharedInformer.
func (i *Informer[T]) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (i *Informer[T]) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &period})
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *Informer[T]) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if !kube.IsNil(h) && !headers.Alone(h) {
		h = handler[T]{malformed.Fit(h), i}
	}
	return i.inner.AddEventHandlerWithOptions(h, options)
}

// handler calls another one with decoded objects.
type handler[T controllerkit.Object] struct {
	next     cache.ResourceEventHandler
	informer *Informer[T]
}

func (h handler[T]) OnAdd(obj any, isInInitialList bool) {
	h.next.OnAdd(h.informer.shared(obj), isInInitialList)
}

func (h handler[T]) OnUpdate(before, after any) {
	h.next.OnUpdate(h.informer.shared(before), h.informer.shared(after))
}

func (h handler[T]) OnDelete(obj any) {
	h.next.OnDelete(h.informer.shared(obj))
}

// HasSyncedChecker implements cache.SharedInformer.
func (i *Informer[T]) HasSyncedChecker() cache.DoneChecker {
	return checker{i.inner.HasSyncedChecker(), "SharedIndexInformer *" + i.typ.String()}
}

type checker struct {
	cache.DoneChecker
	name string
}

// Name implements cache.DoneChecker.
func (c checker) Name() string { return c.name }
