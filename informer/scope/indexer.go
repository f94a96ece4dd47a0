package scope

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope/internal/versions"
)

// view is the set of shown regions. A change replaces it as a whole, for all Informers of the
// selection at once.
type view struct {
	regions namespaces
	of      []*versions.Floor // for each Informer
	token   *byte             // identifies the view, and keeps no cache in memory
}

func newView(before *view, added, removed []*region) *view {
	v := &view{regions: maps.Clone(before.regions), token: new(byte)}
	if v.regions == nil {
		v.regions = namespaces{}
	}
	for _, r := range removed {
		delete(v.regions, r.key.Namespace)
	}
	for _, r := range added {
		v.regions[r.key.Namespace] = r
		if old := before.regions[r.key.Namespace]; old != nil {
			for k, p := range r.parts {
				p.floor.At = cmp.Or(old.parts[k].shownVersion(), old.parts[k].floor.At)
			}
		}
	}
	for k, of := range before.of {
		v.of = append(v.of, &versions.Floor{At: cmp.Or(before.version(k), of.At)})
	}
	return v
}

// version returns the lowest version of an Informer's parts. A part that is new can have a lower
// one than the view had before, for example because its namespace is quiet. The version is unknown
// then.
func (v *view) version(index int) string {
	lowest := ""
	for _, r := range v.regions {
		version := r.parts[index].version()
		order, err := resourceversion.CompareResourceVersion(version, cmp.Or(lowest, version))
		if err != nil {
			return ""
		}
		if lowest == "" || order < 0 {
			lowest = version
		}
	}
	return v.of[index].Known(lowest)
}

// version returns the version of an Informer in the view.
func (s *selection) version(index int) string {
	s.viewMu.RLock()
	defer s.viewMu.RUnlock()
	return s.view.Load().version(index)
}

// changeView replaces regions in the view. No read of a version is between the floors of the new
// view and the end of the old one, so no read returns a version above a floor and then a lower one.
func (s *selection) changeView(added, removed []*region) {
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	s.view.Store(newView(s.view.Load(), added, removed))
}

// indexer is a cache.Indexer that reads the caches of the shown parts.
type indexer struct{ scope *Informer }

func (i indexer) regions() namespaces { return i.scope.selection.view.Load().regions }

// of returns the cache of a region.
func (i indexer) of(r *region) cache.Indexer { return r.parts[i.scope.index].informer.GetIndexer() }

// List implements cache.Store.
func (i indexer) List() []any {
	regions := i.regions()
	if len(regions) == 1 {
		for _, r := range regions {
			return i.of(r).List()
		}
	}
	var all []any
	for _, r := range regions {
		all = append(all, i.of(r).List()...)
	}
	return all
}

// ListKeys implements cache.Store.
func (i indexer) ListKeys() []string {
	var all []string
	for _, r := range i.regions() {
		all = append(all, i.of(r).ListKeys()...)
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
		if r := i.regions().of(name.Namespace); r != nil {
			return i.of(r).GetByKey(key)
		}
	}
	return nil, false, nil // as in client-go, no object has an invalid key
}

// LastStoreSyncResourceVersion implements cache.Store.
func (i indexer) LastStoreSyncResourceVersion() string { return i.scope.LastSyncResourceVersion() }

// LastStoreSyncResourceVersionOf returns the version of a namespace that has a cache of its own.
// Package consistency asks for it, so that a write in one namespace waits for no other one. After
// a change of the selectors it is "" until the cache has reached the version of the one before.
func (i indexer) LastStoreSyncResourceVersionOf(namespace string) (version string, ok bool) {
	i.scope.selection.viewMu.RLock()
	defer i.scope.selection.viewMu.RUnlock()
	r := i.regions()[namespace]
	if r == nil || namespace == "" {
		return "", false
	}
	return r.parts[i.scope.index].shownVersion(), true
}

// Region returns the identity of what shows a namespace. If it leaves the view, it never returns. Package operator asks for
// it before and after other reads of the selection: if it is the same, the namespace was shown to all of them.
func (i indexer) Region(namespace string) any { return i.regions().of(namespace) }

// Showing returns the identity of the view. Package consistency asks for it: a known version stays known in a view,
// and each read of the version asks all parts.
func (i indexer) Showing() any { return i.scope.selection.view.Load().token }

// SelectsNothing reports whether the selection is empty, and shown as such. Package consistency asks
// for it: no version is reached then, and no cache can be old.
func (i indexer) SelectsNothing() bool {
	s := i.scope.selection
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.selected && len(s.shown)+len(s.pending) == 0
}

// Index implements cache.Indexer.
func (i indexer) Index(name string, obj any) ([]any, error) {
	return collect(i, i.regions(), func(x cache.Indexer) ([]any, error) { return x.Index(name, obj) })
}

// ByIndex implements cache.Indexer.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	return collect(i, i.having(name, value), func(x cache.Indexer) ([]any, error) { return x.ByIndex(name, value) })
}

// IndexKeys implements cache.Indexer.
func (i indexer) IndexKeys(name, value string) ([]string, error) {
	return collect(i, i.having(name, value), func(x cache.Indexer) ([]string, error) { return x.IndexKeys(name, value) })
}

// having returns the regions that can have a value of an index.
func (i indexer) having(name, value string) namespaces {
	regions := i.regions()
	if name != cache.NamespaceIndex {
		return regions
	}
	if r := regions.of(value); r != nil {
		return namespaces{r.key.Namespace: r}
	}
	return nil
}

func collect[T any](i indexer, regions namespaces, lookup func(cache.Indexer) ([]T, error)) ([]T, error) {
	var all []T
	var errs []error
	for _, r := range regions {
		found, err := lookup(i.of(r))
		all = append(all, found...) // also beside the error of an object that does not fit the Go type
		if err != nil {
			errs = append(errs, fmt.Errorf("scope: %s: %w", r.key.name(), err))
		}
	}
	return all, errors.Join(errs...)
}

// ListIndexFuncValues implements cache.Indexer.
func (i indexer) ListIndexFuncValues(name string) []string {
	values := map[string]struct{}{}
	for _, r := range i.regions() {
		for _, v := range i.of(r).ListIndexFuncValues(name) {
			values[v] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(values))
}

// GetIndexers returns the indexers that were added to the Informer.
func (i indexer) GetIndexers() cache.Indexers {
	i.scope.selection.mu.Lock()
	defer i.scope.selection.mu.Unlock()
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
