package compact

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// copying is an informer whose cache holds objects and returns copies.
type copying struct{ cache.SharedIndexInformer }

// GetStore implements cache.SharedInformer.
func (i copying) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer implements cache.SharedIndexInformer.
func (i copying) GetIndexer() cache.Indexer { return copies{i.SharedIndexInformer.GetIndexer()} }

type copies struct{ cache.Indexer }

func copyOf(obj any) any {
	if o, ok := obj.(runtime.Object); ok {
		return o.DeepCopyObject()
	}
	return obj
}

func allCopies(objects []any) []any {
	for i, obj := range objects { // the slice is the caller's
		objects[i] = copyOf(obj)
	}
	return objects
}

// List implements cache.Store.
func (c copies) List() []any { return allCopies(c.Indexer.List()) }

// Get implements cache.Store.
func (c copies) Get(obj any) (item any, exists bool, err error) {
	item, exists, err = c.Indexer.Get(obj)
	return copyOf(item), exists, err
}

// GetByKey implements cache.Store.
func (c copies) GetByKey(key string) (item any, exists bool, err error) {
	item, exists, err = c.Indexer.GetByKey(key)
	return copyOf(item), exists, err
}

// Index implements cache.Indexer.
func (c copies) Index(name string, obj any) ([]any, error) {
	found, err := c.Indexer.Index(name, obj)
	return allCopies(found), err
}

// ByIndex implements cache.Indexer.
func (c copies) ByIndex(name, value string) ([]any, error) {
	found, err := c.Indexer.ByIndex(name, value)
	return allCopies(found), err
}
