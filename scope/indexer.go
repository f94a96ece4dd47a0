package scope

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// view is the set of selected parts. A Select replaces it as a whole.
type view struct {
	parts   namespaces
	floor   string      // the version of the view before
	reached atomic.Bool // the floor was reached
}

func newView(parts map[Part]*part, before *view) *view {
	v := &view{parts: byNamespace(slices.Collect(maps.Values(parts)))}
	v.floor = cmp.Or(before.version(), before.floor)
	v.reached.Store(v.floor == "")
	return v
}

// version returns the lowest version of the parts. A part that is new can have a lower one
// than the view had before, for example because its namespace is quiet. The version is unknown
// then, because a lower version would mean that etcd was restored.
func (v *view) version() string {
	lowest := ""
	for _, p := range v.parts {
		version := p.version()
		order, err := resourceversion.CompareResourceVersion(version, version)
		if err == nil && lowest != "" {
			order, err = resourceversion.CompareResourceVersion(version, lowest)
		}
		if err != nil {
			return ""
		}
		if lowest == "" || order < 0 {
			lowest = version
		}
	}
	if lowest != "" && !v.reached.Load() {
		if order, err := resourceversion.CompareResourceVersion(lowest, v.floor); err == nil && order < 0 {
			return ""
		}
		v.reached.Store(true)
	}
	return lowest
}

// indexer is a cache.Indexer that reads the caches of the selected parts.
type indexer struct{ scope *Informer }

func (i indexer) parts() namespaces { return i.scope.view.Load().parts }

// List implements cache.Store.
func (i indexer) List() []any {
	parts := i.parts()
	if len(parts) == 1 {
		for _, p := range parts {
			return p.watch.GetIndexer().List()
		}
	}
	var all []any
	for _, p := range parts {
		all = append(all, p.watch.GetIndexer().List()...)
	}
	return all
}

// ListKeys implements cache.Store.
func (i indexer) ListKeys() []string {
	var all []string
	for _, p := range i.parts() {
		all = append(all, p.watch.GetIndexer().ListKeys()...)
	}
	return all
}

// Get implements cache.Store.
func (i indexer) Get(obj any) (item any, exists bool, err error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, cache.KeyError{Obj: obj, Err: err}
	}
	return i.GetByKey(key)
}

// GetByKey implements cache.Store.
func (i indexer) GetByKey(key string) (item any, exists bool, err error) {
	if name, err := cache.ParseObjectName(key); err == nil {
		if p := i.parts().of(name.Namespace); p != nil {
			return p.watch.GetIndexer().GetByKey(key)
		}
	}
	return nil, false, nil // as in client-go, no object has an invalid key
}

// LastStoreSyncResourceVersion implements cache.Store.
func (i indexer) LastStoreSyncResourceVersion() string { return i.scope.LastSyncResourceVersion() }

// LastStoreSyncResourceVersionOf returns the version of a namespace that has a cache of its own.
// Package consistency asks for it, so that a write in one namespace waits for no other one.
func (i indexer) LastStoreSyncResourceVersionOf(namespace string) (version string, ok bool) {
	p := i.parts()[namespace]
	if p == nil || namespace == "" {
		return "", false
	}
	return p.version(), true
}

// Index implements cache.Indexer.
func (i indexer) Index(name string, obj any) ([]any, error) {
	return collect(i.parts(), func(x cache.Indexer) ([]any, error) { return x.Index(name, obj) })
}

// ByIndex implements cache.Indexer.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	return collect(i.having(name, value), func(x cache.Indexer) ([]any, error) { return x.ByIndex(name, value) })
}

// IndexKeys implements cache.Indexer.
func (i indexer) IndexKeys(name, value string) ([]string, error) {
	return collect(i.having(name, value), func(x cache.Indexer) ([]string, error) { return x.IndexKeys(name, value) })
}

// having returns the parts that can have a value of an index.
func (i indexer) having(name, value string) namespaces {
	parts := i.parts()
	if name != cache.NamespaceIndex {
		return parts
	}
	if p := parts.of(value); p != nil {
		return namespaces{p.key.Namespace: p}
	}
	return nil
}

func collect[T any](parts namespaces, lookup func(cache.Indexer) ([]T, error)) ([]T, error) {
	var all []T
	for _, p := range parts {
		found, err := lookup(p.watch.GetIndexer())
		if err != nil {
			return nil, fmt.Errorf("scope: %s: %w", p.key, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// ListIndexFuncValues implements cache.Indexer.
func (i indexer) ListIndexFuncValues(name string) []string {
	values := map[string]struct{}{}
	for _, p := range i.parts() {
		for _, v := range p.watch.GetIndexer().ListIndexFuncValues(name) {
			values[v] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(values))
}

// GetIndexers returns the indexers that were added to the Informer.
func (i indexer) GetIndexers() cache.Indexers {
	i.scope.mu.Lock()
	defer i.scope.mu.Unlock()
	return maps.Clone(i.scope.indexers)
}

// AddIndexers implements cache.Indexer.
func (i indexer) AddIndexers(indexers cache.Indexers) error { return i.scope.AddIndexers(indexers) }

var errReadOnly = errors.New("scope: the cache is read-only: write to the API server")

// Add implements cache.Store.
func (indexer) Add(any) error { return errReadOnly }

// Update implements cache.Store.
func (indexer) Update(any) error { return errReadOnly }

// Delete implements cache.Store.
func (indexer) Delete(any) error { return errReadOnly }

// Replace implements cache.Store.
func (indexer) Replace([]any, string) error { return errReadOnly }

// Resync implements cache.Store.
func (indexer) Resync() error { return nil }

// Bookmark implements cache.Store.
func (indexer) Bookmark(string) {}
