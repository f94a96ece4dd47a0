package informer_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// healing is the transport losing until it is healed.
type healing struct {
	next   http.RoundTripper
	healed atomic.Bool
}

func (h *healing) RoundTrip(req *http.Request) (*http.Response, error) {
	if h.healed.Load() {
		return h.next.RoundTrip(req)
	}
	return losing{h.next}.RoundTrip(req)
}

// listing lists ConfigMaps by requests, and never by a stream.
type listing struct{ *cache.ListWatch }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

func listConfigMaps(client corev1client.ConfigMapInterface) listing {
	return listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}}
}

// TestServerRelist: a proxy loses events, and then an informer is made to list again, one
// whose lists are streamed and one that lists by requests.
//
// Proves I6.
func TestServerRelist(t *testing.T) {
	for _, kind := range []string{"streamed", "listed", "compact"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			namespace := testserver.Namespace(t)
			admin := typedClient(t, testserver.Config(t)).CoreV1().ConfigMaps(namespace)
			config := testserver.Config(t)
			config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
			proxy := &healing{}
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { proxy.next = next; return proxy })
			config.Wrap(informer.EndSilentWatches(-1))
			inf := configMapsOf(t, config, namespace)
			switch kind {
			case "compact":
				inf = compactConfigMapsOf(t, config, namespace)
			case "listed":
				inf = cache.NewSharedIndexInformer(listConfigMaps(typedClient(t, config).CoreV1().ConfigMaps(namespace)), &corev1.ConfigMap{}, 0, nil)
			}
			events := make(chan string, 100)
			note := func(event string, obj any) {
				if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = last.Obj
				}
				if name := obj.(*corev1.ConfigMap).Name; !strings.HasPrefix(name, "kube-") {
					events <- event + " " + name
				}
			}
			handler, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(obj any) { note("add", obj) },
				UpdateFunc: func(old, obj any) {
					if old.(*corev1.ConfigMap).ResourceVersion != obj.(*corev1.ConfigMap).ResourceVersion {
						note("update", obj)
					}
				},
				DeleteFunc: func(obj any) { note("delete", obj) },
			})
			if err != nil {
				t.Fatal(err)
			}
			await := func(want ...string) {
				t.Helper()
				var got []string
				for late := time.After(2 * time.Minute); len(got) < len(want); {
					select {
					case event := <-events:
						got = append(got, event)
					case <-late:
						t.Fatalf("events %q, want %q", got, want)
					}
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("events %q, want %q", got, want)
				}
			}
			set := &informer.Set{Timeout: time.Minute, StopTimeout: time.Minute}
			set.Add("configmaps", inf, handler)
			ctx, cancel := context.WithCancel(quiet(t))
			done := make(chan error, 1)
			go func() { done <- set.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			<-set.HasSyncedChecker().Done()
			create := func(name string) {
				t.Helper()
				if _, err := admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			create("lost-modified-0")
			create("lost-deleted-0")
			await("add lost-deleted-0", "add lost-modified-0")
			create("lost-added-0")
			if _, err := admin.Patch(t.Context(), "lost-modified-0", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := admin.Delete(t.Context(), "lost-deleted-0", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			create("seen") // events arrive in order, so the lost ones have passed
			await("add seen")

			proxy.healed.Store(true)
			if err := set.Relist("configmaps"); err != nil {
				t.Fatal(err)
			}
			await("add lost-added-0", "delete lost-deleted-0", "update lost-modified-0")
			list, err := admin.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want, got := map[string]string{}, map[string]string{}
			for _, cm := range list.Items {
				want[cm.Name] = cm.ResourceVersion
			}
			for _, obj := range inf.GetStore().List() {
				got[obj.(*corev1.ConfigMap).Name] = obj.(*corev1.ConfigMap).ResourceVersion
			}
			if !maps.Equal(got, want) {
				t.Errorf("the cache has %v, and the API server %v", got, want)
			}
			create("later") // the watch goes on, and without a second list
			await("add later")
		})
	}
}

// Relist names what it cannot do.
func TestServerRelistMisuse(t *testing.T) {
	t.Parallel()
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", configMapsOf(t, testserver.Config(t), testserver.Namespace(t)))
	refused := func(name, want string) {
		t.Helper()
		if err := set.Relist(name); err == nil || err.Error() != want {
			t.Errorf("Relist(%q) = %v, want %s", name, err, want)
		}
	}
	refused("configmaps", `informer: Relist("configmaps"): the Set is not running`)
	ctx, cancel := context.WithCancelCause(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	<-set.HasSyncedChecker().Done()
	refused("secrets", `informer: Relist("secrets"): the Set has no informer with this name: use the name that was given to Add`)
	refused("configmaps", `informer: Relist("configmaps"): the informer's client has no transport that can end its watch: wrap its config with EndSilentWatches`)
	cancel(errors.New("the end"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	refused("configmaps", `informer: Relist("configmaps"): the Set is not running`)
}
