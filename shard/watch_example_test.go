package shard_test

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

// The shard of an object, and the selector of the shards of a replica.
func ExampleRanges() {
	ranges := shard.Ranges{N: 4}
	obj := &metav1.ObjectMeta{Name: "web", UID: "0e4362f8-66ea-4ebc-bbd5-7ebb1bd88eff"}
	fmt.Println(ranges.Of(obj))
	fmt.Println(ranges.Selector([]int{0, 1, 3}))
	// Output:
	// 0 <nil>
	// shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000') <nil>
}

// Namespaces with similar names: with ranges of equal size all of these are in one shard.
func ExampleRanges_Cut() {
	observed := map[string]int{"tenant-001": 10, "tenant-002": 10, "tenant-003": 10, "tenant-004": 10}
	ranges, err := shard.Ranges{N: 2}.Cut(observed)
	if err != nil {
		fmt.Println(err)
		return
	}
	objects := make([]int, 2)
	for name, n := range observed {
		s, err := ranges.Of(&metav1.ObjectMeta{Namespace: name})
		if err != nil {
			fmt.Println(err)
			return
		}
		objects[s] += n
	}
	fmt.Println(objects)
	// Output: [20 20]
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
		source, err := shard.Objects(configMaps(client), selector) // for cache.NewSharedIndexInformer
		if err != nil {
			fmt.Println(err)
			return
		}
		list, err := source.ListWithContext(context.Background(), metav1.ListOptions{})
		if err != nil {
			fmt.Println(err)
			return
		}
		support, err := source.Probe(context.Background())
		fmt.Printf("shard %d has %v; the API server honors the selector: %t %v\n", s, names(list), support.Honored, err)
	}
	// Output:
	// shard 0 has [two]; the API server honors the selector: false <nil>
	// shard 1 has [one]; the API server honors the selector: false <nil>
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
	source, err := shard.Children(configMaps(client), selector)
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
		source, err := shard.Objects(configMaps(client), p.ShardSelector)
		if err != nil {
			return nil, err
		}
		return cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), nil
	})
	view := &shard.View{
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
