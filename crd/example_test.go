package crd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/informer/scope"
)

// apiServer responds to each request with a Website.
func apiServer() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"namespace":"default","name":"shop"},"spec":{"host":"shop.example.com"}}`)
	}))
}

// The client of a Go type needs the configuration of the cluster, the kind and the
// resource.
func Example() {
	server := apiServer()
	defer server.Close()
	websites, err := crd.New[*Website](&rest.Config{Host: server.URL}, websiteKind, "websites")
	if err != nil {
		fmt.Println(err)
		return
	}
	shop, err := websites.Namespace("default").Get(context.Background(), "shop", metav1.GetOptions{})
	fmt.Println(shop.Spec.Host, err)
	// Output:
	// GET /apis/crd.example.com/v1/namespaces/default/websites/shop
	// shop.example.com <nil>
}

// Two clients share the transport and the rate limiter.
func ExampleNewForConfigAndClient() {
	server := apiServer()
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	websites, err := crd.NewForConfigAndClient[*Website](config, h, websiteKind, "websites")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = websites.Namespace("default").Get(context.Background(), "shop", metav1.GetOptions{})
	fmt.Println(err)
	// Output:
	// GET /apis/crd.example.com/v1/namespaces/default/websites/shop
	// <nil>
}

// An informer fills the cache that a lister reads.
func ExampleClient_Informer() {
	fake, err := crdtest.NewFake(websiteKind, "websites", website("default", "shop"), website("other", "shop"))
	if err != nil {
		fmt.Println(err)
		return
	}
	source := fake.Namespace("default").Informer(0, nil)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		source.Informer().RunWithContext(ctx) // a program gives it to an informer.Set
	}()
	cache.WaitForCacheSync(ctx.Done(), source.Informer().HasSynced)
	websites, err := source.Lister().List(labels.Everything())
	fmt.Println(len(websites), websites[0].Namespace, err)
	cancel()
	<-stopped
	// Output: 1 default <nil>
}

// A scope of Websites covers namespaces that can change. Over adds its lister.
func ExampleClient_Over() {
	fake, err := crdtest.NewFake(websiteKind, "websites", website("blue", "shop"), website("green", "shop"))
	if err != nil {
		fmt.Println(err)
		return
	}
	informer := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return fake.Namespace(p.Namespace).Informer(0, p.Options).Informer(), nil
	})
	source := fake.Over(informer) // for operator.For, or an informer.Set
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); source.Informer().RunWithContext(ctx) }()
	fmt.Println(informer.Select(ctx, scope.Selection{Namespaces: []string{"blue"}}))
	websites, err := source.Lister().List(labels.Everything())
	fmt.Println(len(websites), websites[0].Namespace, err)
	cancel()
	<-stopped
	// Output:
	// <nil>
	// 1 blue <nil>
}

// A unit test fills an indexer by hand.
func ExampleClient_Lister() {
	fake, err := crdtest.NewFake[*Website](websiteKind, "websites")
	if err != nil {
		fmt.Println(err)
		return
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	fmt.Println(indexer.Add(website("blue", "shop")))
	shop, err := fake.Lister(indexer).Namespace("blue").Get("shop")
	fmt.Println(shop.Name, err)
	// Output:
	// <nil>
	// shop <nil>
}

// A configuration has the fields that the caller owns.
func ExampleClient_Apply() {
	fake, err := crdtest.NewFake[*Website](websiteKind, "websites")
	if err != nil {
		fmt.Println(err)
		return
	}
	type spec struct {
		Replicas int32 `json:"replicas"`
	}
	config := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        map[string]string `json:"metadata"`
		Spec            spec              `json:"spec"`
	}{
		metav1.TypeMeta{APIVersion: "crd.example.com/v1", Kind: "Website"},
		map[string]string{"name": "shop"},
		spec{2},
	}
	shop, err := fake.Namespace("default").Apply(context.Background(), config, metav1.ApplyOptions{FieldManager: "shop-controller"})
	fmt.Println(shop.Namespace, shop.Spec.Replicas, shop.ManagedFields[0].Manager, err)
	// Output: default 2 shop-controller <nil>
}

// A dynamic client fits where a typed one does.
func ExampleDynamic() {
	cached := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.example.com/v1", "kind": "Website",
		"metadata": map[string]any{"namespace": "default", "name": "shop", "uid": "1", "resourceVersion": "7"},
	}}
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), cached)
	websites := crd.Dynamic(client.Resource(websiteResource).Namespace("default"))
	live, err := consistency.ConfirmLive(context.Background(), websites, cached)
	fmt.Println(live.GetName(), err)
	// Output: shop <nil>
}
