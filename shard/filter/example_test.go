package filter_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// configMaps is the ListerWatcher of a resource.
func configMaps(client kubernetes.Interface) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().ConfigMaps("").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().ConfigMaps("").Watch(ctx, o)
		},
	}, client)
}

func names(list runtime.Object) (names []string) {
	for _, o := range list.(*corev1.ConfigMapList).Items {
		names = append(names, o.Name)
	}
	return names
}

// The fake API server ignores the selector. The informer of the Source still has no object of
// another shard.
func ExampleObjects() {
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: "blue"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two", UID: "green"}},
	)
	ranges := shard.Ranges{N: 2}
	for s := range ranges.N {
		selector, err := ranges.Selector([]int{s})
		if err != nil {
			fmt.Println(err)
			return
		}
		source, err := filter.Objects(configMaps(client), selector) // for cache.NewSharedIndexInformer
		if err != nil {
			fmt.Println(err)
			return
		}
		list, err := source.ListWithContext(context.Background(), metav1.ListOptions{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("shard %d has %v; the API server sent %d objects of others\n", s, names(list), source.Support().Foreign)
	}
	// Output:
	// shard 0 has [two]; the API server sent 1 objects of others
	// shard 1 has [one]; the API server sent 1 objects of others
}

// The children of the owners in shard 0.
func ExampleChildren() {
	controlledBy := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: uid, Controller: ptr.To(true)}}
	}
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: "1", OwnerReferences: controlledBy("blue")}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two", UID: "2", OwnerReferences: controlledBy("green")}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "orphan", UID: "3"}},
	)
	selector, err := shard.Ranges{N: 2}.Selector([]int{0})
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := filter.Children(configMaps(client), selector)
	if err != nil {
		fmt.Println(err)
		return
	}
	list, err := source.ListWithContext(context.Background(), metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(names(list))
	// Output: [two]
}

// A replica adds a shard, and then gives it up.
func ExampleView() {
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", UID: "blue"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two", UID: "green"}},
	)
	informer := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		source, err := filter.Objects(configMaps(client), p.ShardSelector)
		if err != nil {
			return nil, err
		}
		return cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), nil
	})
	view := &filter.View{
		Ranges: shard.Ranges{N: 2},
		Select: func(ctx context.Context, selector string) error {
			if selector == "" {
				return informer.Select(ctx, scope.Selection{})
			}
			return informer.Select(ctx, scope.Selection{Namespaces: []string{""}, ShardSelector: selector})
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { informer.RunWithContext(ctx); stopped <- nil }()
	go func() { stopped <- view.Run(ctx) }()

	err := view.Add(ctx, 0)
	fmt.Println(informer.GetStore().ListKeys(), err) // here the work of the shard begins
	err = view.Remove(ctx, 0)
	fmt.Println(informer.GetStore().ListKeys(), err)

	cancel()
	fmt.Println(<-stopped, <-stopped)
	// Output:
	// [default/two] <nil>
	// [] <nil>
	// <nil> <nil>
}
