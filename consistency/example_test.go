package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
)

// examplePod is a pod as an informer would put it into its store.
func examplePod(rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", ResourceVersion: rv}}
}

// By hand, as with client-go 0.38's store.
func ExampleStore() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc) // usually informer.GetStore()
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
	})
	web := types.NamespacedName{Namespace: "default", Name: "web"}

	_ = pods.Add(examplePod("41"))
	writes.WroteAt(web, "uid-of-web", corev1.Resource("pods"), "42") // the answer to an update

	err := writes.EnsureReady(web)
	var stale controllerkit.StaleError
	fmt.Println(err, errors.As(err, &stale) && stale.Stale())

	_ = pods.Update(examplePod("42")) // the informer has received it
	fmt.Println(writes.EnsureReady(web))
	// Output:
	// consistency: the cache of pods is at version "41", behind the written "42" true
	// <nil>
}

// The gate of a reconcile loop: not before the cache shows the last run's writes.
func ExampleStore_Ready() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
	})
	handler := writes.Handler() // usually added to the informer
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	writes.WroteAt(key, "", corev1.Resource("pods"), "42")

	ready := writes.Ready(key, func() { fmt.Println("add", key, "to the queue") })
	fmt.Println("ready:", ready)

	pod := examplePod("42")
	_ = pods.Add(pod)
	handler.OnAdd(pod, false)
	fmt.Println("ready:", writes.Ready(key, nil))
	// Output:
	// ready: false
	// add default/web to the queue
	// ready: true
}

func ExampleStore_Wait() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
	})
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	writes.WroteAt(key, "", corev1.Resource("pods"), "42")

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("shutting down"))
	fmt.Println(writes.Wait(ctx, key))

	_ = pods.Add(examplePod("42"))
	fmt.Println(writes.Wait(context.Background(), key))
	// Output:
	// consistency: wait for default/web: shutting down: the cache of pods is at version "", behind the written "42"
	// <nil>
}

func ExampleStore_AddInformer() {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	writes := consistency.New(consistency.Config{})
	err := writes.AddInformer(corev1.Resource("pods"), factory.Core().V1().Pods().Informer())
	fmt.Println(err)
	// Output: <nil>
}

// By hand; a transport from Wrap does it by itself.
func ExampleStore_Deleted() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
	})
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	pod := examplePod("41")
	pod.UID = "uid-of-web-0"
	_ = pods.Add(pod)

	writes.Deleted(web, "uid-of-web", corev1.Resource("pods"), types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.UID)
	fmt.Println(writes.EnsureReady(web))

	_ = pods.Delete(pod) // the informer has received the DELETED event
	fmt.Println(writes.EnsureReady(web))
	// Output:
	// consistency: the cache of pods is at version "41" and still holds the deleted object with UID uid-of-web-0
	// <nil>
}

// A reconcile that reads live when the cache cannot be trusted.
func ExampleLiveRead() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	_ = pods.Add(examplePod("41"))
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
		AmbiguousWait: -1, // for the example: run at once
	})
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	reset := roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	client := &http.Client{Transport: writes.Wrap(reset)}

	reconcile := func(ctx context.Context) {
		if consistency.LiveRead(ctx) {
			fmt.Println("list from the server")
			writes.WroteAt(key, "", corev1.Resource("pods"), "41") // the list's version
			return
		}
		fmt.Println("list from the cache, and create what is missing")
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://server/api/v1/namespaces/default/pods", nil)
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}
	for range 3 { // the loop's part
		if writes.Ready(key, nil) {
			reconcile(writes.Begin(context.Background(), key))
			writes.End(key)
		}
	}
	// Output:
	// list from the cache, and create what is missing
	// list from the server
	// list from the cache, and create what is missing
}

// A loop without a transport from Wrap says by itself what was refused.
func ExampleStore_Refused() {
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	_ = pods.Add(examplePod("41"))
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): pods,
		},
	})
	owner := types.NamespacedName{Namespace: "default", Name: "web"}
	pod := examplePod("41")
	err := error(apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("it has changed"))) // from an update
	if apierrors.IsConflict(err) {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		writes.Refused(owner, "", corev1.Resource("pods"), name, pod.ResourceVersion)
	}
	fmt.Println(writes.EnsureReady(owner))
	_ = pods.Update(examplePod("43"))
	fmt.Println(writes.EnsureReady(owner))
	// Output:
	// consistency: the cache of pods has default/web-0 at version "41", and a write at version "41" was refused
	// <nil>
}

// Usually rest.Config.Wrap(writes.Wrap), before the clients are made.
func ExampleStore_Wrap() {
	server := roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: http.StatusCreated,
			Header:     http.Header{"Content-Type": {"application/json"}},
			Body:       io.NopCloser(strings.NewReader(`{"kind":"Pod","metadata":{"name":"web-0","resourceVersion":"42"}}`)),
		}, nil
	})
	writes := consistency.New(consistency.Config{
		Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
			corev1.Resource("pods"): cache.NewStore(cache.MetaNamespaceKeyFunc),
		},
	})
	client := &http.Client{Transport: writes.Wrap(server)}

	key := types.NamespacedName{Namespace: "default", Name: "web"}
	ctx := writes.Begin(context.Background(), key) // the loop's part
	defer writes.End(key)
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://server/api/v1/namespaces/default/pods", nil)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(writes.EnsureReady(key))
	// Output: consistency: the cache of pods is at version "", behind the written "42"
}
