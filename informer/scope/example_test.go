package scope_test

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
)

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
}

// events returns a handler that sends a line for each event.
func events() (cache.ResourceEventHandler, <-chan string) {
	lines := make(chan string, 10)
	line := func(what string) func(any) {
		return func(obj any) { lines <- what + " " + cache.MetaObjectToName(obj.(metav1.Object)).String() }
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: line("add"), DeleteFunc: line("delete")}, lines
}

// A program changes what an informer of Pods shows.
func Example() {
	client := fake.NewClientset(pod("blue", "web"), pod("green", "web"), pod("green", "db"))
	pods := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, byNamespace, p.Options), nil
	})
	lister := corelisters.NewPodLister(pods.GetIndexer())
	handler, lines := events()
	if _, err := pods.AddEventHandler(handler); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	set := &informer.Set{}
	set.Add("pods", pods)
	stopped := make(chan error)
	go func() { stopped <- set.Run(ctx) }()

	fmt.Println(pods.Select(ctx, scope.Selection{Namespaces: []string{"blue"}}), <-lines)
	fmt.Println(pods.Select(ctx, scope.Selection{Namespaces: []string{"green"}, LabelSelector: "app=db"}), <-lines, <-lines)
	err := pods.Select(ctx, scope.Selection{LabelSelector: "app in (db"})
	text, _, _ := strings.Cut(err.Error(), ": unable")
	fmt.Println(text)
	all, err := lister.List(labels.Everything())
	fmt.Println(len(all), all[0].Name, err)

	cancel()
	fmt.Println(<-stopped)
	// Output:
	// <nil> add blue/web
	// <nil> delete blue/web add green/db
	// scope: Selection.LabelSelector "app in (db" is not valid
	// 1 db <nil>
	// <nil>
}

// The selection of Pods and ConfigMaps is the namespaces with a label.
func ExampleInformer_Follow() {
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue", Labels: map[string]string{"tenant": "true"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "green"}},
		pod("blue", "web"), pod("green", "web"),
	)
	pods := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
	})
	configMaps := pods.With(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewFilteredConfigMapInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
	})
	namespaces := informers.NewSharedInformerFactory(client, 0).Core().V1().Namespaces()
	err := pods.Follow(namespaces.Informer(), func() (scope.Selection, error) {
		tenants, err := namespaces.Lister().List(labels.SelectorFromSet(labels.Set{"tenant": "true"}))
		if err != nil {
			return scope.Selection{}, err
		}
		var names []string
		for _, n := range tenants {
			names = append(names, n.Name)
		}
		return scope.Selection{Namespaces: names}, nil
	})
	if err != nil {
		panic(err)
	}
	handler, lines := events()
	if _, err := pods.AddEventHandler(handler); err != nil {
		panic(err)
	}
	set := &informer.Set{}
	set.Add("namespaces", namespaces.Informer())
	set.Add("pods", pods)
	set.Add("configmaps", configMaps)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- set.Run(ctx) }()

	<-set.HasSyncedChecker().Done()
	fmt.Println(<-lines)
	for _, i := range []*scope.Informer{pods, configMaps} {
		fmt.Println(i.HasSynced(), i.GetStore().ListKeys())
	}
	cancel()
	fmt.Println(<-stopped)
	// Output:
	// add blue/web
	// true [blue/web]
	// true []
	// <nil>
}
