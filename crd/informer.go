package crd

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
)

// ListWatch returns the List and Watch of an informer or reflector, for the namespace of
// the client. tweak changes the options of each request, for example to set a
// LabelSelector; nil means no change.
func (c *Client[T]) ListWatch(tweak func(*metav1.ListOptions)) *cache.ListWatch {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			tweak(&opts)
			list, err := c.List(ctx, opts)
			if err != nil {
				return nil, err // not a nil list in an interface
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			tweak(&opts)
			return c.Watch(ctx, opts)
		},
	}
}

// Informer returns a new informer for the namespace of the client, with an index by
// namespace, and its lister. The caller runs it. It is client-go's, so it cannot run
// twice: make another one from [Client.ListWatch] or Informer.
//
// resync is the interval at which handlers see all objects again; 0 means never. ListWatch
// describes tweak.
func (c *Client[T]) Informer(resync time.Duration, tweak func(*metav1.ListOptions)) *Informer[T] {
	return &Informer[T]{
		informer: cache.NewSharedIndexInformer(c.ListWatch(tweak), c.kind.new(), resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		kind:     c.kind,
	}
}

// Informer is an informer with its lister, as informer-gen makes them. [Client.Informer]
// makes one.
type Informer[T Object] struct {
	informer cache.SharedIndexInformer
	kind     *kind[T]
}

// Informer returns the informer, each time the same one.
func (i *Informer[T]) Informer() cache.SharedIndexInformer { return i.informer }

// Lister returns the lister of the informer's cache.
func (i *Informer[T]) Lister() Lister[T] {
	return Lister[T]{listers.New[T](i.informer.GetIndexer(), i.kind.resource.GroupResource())}
}

// GroupVersionKind returns the kind of the objects, whose Go type may have another name.
func (i *Informer[T]) GroupVersionKind() schema.GroupVersionKind { return i.kind.GroupVersionKind }

// Lister reads the objects of an informer's cache. Callers must not modify them.
// [Informer.Lister] makes one. It is safe for concurrent use.
type Lister[T Object] struct {
	objects listers.ResourceIndexer[T]
}

// Namespace returns the lister of one namespace. "" means all namespaces.
func (l Lister[T]) Namespace(namespace string) Lister[T] {
	return Lister[T]{listers.NewNamespaced(l.objects, namespace)}
}

// List returns the selected objects of the namespace. For all objects, selector is
// labels.Everything(); nil is an error.
func (l Lister[T]) List(selector labels.Selector) ([]T, error) {
	if selector == nil {
		return nil, errors.New("crd: selector is nil: use labels.Everything() for all objects")
	}
	return l.objects.List(selector)
}

// Get returns the object of that name. The lister of all namespaces finds only
// cluster-scoped objects. The error for an absent object is NotFound.
func (l Lister[T]) Get(name string) (T, error) { return l.objects.Get(name) }
