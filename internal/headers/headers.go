// Package headers gives parts of the library the metadata of an object in a cache of package compact.
// Such a cache holds encoded objects, and its metadata needs no decoding.
package headers

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Alone reports whether an event handler needs the metadata alone. It then has the method
// MetadataAlone, and an informer of package compact calls it with objects that are a metav1.Object
// and have no other type.
func Alone(h any) bool {
	alone, ok := h.(interface{ MetadataAlone() bool })
	return ok && alone.MetadataAlone()
}

// Index begins the name of an index whose function needs the metadata alone. An informer of package
// compact calls it with objects that are a metav1.Object and have no other type.
const Index = "controllerkit.github.io/header/"

// Wake returns a handler that calls f at each event.
func Wake(f func()) cache.ResourceEventHandler { return wake(f) }

type wake func()

func (wake) MetadataAlone() bool { return true }

func (f wake) OnAdd(any, bool)   { f() }
func (f wake) OnUpdate(_, _ any) { f() }
func (f wake) OnDelete(any)      { f() }

// A Store is a cache of encoded objects.
type Store interface {
	// Header returns the metadata of an object.
	Header(key string) (metav1.Object, bool)

	// Typed returns the decoded form of the object of an event, or a *malformed.Object. Its callers
	// share it.
	Typed(obj any) any
}

// Item is the GetByKey of a store, but for the item, which may have the metadata alone.
func Item(store interface {
	GetByKey(key string) (item any, exists bool, err error)
}, key string,
) (item any, exists bool, err error) {
	if s, encoded := store.(Store); encoded {
		item, exists = s.Header(key)
		return item, exists, nil
	}
	return store.GetByKey(key)
}

// Get returns the metadata of the object in a store that has the key. ok is false if there is none.
func Get(store cache.Store, key string) (o metav1.Object, ok bool) {
	item, exists, _ := Item(store, key) // the error of an object that does not fit its type, which has its metadata
	if !exists {
		return nil, false
	}
	o, err := meta.Accessor(item)
	return o, err == nil
}

// Decodes reports whether each read of the store returns a new object.
func Decodes(store cache.Store) bool {
	_, ok := store.(Store)
	return ok
}
