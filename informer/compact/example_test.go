package compact_test

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/informer/compact"
)

// The Pods of a cluster, without their environment and volumes.
func ExampleNew() {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://kubernetes.default"})
	if err != nil {
		panic(err)
	}
	pods, err := compact.New[*corev1.Pod](client.CoreV1().RESTClient(), "pods", compact.Options{
		Drop: []string{"spec.containers.env", "spec.volumes"},
		Indexers: cache.Indexers{"node": func(obj any) ([]string, error) {
			return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
		}},
	})
	fmt.Printf("%T %v\n", pods, err)

	_, err = compact.New[*corev1.Pod](client.CoreV1().RESTClient(), "pods", compact.Options{Drop: []string{"spec.environment"}})
	fmt.Println(err)
	// Output:
	// *compact.Informer[*k8s.io/api/core/v1.Pod] <nil>
	// compact: Drop of Pod: path "spec.environment": no field "environment" in a v1.PodSpec
}

// A custom resource without generated code.
func ExampleNew_customResource() {
	fake, err := crdtest.NewFake(gadgets.WithKind("Gadget"), "gadgets", &Gadget{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "one"}, Spec: GadgetSpec{Text: "hello"}})
	if err != nil {
		panic(err)
	}
	client := fake.Client // in a controller, crd.New
	informer, err := compact.New[*Gadget](client.RESTClient(), "gadgets", compact.Options{})
	if err != nil {
		panic(err)
	}
	lister := client.Over(informer).Lister() // and operator.For(c, resource, client.Over(informer))

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); informer.RunWithContext(ctx) }() // in a controller, an informer.Set
	<-informer.HasSyncedChecker().Done()
	one, err := lister.Namespace("blue").Get("one")
	fmt.Println(one.Spec.Text, err)
	cancel()
	<-stopped
	// Output:
	// hello <nil>
}

// A test of a controller has a fake clientset, which has no REST client.
func ExampleOver() {
	label := map[string]string{"app": "web"}
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "settings", Labels: label}, Data: map[string]string{"color": "blue"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "settings"}},
	)
	all := client.CoreV1().ConfigMaps("")
	informer, err := compact.Over[*corev1.ConfigMap](cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  lists(all.List),
		WatchFuncWithContext: all.Watch,
	}, client), compact.Options{})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go informer.RunWithContext(ctx) // in a controller, by an informer.Set
	<-informer.HasSyncedChecker().Done()

	settings, err := informer.Get("blue", "settings")
	settings.Data["color"] = "green" // it is the caller's
	again, _ := corelisters.NewConfigMapLister(informer.GetIndexer()).ConfigMaps("blue").Get("settings")
	fmt.Println(settings.Data["color"], again.Data["color"], err)

	web, err := informer.List("", labels.SelectorFromSet(label))
	fmt.Println(len(web), err)
	// Output:
	// green blue <nil>
	// 1 <nil>
}

// A manager of controller-runtime has the function as its cache.Options.NewInformer. The objects of
// its lists and watches belong to a Go type.
func ExampleNewInformer() {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "settings"}})
	all := client.CoreV1().ConfigMaps("")
	informer := compact.NewInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  lists(all.List),
		WatchFuncWithContext: all.Watch,
	}, client), &corev1.ConfigMap{}, 0, cache.Indexers{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go informer.RunWithContext(ctx)
	<-informer.HasSyncedChecker().Done()

	first, _, _ := informer.GetStore().GetByKey("blue/settings")
	second, _, err := informer.GetStore().GetByKey("blue/settings")
	fmt.Println(first.(*corev1.ConfigMap).Name, first == second, err)
	// Output:
	// settings false <nil>
}

// A loop over a large cache needs the memory of one object.
func ExampleInformer_All() {
	informer := example()
	var names []string
	for c, err := range informer.All() {
		if err == nil && c.Data["color"] == "blue" {
			names = append(names, c.Name)
		}
	}
	fmt.Println(names)
	// Output:
	// [a]
}

// Names, owners and labels need no decoding.
func ExampleInformer_Headers() {
	informer := example()
	var names []string
	for header := range informer.Headers() {
		if header.GetDeletionTimestamp() == nil {
			names = append(names, header.GetName())
		}
	}
	fmt.Println(slices.Sorted(slices.Values(names)))
	header, ok := informer.Header("blue", "a")
	fmt.Println(header.GetUID(), ok)
	_, ok = informer.Header("blue", "absent")
	fmt.Println(ok)
	// Output:
	// [a b]
	// uid-a true
	// false
}

// The lookup by an index returns new objects.
func ExampleInformer_ByIndex() {
	informer := example()
	blue, err := informer.ByIndex("color", "blue")
	fmt.Println(len(blue), blue[0].Name, err)
	// Output:
	// 1 a <nil>
}

// example returns an informer that has synced.
func example() *compact.Informer[*corev1.ConfigMap] {
	informer, err := compact.Over[*corev1.ConfigMap](&cache.ListWatch{}, compact.Options{Indexers: cache.Indexers{"color": func(obj any) ([]string, error) {
		return []string{obj.(*corev1.ConfigMap).Data["color"]}, nil
	}}})
	if err != nil {
		panic(err)
	}
	for name, color := range map[string]string{"a": "blue", "b": "red"} {
		c := configMap(name)
		c.Namespace, c.Data = "blue", map[string]string{"color": color}
		if err := informer.GetStore().Add(c); err != nil {
			panic(err)
		}
	}
	return informer
}
