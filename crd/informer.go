package crd

import (
	"context"
	"errors"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// ListWatch returns the List and Watch of an informer or reflector, for the namespace of
// the client. tweak changes the options of each request, for example to set a
// LabelSelector; nil means no change. A malformed object makes the list fail, as with a
// generated client: prefer [Client.Informer], which goes on without it.
func (c *Client[T]) ListWatch(tweak func(*metav1.ListOptions)) *cache.ListWatch {
	return c.listWatch(tweak, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		list, err := c.List(ctx, opts)
		if err != nil {
			return nil, err // not a nil list in an interface
		}
		return list, nil
	}, c.Watch)
}

func (c *Client[T]) listWatch(tweak func(*metav1.ListOptions), list cache.ListWithContextFunc, watches cache.WatchFuncWithContext) *cache.ListWatch {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			tweak(&opts)
			return list(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			tweak(&opts)
			return watches(ctx, opts)
		},
	}
}

// Informer returns a new informer for the namespace of the client, with an index by
// namespace, and its lister. The caller runs it. It is client-go's, so it cannot run
// twice: make another one.
//
// resync is the interval at which handlers see all objects again; 0 means never. ListWatch
// describes tweak.
//
// The informer goes on without malformed objects. The package's Caveats say how they are present.
func (c *Client[T]) Informer(resync time.Duration, tweak func(*metav1.ListOptions)) *Informer[T] {
	name := reflect.TypeFor[T]().String()
	informer := cache.NewSharedIndexInformerWithOptions(c.keeping(tweak), nil, cache.SharedIndexInformerOptions{
		ResyncPeriod:      resync,
		Indexers:          cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, malformed.Index: malformed.Values},
		ObjectDescription: name,
	})
	return &Informer[T]{informer: malformed.New(informer, name), kind: c.kind}
}

// Over returns an informer of the client's objects that the caller made, such as a
// scope.Informer or a Watch of package ondemand, with its lister:
//
//	sites := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
//		return websites.Namespace(p.Namespace).Informer(0, p.Options).Informer(), nil
//	})
//	operator.For(c, v1.Resource("websites"), websites.Over(sites))
func (c *Client[T]) Over(informer cache.SharedIndexInformer) *Informer[T] {
	return &Informer[T]{informer: informer, kind: c.kind}
}

// Lister returns a lister of the client's objects in an indexer, such as that of any informer.
func (c *Client[T]) Lister(indexer cache.Indexer) Lister[T] { return c.kind.lister(indexer) }

// Informer is an informer with its lister, as informer-gen makes them. [Client.Informer]
// and [Client.Over] make one.
type Informer[T controllerkit.Object] struct {
	informer cache.SharedIndexInformer
	kind     *kind[T]
}

// Informer returns the informer, each time the same one.
func (i *Informer[T]) Informer() cache.SharedIndexInformer { return i.informer }

// Lister returns the lister of the informer's cache.
func (i *Informer[T]) Lister() Lister[T] {
	return i.kind.lister(i.informer.GetIndexer())
}

// GroupVersionKind returns the kind of the objects, whose Go type may have another name.
func (i *Informer[T]) GroupVersionKind() schema.GroupVersionKind { return i.kind.GroupVersionKind }

func (k *kind[T]) lister(indexer cache.Indexer) Lister[T] {
	return Lister[T]{listers.New[T](indexer, k.resource.GroupResource()), indexer, ""}
}

// Lister reads the objects of an informer's cache. Callers must not modify them.
// [Informer.Lister] and [Client.Lister] make one. It is safe for concurrent use.
type Lister[T controllerkit.Object] struct {
	objects   listers.ResourceIndexer[T]
	indexer   cache.Indexer
	namespace string
}

// Namespace returns the lister of one namespace. "" means all namespaces.
func (l Lister[T]) Namespace(namespace string) Lister[T] {
	return Lister[T]{listers.NewNamespaced(l.objects, namespace), l.indexer, namespace}
}

// List returns the selected objects of the namespace. For all objects, selector is
// labels.Everything(); nil is an error. If some do not fit the Go type, List returns the
// others and an [ErrMalformed] that names up to 10 of them.
func (l Lister[T]) List(selector labels.Selector) ([]T, error) {
	if selector == nil {
		return nil, errors.New("crd: selector is nil: use labels.Everything() for all objects")
	}
	all, ok := malformed.List(l.indexer, l.namespace)
	if !ok {
		return l.objects.List(selector)
	}
	var objects []T
	var bad []*malformed.Object
	for _, obj := range all {
		switch o := obj.(type) {
		case T:
			if selector.Empty() || selector.Matches(labels.Set(o.GetLabels())) {
				objects = append(objects, o)
			}
		case *malformed.Object:
			if selector.Matches(labels.Set(o.Labels)) {
				bad = append(bad, o)
			}
		}
	}
	return objects, malformed.Join(bad)
}

// Get returns the object of that name. The lister of all namespaces finds only
// cluster-scoped objects. The error for an absent object is NotFound, and for a malformed one
// [ErrMalformed].
func (l Lister[T]) Get(name string) (T, error) { return l.objects.Get(name) }
