package source_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// TestShared: a handler of the shared informer gets each event before the first handler of the source, in
// the same goroutine.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
		var set source.Set
		pods, err := set.Of(served.Resource{GroupResource: corev1.Resource("pods")}, informer)
		if err != nil {
			t.Fatal(err)
		}
		var got []string // without a lock: the race detector finds a second goroutine
		handler := func(name string) cache.ResourceEventHandler {
			return cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { got = append(got, name+" add") },
				UpdateFunc: func(any, any) { got = append(got, name+" update") },
				DeleteFunc: func(any) { got = append(got, name+" delete") },
			}
		}
		first, err := pods.AddEventHandler(handler("first"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := pods.Shared().AddEventHandler(handler("shared"))
		if err != nil {
			t.Fatal(err)
		}
		if first.HasSyncedChecker().Done() != second.HasSyncedChecker().Done() {
			t.Error("the shared handler has a queue of its own")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go informer.RunWithContext(ctx)
		synctest.Wait()
		if err := pods.Shared().RemoveEventHandler(second); err != nil {
			t.Error(err) // all handlers stay
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
		api := client.CoreV1().Pods("a")
		if _, err := api.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		pod.Labels = map[string]string{"x": "y"}
		if _, err := api.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := api.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if want := []string{"shared add", "first add", "shared update", "first update", "shared delete", "first delete"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
