package ondemand_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// traffic counts the watches that are open, and those that were started.
type traffic struct {
	next    http.RoundTripper
	mu      *sync.Cond // guards the fields below
	started map[string]int
	open    int
}

func newTraffic(config *rest.Config) *traffic {
	t := &traffic{mu: sync.NewCond(&sync.Mutex{}), started: map[string]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { t.next = next; return t })
	return t
}

func (t *traffic) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *traffic) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") {
		t.mu.L.Lock()
		defer t.mu.L.Unlock()
		t.started[req.URL.Path]++
		t.mu.Broadcast()
		t.open++
		resp.Body = &body{ReadCloser: resp.Body, end: sync.OnceFunc(func() {
			t.mu.L.Lock()
			defer t.mu.L.Unlock()
			t.open--
			t.mu.Broadcast()
		})}
	}
	return resp, err
}

// waitForNone waits until no watch is open.
func (t *traffic) waitForNone(test *testing.T) {
	test.Helper()
	late := false
	defer time.AfterFunc(time.Minute, func() {
		t.mu.L.Lock()
		defer t.mu.L.Unlock()
		late = true
		t.mu.Broadcast()
	}).Stop()
	t.mu.L.Lock()
	defer t.mu.L.Unlock()
	for t.open > 0 && !late {
		t.mu.Wait()
	}
	if t.open > 0 {
		test.Errorf("%d watches of the server are still open", t.open)
	}
}

func (t *traffic) watches(path string) int {
	t.mu.L.Lock()
	defer t.mu.L.Unlock()
	return t.started[path]
}

type body struct {
	io.ReadCloser
	end func()
}

func (b *body) Close() error { defer b.end(); return b.ReadCloser.Close() }

// clients share connections that are closed with the test.
func clients(t *testing.T, config *rest.Config) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(h.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, h)
	must(t, err)
	loose, err := dynamic.NewForConfigAndClient(config, h)
	must(t, err)
	return client, loose
}

// configMaps returns Informers of the ConfigMaps of a namespace.
func configMaps(client kubernetes.Interface) *ondemand.Informers[string] {
	return &ondemand.Informers[string]{
		New: func(namespace string) (cache.SharedIndexInformer, error) {
			return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace)).Core().V1().ConfigMaps().Informer(), nil
		},
		StopTimeout: time.Minute,
	}
}

func create(t *testing.T, client kubernetes.Interface, namespace, name string) {
	t.Helper()
	_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
}

// keys is a queue that passes on the names of the keys.
type keys struct{ names chan string }

func (k keys) Add(key types.NamespacedName) { k.names <- key.Name }

// next waits until the name is added.
func (k keys) next(t *testing.T, name string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case got := <-k.names:
			if got == name {
				return
			}
		case <-late:
			t.Errorf("no key %s", name)
			return
		}
	}
}

// Proves OD2 and OD1: two Watches share a watch of the server, an enqueue handler ends with
// its Watch, and the last Close ends the server's watch.
func TestServerShares(t *testing.T) {
	t.Run("typed", func(t *testing.T) { shares(t, configMaps, enqueue.KeyOf[*corev1.ConfigMap]) })
	t.Run("compact", func(t *testing.T) {
		shares(t, func(client kubernetes.Interface) *ondemand.Informers[string] {
			all := configMaps(client)
			all.New = func(namespace string) (cache.SharedIndexInformer, error) {
				return compact.New[*corev1.ConfigMap](client.CoreV1().RESTClient(), "configmaps", compact.Options{Namespace: namespace})
			}
			return all
		}, enqueue.KeyOf[metav1.Object])
	})
}

func shares[T any](t *testing.T, of func(kubernetes.Interface) *ondemand.Informers[string], keyOf func(T) []types.NamespacedName) {
	t.Helper()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	counted := newTraffic(config)
	client, _ := clients(t, config)
	all := of(client)
	stop := run(quiet(t), all)
	a, b := keys{make(chan string, 1000)}, keys{make(chan string, 1000)}
	first := open(t, all, namespace, enqueue.Handler(a, keyOf))
	second := open(t, all, namespace, enqueue.Handler(b, keyOf))
	must(t, first.WaitForSync(t.Context()))
	must(t, second.WaitForSync(t.Context()))
	create(t, client, namespace, "one")
	a.next(t, "one")
	b.next(t, "one")
	must(t, first.Close(t.Context()))
	create(t, client, namespace, "two")
	b.next(t, "two")
	for len(a.names) > 0 {
		if name := <-a.names; name == "two" {
			t.Error("a handler added a key after the Close of its Watch")
		}
	}
	if n := counted.watches("/api/v1/namespaces/" + namespace + "/configmaps"); n != 1 {
		t.Errorf("two Watches of a key made %d watches, want 1", n)
	}
	must(t, second.Close(t.Context()))
	if !second.IsStopped() {
		t.Error("the last Close returned before the informer stopped")
	}
	counted.waitForNone(t) // while Run runs
	must(t, stop())
}

// Informers of the server start, sync, receive events and stop, with keys that are shared and
// not shared, and no watch stays.
//
// Proves OD1, OD2, OD3.
func TestServerStartsAndStops(t *testing.T) {
	const users, rounds = 4, 25
	config := testserver.Config(t)
	config.QPS = -1 // the limit of clients is not the subject
	counted := newTraffic(config)
	client, _ := clients(t, config)
	namespaces := []string{testserver.Namespace(t), testserver.Namespace(t)}
	for _, namespace := range namespaces {
		create(t, client, namespace, "one")
	}
	all := configMaps(client)
	stop := run(quiet(t), all)
	var group sync.WaitGroup
	for user := range users {
		group.Go(func() {
			for round := range rounds {
				var closed atomic.Bool
				w, err := all.Open(namespaces[(user+round)%2])
				if err != nil {
					t.Error(err)
					return
				}
				added := keys{make(chan string, 1000)}
				_, err = w.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
					if closed.Load() {
						t.Error("a handler runs after Close")
					}
					added.names <- obj.(*corev1.ConfigMap).Name
				}})
				if err != nil {
					t.Error(err)
					return
				}
				if round%5 > 0 {
					if err := w.WaitForSync(t.Context()); err != nil {
						t.Error(err)
					}
					added.next(t, "one")
				}
				if err := w.Close(t.Context()); err != nil {
					t.Error(err)
				}
				closed.Store(true)
			}
		})
	}
	group.Wait()
	counted.waitForNone(t)
	must(t, stop())
	n := 0
	for _, namespace := range namespaces {
		n += counted.watches("/api/v1/namespaces/" + namespace + "/configmaps")
	}
	if n == 0 {
		t.Error("no watch was counted, so this test proves nothing")
	}
	t.Logf("%d Watches, %d watches of the server", users*rounds, n)
}

func definition(group string) map[string]any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}
}

func dynamicInformers(client dynamic.Interface) *ondemand.Informers[schema.GroupVersionResource] {
	return &ondemand.Informers[schema.GroupVersionResource]{
		New: func(gvr schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
			return dynamicinformer.NewFilteredDynamicInformer(client, gvr, "", 0, cache.Indexers{}, nil).Informer(), nil
		},
		StopTimeout: time.Minute,
	}
}

// TestServerDefinitionIsFollowed proves OD5.
func TestServerDefinitionIsFollowed(t *testing.T) {
	namespace := testserver.Namespace(t)
	group := namespace + ".example.com"
	widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	_, client := clients(t, testserver.Config(t))
	all := dynamicInformers(client)
	missing := make(chan string, 1)
	all.WatchErrorHandler = func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			select {
			case missing <- "list":
			default:
			}
		}
	}
	stop := run(quiet(t), all)
	added, deleted := make(chan string, 100), make(chan string, 100)
	expect := func(events <-chan string, want string) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("event of %q, want %q", got, want)
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("no event of %q", want)
		}
	}
	create := func(t *testing.T, name string) {
		t.Helper()
		_, err := client.Resource(widgets).Namespace(namespace).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name}}}, metav1.CreateOptions{})
		must(t, err)
	}
	var w *ondemand.Watch
	t.Run("first", func(t *testing.T) { // the definition ends with it
		testserver.InstallCRD(t, definition(group))
		create(t, "old")
		w = open(t, all, widgets, cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { added <- obj.(metav1.Object).GetName() },
			DeleteFunc: func(obj any) {
				if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = unknown.Obj
				}
				deleted <- obj.(metav1.Object).GetName()
			},
		})
		must(t, w.WaitForSync(t.Context()))
		expect(added, "old")
	})
	waitForDeletion(t, client, "widgets."+group)
	expect(missing, "list") // the informer has seen that the definition is gone
	testserver.InstallCRD(t, definition(group))
	create(t, "new")
	expect(deleted, "old")
	expect(added, "new")
	if got := w.GetStore().ListKeys(); len(got) != 1 || got[0] != namespace+"/new" {
		t.Errorf("the cache has %q, want the new object", got)
	}
	must(t, w.Close(t.Context()))
	must(t, stop())
}

// TestServerOtherScope: a definition is created again with another scope, which the API server
// does not accept as a change. A Watch that stays open follows, in both directions.
//
// Proves OD5.
func TestServerOtherScope(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	group := namespace + ".example.com"
	widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	_, client := clients(t, testserver.Config(t))
	all := dynamicInformers(client)
	missing := make(chan struct{}, 1)
	all.WatchErrorHandler = func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			select {
			case missing <- struct{}{}:
			default:
			}
		}
	}
	stop := run(quiet(t), all)
	changed := make(chan struct{}, 100)
	signal := func() { changed <- struct{}{} }
	w := open(t, all, widgets, cache.ResourceEventHandlerFuncs{AddFunc: func(any) { signal() }, DeleteFunc: func(any) { signal() }})
	late := time.After(4 * time.Minute)
	for _, scope := range []string{"Namespaced", "Cluster", "Namespaced"} {
		t.Run(scope, func(t *testing.T) { // the definition ends with it
			d := definition(group)
			d["spec"].(map[string]any)["scope"] = scope
			testserver.InstallCRD(t, d)
			var objects dynamic.ResourceInterface = client.Resource(widgets)
			want := "one"
			if scope == "Namespaced" {
				objects, want = client.Resource(widgets).Namespace(namespace), namespace+"/one"
			}
			_, err := objects.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"}}}, metav1.CreateOptions{})
			must(t, err)
			for {
				got := w.GetStore().ListKeys()
				if len(got) == 1 && got[0] == want {
					break
				}
				select {
				case <-changed:
				case <-late:
					t.Fatalf("the cache has %q, want %s", got, want)
				}
			}
			select { // of an earlier definition
			case <-missing:
			default:
			}
		})
		waitForDeletion(t, client, "widgets."+group)
		<-missing // the informer has seen that the definition is gone
	}
	must(t, w.Close(t.Context()))
	must(t, stop())
}

func waitForDeletion(t *testing.T, client dynamic.Interface, name string) {
	t.Helper()
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	list, err := definitions.List(t.Context(), opts)
	must(t, err)
	if len(list.Items) == 0 {
		return
	}
	opts.ResourceVersion = list.GetResourceVersion()
	events, err := definitions.Watch(t.Context(), opts)
	must(t, err)
	defer events.Stop()
	for event := range events.ResultChan() {
		if event.Type == watch.Deleted {
			return
		}
	}
	t.Fatalf("the watch ended before the deletion of %s", name)
}

// A kind that does not exist, and one that may not be listed: WaitForSync has the reason, Close
// is prompt, and a later Open syncs.
//
// Proves OD2.
func TestServerNotListed(t *testing.T) {
	namespace := testserver.Namespace(t)
	group := namespace + ".example.com"
	widgets := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	_, admin := clients(t, testserver.Config(t))
	_, nobody := clients(t, testserver.Limited(t, namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}))
	for _, tt := range []struct {
		name   string
		client dynamic.Interface
		gvr    schema.GroupVersionResource
		is     func(error) bool
	}{
		{"missing", admin, widgets, apierrors.IsNotFound},
		{"forbidden", nobody, corev1.SchemeGroupVersion.WithResource("configmaps"), apierrors.IsForbidden},
	} {
		failed := make(chan struct{}, 100)
		all := dynamicInformers(tt.client)
		all.WatchErrorHandler = func(context.Context, *cache.Reflector, error) { failed <- struct{}{} }
		stop := run(quiet(t), all)
		w := open(t, all, tt.gvr)
		ctx, cancel := context.WithCancelCause(t.Context())
		late := errors.New("too late")
		go func() { <-failed; cancel(late) }()
		err := w.WaitForSync(ctx)
		if !tt.is(err) || !errors.Is(err, late) || !strings.Contains(err.Error(), "the last attempt failed: failed to list") {
			t.Errorf("%s: WaitForSync = %v, want the error of the API server", tt.name, err)
		}
		must(t, w.Close(t.Context()))
		if !w.IsStopped() {
			t.Errorf("%s: Close returned before the informer stopped", tt.name)
		}
		if tt.name == "missing" {
			testserver.InstallCRD(t, definition(group))
			again := open(t, all, tt.gvr)
			must(t, again.WaitForSync(t.Context()))
		}
		must(t, stop())
	}
}

// A consistency.Store takes a Watch, and forgets it before the Close.
func TestServerConsistency(t *testing.T) {
	config := testserver.Config(t)
	writes := consistency.New(consistency.Config{MaxWait: -1})
	config.Wrap(writes.Wrap)
	client, _ := clients(t, config)
	all := configMaps(client)
	stop := run(quiet(t), all)
	key, resource := types.NamespacedName{Namespace: "any", Name: "any"}, corev1.Resource("configmaps")
	for round := range 3 {
		namespace := testserver.Namespace(t)
		w := open(t, all, namespace)
		must(t, writes.AddInformer(resource, w))
		must(t, w.WaitForSync(t.Context()))
		name := fmt.Sprint("w", round)
		_, err := client.CoreV1().ConfigMaps(namespace).Create(writes.Begin(t.Context(), key), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
		must(t, writes.Wait(t.Context(), key))
		if _, ok, _ := w.GetStore().GetByKey(namespace + "/" + name); !ok {
			t.Errorf("the cache does not show %s", name)
		}
		must(t, writes.RemoveInformer(resource))
		must(t, w.Close(t.Context()))
	}
	must(t, stop())
}

// If an informer.Set runs the Informers, it shows the times of their data, makes each list again,
// and goes on if one may not be listed.
//
// Proves OD6.
func TestServerSet(t *testing.T) {
	namespace := testserver.Namespace(t)
	config := testserver.Limited(t, namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"list", "watch"}})
	config.QPS = -1
	config.Wrap(informer.EndSilentWatches(-1))
	counted := newTraffic(config)
	factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(namespace))
	refused := make(chan error, 100)
	watches := &ondemand.Informers[string]{
		New: func(resource string) (cache.SharedIndexInformer, error) {
			i, err := factory.ForResource(corev1.SchemeGroupVersion.WithResource(resource))
			if err != nil {
				return nil, err
			}
			return i.Informer(), nil
		},
		WatchErrorHandler: func(_ context.Context, _ *cache.Reflector, err error) { refused <- err },
	}
	set := &informer.Set{Timeout: time.Minute, StopTimeout: time.Minute}
	set.AddRun("watches", watches.Run)
	ctx, cancel := context.WithCancel(quiet(t))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	<-set.HasSyncedChecker().Done()
	if last := set.LastEvents()["watches"]; !last.IsZero() {
		t.Errorf("the last event is %v without an informer, want none", last)
	}
	limit, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	open := map[string]*ondemand.Watch{}
	for _, resource := range []string{"configmaps", "secrets", "pods"} {
		w, err := watches.Open(resource)
		if err != nil {
			t.Fatal(err)
		}
		open[resource] = w
		if resource == "pods" {
			<-refused
		} else if err := w.WaitForSync(limit); err != nil {
			t.Fatal(err)
		}
	}
	denied := time.Now()
	counted.mu.L.Lock()
	before := counted.started["/api/v1/namespaces/"+namespace+"/secrets"]
	counted.mu.L.Unlock()
	if err := set.Relist("watches"); err != nil {
		t.Errorf("Relist = %v", err)
	}
	defer time.AfterFunc(time.Minute, counted.mu.Broadcast).Stop()
	counted.mu.L.Lock()
	for counted.started["/api/v1/namespaces/"+namespace+"/secrets"] == before && limit.Err() == nil {
		counted.mu.Wait()
	}
	counted.mu.L.Unlock()
	if limit.Err() != nil {
		t.Error("the Secrets are not listed again")
	}
	if last := set.LastEvents()["watches"]; last.IsZero() || last.After(denied) {
		t.Errorf("the last event is %v, want the start of the watch that is denied, before %v", last, denied)
	}
	if err := errors.Join(set.Ready(), set.Check()); err != nil {
		t.Error(err)
	}
	if err := open["pods"].Close(limit); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
