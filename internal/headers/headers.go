// Package headers has the agreement between a cache of encoded objects, that of package compact, and
// those parts of the library that need no more than the metadata of an object: they get it without
// a decoding.
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

// Funcs is a handler that needs no more than metadata.
type Funcs struct{ cache.ResourceEventHandlerFuncs }

// MetadataAlone makes [Alone] report true.
func (Funcs) MetadataAlone() bool { return true }

// A Store is a cache of encoded objects.
type Store interface {
	// Header returns the metadata of an object.
	Header(key string) (metav1.Object, bool)

	// Typed returns the decoded form of the object of an event, or a *malformed.Object. Its callers
	// share it.
	Typed(obj any) any
}

// Get returns the metadata of the object in a store that has the key. ok is false if there is none.
func Get(store interface {
	GetByKey(key string) (item any, exists bool, err error)
}, key string,
) (o metav1.Object, ok bool) {
	if s, encoded := store.(Store); encoded {
		return s.Header(key)
	}
	item, exists, _ := store.GetByKey(key) // the error of an object that does not fit its type, which has its metadata
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
