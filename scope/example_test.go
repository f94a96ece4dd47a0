package scope_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/scope"
)

// A controller of Pods reads its namespaces and its selector from a ConfigMap, and reads them
// again when the ConfigMap changes.
func Example() {
	settings := func(namespaces, selector string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "scope"},
			Data:       map[string]string{"namespaces": namespaces, "selector": selector},
		}
	}
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}}
	}
	client := fake.NewClientset(pod("blue", "web"), pod("green", "web"), pod("green", "db"), settings("blue", ""))

	watches := &ondemand.Informers[scope.Part]{
		New: func(p scope.Part) (cache.SharedIndexInformer, error) {
			byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
			return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, byNamespace, p.Options), nil
		},
	}
	pods := scope.New(watches.Open)
	lister := corelisters.NewPodLister(pods.GetIndexer())

	// reconcile is called with the name of the ConfigMap when it changes.
	reconcile := func(ctx context.Context, pods *scope.Informer, namespace, name string) error {
		c, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}) // or from its lister
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return pods.Select(ctx, scope.Selection{Namespaces: strings.Fields(c.Data["namespaces"]), LabelSelector: c.Data["selector"]})
	}

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- watches.Run(ctx) }()
	go func() { pods.RunWithContext(ctx); stopped <- nil }()
	events := make(chan string)
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events <- "add " + cache.MetaObjectToName(obj.(*corev1.Pod)).String() },
		DeleteFunc: func(obj any) { events <- "delete " + cache.MetaObjectToName(obj.(*corev1.Pod)).String() },
	})
	if err != nil {
		panic(err)
	}

	fmt.Println(reconcile(ctx, pods, "system", "scope"), <-events)
	for _, s := range []*corev1.ConfigMap{settings("green", "app=web"), settings("green", "app in (web"), settings("green", "app=db")} {
		if _, err := client.CoreV1().ConfigMaps("system").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			panic(err)
		}
		if err := reconcile(ctx, pods, "system", "scope"); err != nil {
			text, _, _ := strings.Cut(err.Error(), ": unable")
			fmt.Println(text)
			continue
		}
		fmt.Println(<-events)
		fmt.Println(<-events)
	}
	_, err = lister.Pods("green").Get("db")
	fmt.Println(err)
	_, err = lister.Pods("blue").Get("web")
	fmt.Println(err)

	cancel()
	fmt.Println(<-stopped, <-stopped)
	// Output:
	// <nil> add blue/web
	// delete blue/web
	// add green/web
	// scope: Selection.LabelSelector "app in (web" is not valid
	// delete green/web
	// add green/db
	// <nil>
	// pod "web" not found
	// <nil> <nil>
}
