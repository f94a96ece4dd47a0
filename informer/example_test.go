package informer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/metadata/metadatalister"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"time"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/ondemand"
)

// A Set starts the informers, tells when they are synced, and stops them.
func ExampleSet() {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	factory := informers.NewSharedInformerFactory(client, 0)
	configMaps := factory.Core().V1().ConfigMaps()
	handler, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { fmt.Println("added", obj.(*corev1.ConfigMap).Name) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	var set informer.Set
	set.Add("configmaps", configMaps.Informer(), handler)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()

	<-set.HasSyncedChecker().Done()
	fmt.Println("ready:", set.Ready() == nil)
	cancel()
	fmt.Println("stopped:", <-done)
	// Output:
	// added a
	// ready: true
	// stopped: <nil>
}

// A Set finds objects of a cache that the program changes, in a sample of them.
func ExampleMutation() {
	set := &informer.Set{Mutated: func(m informer.Mutation) {
		klog.Background().Error(errors.New(m.String()), "An object of a cache was changed")
	}}
	// What the Set calls it with:
	fmt.Println(informer.Mutation{Name: "configmaps", Key: "default/blue", Path: `.metadata.labels["app"]`})
	fmt.Println(len(set.LastMutations()), "so far")
	// Output:
	// informer: "configmaps": the program changed default/blue in the cache at ".metadata.labels[\"app\"]": make a DeepCopy of an object before a change
	// 0 so far
}

// A Set runs informers that are opened while it runs.
func ExampleSet_AddRun() {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	watches := &ondemand.Informers[string]{New: func(namespace string) (cache.SharedIndexInformer, error) {
		return coreinformers.NewConfigMapInformer(client, namespace, 0, cache.Indexers{}), nil
	}}
	set := &informer.Set{}
	set.AddRun("watches", watches.Run)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()

	watch, err := watches.Open("default")
	if err != nil {
		panic(err)
	}
	fmt.Println(watch.WaitForSync(ctx), watch.GetStore().ListKeys())
	cancel()
	fmt.Println("stopped:", <-done)
	// Output:
	// <nil> [default/a]
	// stopped: <nil>
}

// An informer that no factory makes gets a lister.
func ExampleWith() {
	client := fake.NewClientset()
	configMaps := informer.With(coreinformers.NewConfigMapInformer(client, "default", 0, cache.Indexers{}), corelisters.NewConfigMapLister)
	byOwner, err := informer.Index(configMaps, "owner", func(c *corev1.ConfigMap) []string { return []string{c.Labels["owner"]} })
	if err != nil {
		fmt.Println(err)
		return
	}
	ofWeb, err := byOwner("web")
	fmt.Println(len(ofWeb), err)
	all, err := configMaps.Lister().List(labels.Everything())
	fmt.Println(len(all), err)
	// Output:
	// 0 <nil>
	// 0 <nil>
}

// An informer that may not list its resource is an error that says what to do.
func ExampleSet_Run() {
	client := fake.NewClientset()
	client.PrependReactor("list", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no rule"))
	})
	set := informer.Set{Timeout: 100 * time.Millisecond}
	set.Add("secrets", informers.NewSharedInformerFactory(client, 0).Core().V1().Secrets().Informer())
	err := set.Run(klog.NewContext(context.Background(), klog.Logger{}))
	fmt.Println(apierrors.IsForbidden(err))
	fmt.Println(err)
	// Output:
	// true
	// informer: not synced within 100ms: "secrets": forbidden to list: a Role or ClusterRole must allow verbs ["list" "watch"] on resources ["secrets"] in apiGroups [""]: failed to list *v1.Secret: secrets is forbidden: no rule
}

// Trim is given to a factory, or to one informer with SetTransform.
func ExampleTrim() {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "a",
		ResourceVersion: "7",
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	if _, err := informer.Trim(obj); err != nil {
		fmt.Println(err)
	}
	fmt.Println(len(obj.ManagedFields), obj.ResourceVersion)

	_ = informers.NewSharedInformerFactoryWithOptions(fake.NewClientset(), 0, informers.WithTransform(informer.Trim))
	// Output: 0 7
}

// An informer of client-go that holds only the metadata of Secrets, with Trim. A typed lister
// reads it.
func ExampleTrim_metadataOnly() {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		fmt.Println(err)
		return
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{ // in a program, metadata.NewForConfig
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
	})
	factory := metadatainformer.NewSharedInformerFactoryWithOptions(client, 0, metadatainformer.WithTransform(informer.Trim))
	resource := corev1.SchemeGroupVersion.WithResource("secrets")
	secrets := factory.ForResource(resource) // for operator.Owns, informer.Index and others
	lister := metadatalister.New(secrets.Informer().GetIndexer(), resource)

	var set informer.Set
	set.Add("secrets", secrets.Informer())
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	<-set.HasSyncedChecker().Done()

	secret, err := lister.Namespace("shop").Get("a")
	fmt.Println(secret.Name, len(secret.ManagedFields), err)
	cancel()
	fmt.Println(<-done)
	// Output:
	// a 0 <nil>
	// <nil>
}

func ExampleConsistentLists() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { // stands for the network
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			fmt.Println(req.URL.Path, req.URL.Query())
			return nil, errors.New("no server")
		})
	})
	config.Wrap(informer.ConsistentLists)
	client := kubernetes.NewForConfigOrDie(config)
	_, err := client.CoreV1().Pods("shop").List(context.Background(), metav1.ListOptions{Limit: 500, ResourceVersion: "0"})
	fmt.Println(err != nil)
	// Output:
	// /api/v1/namespaces/shop/pods map[limit:[500]]
	// true
}

// Index makes a lookup by a field. Here: the Pods of a node.
func ExampleIndex() {
	client := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}, Spec: corev1.PodSpec{NodeName: "n1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b"}, Spec: corev1.PodSpec{NodeName: "n2"}},
	)
	pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods()
	byNode, err := informer.Index(pods, "node", func(p *corev1.Pod) []string { return []string{p.Spec.NodeName} })
	if err != nil {
		fmt.Println(err)
		return
	}
	var set informer.Set
	set.Add("pods", pods.Informer())
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	<-set.HasSyncedChecker().Done()

	found, err := byNode("n1")
	for _, p := range found {
		fmt.Println(p.Name)
	}
	fmt.Println(err)
	cancel()
	fmt.Println(<-done)
	// Output:
	// a
	// <nil>
	// <nil>
}

// An Audit beside the Set reports what the cache of Pods has lost.
func ExampleAudit() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	pods := factory.Core().V1().Pods().Informer()
	lost := func(d informer.Difference) { fmt.Println(d) } // and count it, or end the process

	audit := &informer.Audit{Report: lost}
	audit.Add("pods", pods, metadata.NewForConfigOrDie(config).Resource(corev1.SchemeGroupVersion.WithResource("pods")).List)
	// Run it beside the Set: group.Add("audit", audit.Run)

	lost(informer.Difference{Name: "pods", Key: "shop/a", Server: "7"})
	// Output: informer: "pods": the cache lacks shop/a, which the API server has at version 7
}

// A controller that watches all Secrets holds the data of its own.
func ExampleKeepMetadata() {
	transform := informer.KeepMetadata(func(o metav1.Object) bool { return o.GetLabels()["app"] == "web" })
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Data: map[string][]byte{"password": []byte("secret")}}
	if _, err := transform(foreign); err != nil {
		fmt.Println(err)
	}
	fmt.Println(foreign.Name, len(foreign.Data))
	// Output: other 0
}

func ExampleEndSilentWatches() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { // stands for a network that loses all events
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: req.Context()}}, nil
		})
	})
	config.Wrap(informer.EndSilentWatches(100 * time.Millisecond))
	client := kubernetes.NewForConfigOrDie(config)
	w, err := client.CoreV1().Pods("shop").Watch(klog.NewContext(context.Background(), klog.Logger{}), metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, open := <-w.ResultChan()
	fmt.Println(open)
	// Output: false
}

// Size shows what an object costs, here before and after Trim.
func ExampleSize() {
	cm := &corev1.ConfigMap{Data: map[string]string{"page.html": strings.Repeat("x", 10_000)}}
	cm.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 10_000)}
	fmt.Println(informer.Size(cm)>>10, "KiB")
	trimmed, err := informer.Trim(cm)
	fmt.Println(informer.Size(trimmed)>>10, "KiB", err)
	// Output:
	// 20 KiB
	// 10 KiB <nil>
}

func ExampleGuard() {
	owner := func(obj any) (any, error) { // panics if the object has no owner
		c := obj.(*corev1.ConfigMap)
		c.Labels = map[string]string{"owner": c.OwnerReferences[0].Name}
		return c, nil
	}
	transform := informer.Guard(owner, func(err error) { fmt.Println(err) })
	obj, err := transform(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	fmt.Println(obj.(*corev1.ConfigMap).Name, err)
	// Output:
	// informer: transform ConfigMap default/a: panic: runtime error: index out of range [0] with length 0
	// a <nil>
}
