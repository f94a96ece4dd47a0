package watcher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Source lists and watches a collection of objects of type T. Both methods must return
// when their context is done, and the watch must close its channel when it is stopped.
// The watcher calls them one at a time, from goroutines of its own.
type Source[T controllerkit.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (items []T, list metav1.ListMeta, err error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// ListerWatcher has the two methods of typed, dynamic and metadata clients that [Client]
// uses. L is their type of list.
type ListerWatcher[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Client returns the Source of a client. T is the type of its objects; L is inferred:
//
//	watcher.Client[*corev1.Pod](clientset.CoreV1().Pods("default"))
//	watcher.Client[*unstructured.Unstructured](dynamicClient.Resource(gvr))
//	watcher.Client[*metav1.PartialObjectMetadata](metadataClient.Resource(gvr))
//
// If the client returns objects of a type other than T, Events ends with an error.
// Client(nil) is nil.
func Client[T controllerkit.Object, L runtime.Object](c ListerWatcher[L]) Source[T] {
	if kube.IsNil(c) {
		return nil // Events returns an error
	}
	return client[T, L]{c}
}

type client[T controllerkit.Object, L runtime.Object] struct{ ListerWatcher[L] }

// List hides the List of the client.
func (c client[T, L]) List(ctx context.Context, opts metav1.ListOptions) ([]T, metav1.ListMeta, error) {
	list, err := c.ListerWatcher.List(ctx, opts)
	if err != nil {
		return nil, metav1.ListMeta{}, err
	}
	listMeta, err := meta.ListAccessor(list)
	if err != nil {
		return nil, metav1.ListMeta{}, misuse{fmt.Errorf("the client returned an object that is not a list: %w", err)}
	}
	items := make([]T, 0, meta.LenList(list))
	// Each item is copied: otherwise one kept object would keep the whole array alive.
	err = meta.EachListItemWithAlloc(list, func(item runtime.Object) error {
		object, ok := item.(T)
		if !ok {
			return misuse{fmt.Errorf("the client lists %T, not the %T of RetryWatcher: use the type that the client returns", item, object)}
		}
		items = append(items, object)
		return nil
	})
	return items, metav1.ListMeta{ResourceVersion: listMeta.GetResourceVersion(), Continue: listMeta.GetContinue()}, err
}
