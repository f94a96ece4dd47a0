package compact_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestServerMalformed has an object that does not fit its Go type: the schema is wider. Proves CP3.
func TestServerMalformed(t *testing.T) {
	t.Parallel()
	definition := gadgetDefinition()
	definition["metadata"] = map[string]any{"name": "gadgets.bad.example.com"}
	definition["spec"].(map[string]any)["group"] = "bad.example.com"
	testserver.InstallCRD(t, definition)
	namespace := testserver.Namespace(t)
	client := restClientOf(t, testserver.Config(t), "bad.example.com")
	send := func(r *rest.Request) {
		t.Helper()
		if err := r.Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name, wait string) {
		t.Helper()
		send(client.Post().Namespace(namespace).Resource("gadgets").Body(fmt.Appendf(nil,
			`{"apiVersion":"bad.example.com/v1","kind":"Gadget","metadata":{"name":%q,"labels":{"a":"b"}},"spec":{"wait":%q}}`, name, wait)))
	}
	patch := func(name, wait string) {
		t.Helper()
		send(client.Patch(types.MergePatchType).Namespace(namespace).Resource("gadgets").Name(name).Body(fmt.Appendf(nil, `{"metadata":{"labels":{"wait":%q}},"spec":{"wait":%[1]q}}`, wait)))
	}
	create("bad", "for-ever")
	create("good", "5s")
	inf := made(compact.New[*Gadget](client, "gadgets", compact.Options{Namespace: namespace}))(t)
	events := make(chan string, 100)
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { events <- "add " + show(obj) },
		UpdateFunc: func(before, after any) {
			events <- "update " + show(before) + " to " + show(after)
		},
		DeleteFunc: func(obj any) { events <- "delete " + show(obj) },
	}); err != nil {
		t.Fatal(err)
	}
	start(t, inf)
	next := func(want string) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("event %q, want %q", got, want)
			}
		case <-time.After(time.Minute): // bounds a failing test
			t.Fatalf("no event, want %q", want)
		}
	}
	next("add good 5s")
	isBad := func(err error) bool {
		var rejected controllerkit.RejectedError
		return errors.As(err, &rejected) && rejected.Rejected() && strings.Contains(err.Error(), "compact: Gadget "+namespace+"/bad does not fit the Go type: correct the object, or change the type: ")
	}
	if _, err := inf.Get(namespace, "bad"); !isBad(err) {
		t.Errorf("Get: %v", err)
	}
	if item, ok, err := inf.GetStore().GetByKey(namespace + "/bad"); !ok || !isBad(err) || item.(metav1.Object).GetLabels()["a"] != "b" {
		t.Errorf("GetByKey: %v, %v, %v", item, ok, err)
	}
	if h, ok := inf.Header(namespace, "bad"); !ok || h.GetLabels()["a"] != "b" {
		t.Error("Header: no metadata")
	}
	if list, err := inf.List(namespace, nil); len(list) != 1 || !isBad(err) {
		t.Errorf("List: %d objects, %v", len(list), err)
	}
	if list := inf.GetStore().List(); len(list) != 1 {
		t.Errorf("List of the store: %d objects", len(list))
	}
	// The lister of package crd, and the metrics of an informer.Set, find it by an index.
	if keys := malformed.Keys(inf.GetStore()); !slices.Equal(keys, []string{namespace + "/bad"}) {
		t.Errorf("malformed keys: %v", keys)
	}
	if all, ok := malformed.List(inf.GetIndexer(), namespace); !ok || len(all) != 2 {
		t.Errorf("objects with the malformed one: %d, %v", len(all), ok)
	}
	patch("bad", "7s")
	next("add bad 7s")
	if keys := malformed.Keys(inf.GetStore()); len(keys) != 0 {
		t.Errorf("malformed keys after the correction: %v", keys)
	}
	patch("good", "for-ever")
	next("update good 5s to good 5s for-ever") // its last state that fits, with the new metadata
	patch("good", "8s")
	next("update good 5s for-ever to good 8s 8s")
	send(client.Delete().Namespace(namespace).Resource("gadgets").Name("bad"))
	next("delete bad 7s")
}

// show returns an object's name, its wait, and its label wait if it differs.
func show(obj any) string {
	g, ok := obj.(*Gadget)
	if !ok {
		return fmt.Sprintf("%T", obj)
	}
	wait := strings.TrimSuffix(g.Spec.Wait.Duration.String(), "0s")
	if l := g.Labels["wait"]; l != "" && (l != wait || g.Name == "good") {
		wait += " " + l
	}
	return g.Name + " " + wait
}

// TestServerFactory replaces the informer of a generated factory.
func TestServerFactory(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	client := clientset(t, testserver.Config(t))
	maps := client.CoreV1().ConfigMaps(namespace)
	for _, name := range []string{"one", "two"} {
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": name}}, Data: map[string]string{"large": name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	inf := made(compact.New[*corev1.ConfigMap](client.CoreV1().RESTClient(), "configmaps", compact.Options{
		Namespace: namespace,
		Drop:      []string{"data[large]"},
		Tweak:     func(o *metav1.ListOptions) { o.LabelSelector = "l" },
	}))(t)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.Trim))
	factory.InformerFor(&corev1.ConfigMap{}, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return inf })
	typed := factory.Core().V1().ConfigMaps()
	set := &informer.Set{}
	set.Add("configmaps", typed.Informer())
	ctx, cancel := context.WithCancel(logged(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		t.Fatal(err)
	}
	list, err := typed.Lister().ConfigMaps(namespace).List(labels.Everything())
	if err != nil || len(list) != 2 {
		t.Fatalf("List: %d objects, %v", len(list), err)
	}
	if inf.Encoded(namespace, "one") == "" {
		t.Error("the factory has another informer")
	}
	for _, c := range list {
		if c.Data != nil || c.ManagedFields != nil || c.Labels["l"] != c.Name || c.Kind != "" {
			t.Errorf("%+v", c)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServerDiagnosis shows that a Set finds out why a compact informer does not sync.
func TestServerDiagnosis(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := testserver.Limited(t, namespace)
	for want, inf := range map[string]cache.SharedIndexInformer{
		"forbidden to list": made(compact.New[*corev1.Secret](clientset(t, config).CoreV1().RESTClient(), "secrets", compact.Options{Namespace: namespace}))(t),
		"the API server sent a ServiceList where a PodList belongs: check type and resource": func() cache.SharedIndexInformer {
			client := clientset(t, testserver.Config(t))
			return made(compact.New[*corev1.Pod](client.CoreV1().RESTClient(), "services", compact.Options{}))(t) // there is one: kubernetes
		}(),
	} {
		set := &informer.Set{Timeout: 2 * time.Second}
		set.Add("one", inf)
		if err := set.Run(logged(t)); !errors.Is(err, informer.ErrNotSynced) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestServerListKind lists custom resources whose definition names another kind for lists.
func TestServerListKind(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	group := namespace + ".example.com"
	definition := gadgetDefinition()
	definition["metadata"] = map[string]any{"name": "gadgets." + group}
	spec := definition["spec"].(map[string]any)
	spec["group"] = group
	spec["names"].(map[string]any)["listKind"] = "Gadgetry"
	testserver.InstallCRD(t, definition)
	config := testserver.Config(t)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return accepting{next, "", true} })
	client := restClientOf(t, config, group)
	body := []byte(`{"apiVersion":"` + group + `/v1","kind":"Gadget","metadata":{"name":"a"}}`)
	if err := client.Post().Namespace(namespace).Resource("gadgets").Body(body).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	inf := made(compact.New[*Gadget](client, "gadgets", compact.Options{Namespace: namespace}))(t)
	ctx, cancel := context.WithTimeout(logged(t), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); inf.RunWithContext(ctx) }()
	defer func() { cancel(); <-done }()
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		t.Fatal("the informer has not synced")
	}
	if g, err := inf.Get(namespace, "a"); err != nil || g.Name != "a" {
		t.Errorf("Get: %+v, %v", g, err)
	}
}

// TestServerFormats lists and watches with each protocol and each encoding, also if the server answers
// in JSON although protobuf was asked for. Proves CP2.
func TestServerFormats(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	plain := clientset(t, testserver.Config(t))
	maps := plain.CoreV1().ConfigMaps(namespace)
	want := map[string]*corev1.ConfigMap{}
	create := func(name, data string) {
		t.Helper()
		c, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"f": "f"}}, Data: map[string]string{"data": data}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.ManagedFields = nil
		want[name] = c
	}
	for i := range 30 {
		create(fmt.Sprint("first-", i), strings.Repeat("x", i*100))
	}
	create("large", strings.Repeat("large", 200_000)) // the limit of a ConfigMap is 1 MiB
	var informers []*compact.Informer[*corev1.ConfigMap]
	var arrived []chan string
	for _, format := range []string{"", "application/json"} {
		for _, lists := range []bool{false, true} {
			config := testserver.Config(t)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return accepting{next, format, lists} })
			inf := made(compact.New[*corev1.ConfigMap](clientset(t, config).CoreV1().RESTClient(), "configmaps", compact.Options{
				Namespace: namespace, Tweak: func(o *metav1.ListOptions) { o.LabelSelector = "f" },
			}))(t)
			names := make(chan string, 100)
			if _, err := inf.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(obj any, initial bool) {
				if !initial {
					names <- obj.(*corev1.ConfigMap).Name
				}
			}}); err != nil {
				t.Fatal(err)
			}
			start(t, inf)
			informers, arrived = append(informers, inf), append(arrived, names)
		}
	}
	create("later", "y")
	for i, inf := range informers {
		if name := <-arrived[i]; name != "later" {
			t.Errorf("informer %d: added %s", i, name)
		}
		list, err := inf.List("", nil)
		if err != nil || len(list) != len(want) {
			t.Fatalf("informer %d: %d objects, %v", i, len(list), err)
		}
		for _, c := range list {
			if !reflect.DeepEqual(c, want[c.Name]) {
				t.Errorf("informer %d: %+v, want %+v", i, c, want[c.Name])
			}
		}
	}
}

// accepting replaces the encoding that is asked for, and can refuse streamed lists.
type accepting struct {
	http.RoundTripper
	format string
	lists  bool // the list protocol, without streams
}

func (a accepting) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if a.format != "" {
		req.Header.Set("Accept", a.format)
	}
	query := req.URL.Query()
	if a.lists && query.Has("sendInitialEvents") {
		query.Set("resourceVersionMatch", "wrong") // the server rejects it
		req.URL.RawQuery = query.Encode()
	}
	return a.RoundTripper.RoundTrip(req)
}
