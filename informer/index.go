package informer

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Index adds an index to an informer's cache, and returns its lookup: a function that
// returns the objects with a key, in no order. keys returns the keys of an object, of
// any number. The informer comes from a generated factory or from crd:
//
//	byIssuer, err := informer.Index(factory.Example().V1().Certificates(), "issuer",
//		func(c *v1.Certificate) []string { return []string{c.Namespace + "/" + c.Spec.Issuer} })
//	...
//	certificates, err := byIssuer(namespace + "/" + name)
//
// The time of a lookup grows with the objects that it returns, not with the size of the
// cache. Keys without a namespace find the objects of all namespaces. The objects must not be
// changed: they are the cache's. A lookup may be called concurrently. Before the informer has
// synced, it may find a part of the objects.
//
// If the cache has objects that do not fit T, lookup also returns an error that names up to 10 of
// them: their keys are unknown. Only informers of package crd have such objects.
//
// keys is called under the cache's lock, for each object and change. It must be fast, must not
// read the cache, and must return the same keys for the same object. name must be unique
// among the indexes of the informer, which must not have stopped. If it is running already,
// its cache is locked until the index is built.
func Index[T any, L interface {
	List(labels.Selector) ([]T, error)
}](inf interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, name string, keys func(T) []string) (lookup func(key string) ([]T, error), err error) {
	switch {
	case kube.IsNil(inf):
		return nil, errors.New("informer: Index without an informer")
	case name == "":
		return nil, errors.New("informer: Index without a name: name it after the field")
	case keys == nil:
		return nil, fmt.Errorf("informer: index %q has no function keys", name)
	}
	shared := inf.Informer()
	err = shared.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) {
		if o, ok := obj.(T); ok {
			return keys(o), nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("informer: index %q: %w", name, err)
	}
	return func(key string) ([]T, error) {
		all, err := shared.GetIndexer().ByIndex(name, key)
		objects := make([]T, 0, len(all))
		for _, obj := range all {
			if o, ok := obj.(T); ok {
				objects = append(objects, o)
			}
		}
		if err != nil {
			err = fmt.Errorf("informer: index %q: %w", name, err)
		}
		return objects, err
	}, nil
}
