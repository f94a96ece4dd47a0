package informer_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/metadata/metadatalister"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// typedClient has connections of its own, which are closed with the test.
func typedClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// configMapInformers makes an informer of the ConfigMaps of a namespace.
type configMapInformers func(t *testing.T, config *rest.Config, namespace string) cache.SharedIndexInformer

// compactConfigMapsOf makes a compact informer that gets JSON, which the proxies of the tests read.
func compactConfigMapsOf(t *testing.T, config *rest.Config, namespace string) cache.SharedIndexInformer {
	t.Helper()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return jsonOnly{next} })
	inf, err := compact.New[*corev1.ConfigMap](typedClient(t, config).CoreV1().RESTClient(), "configmaps", compact.Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	return inf
}

type jsonOnly struct{ http.RoundTripper }

func (j jsonOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Accept", "application/json")
	return j.RoundTripper.RoundTrip(req)
}

func configMapsOf(t *testing.T, config *rest.Config, namespace string) cache.SharedIndexInformer {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(typedClient(t, config), 0, informers.WithNamespace(namespace), informers.WithTransform(informer.Trim))
	return factory.Core().V1().ConfigMaps().Informer()
}

// runUntilError runs a set of one informer, which is expected to fail.
func runUntilError(t *testing.T, name string, timeout time.Duration, inf cache.SharedIndexInformer) error {
	t.Helper()
	set := informer.Set{Timeout: timeout, StopTimeout: time.Minute}
	set.Add(name, inf)
	ctx, cancel := context.WithTimeout(quiet(t), timeout+30*time.Second) // so that a wrong nil is seen
	defer cancel()
	err := set.Run(ctx)
	if !errors.Is(err, informer.ErrNotSynced) {
		t.Fatalf("Run() = %v, want ErrNotSynced", err)
	}
	return err
}

func contains(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("Run() = %v\nwant it to contain %s", err, w)
		}
	}
}

func TestServerSyncTrimAndStop(t *testing.T) {
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	client := typedClient(t, config)
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{lastApplied: "{}", "keep": "me"}}}
	created, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(created.ManagedFields) == 0 {
		t.Fatal("the server set no managedFields, so this test proves nothing")
	}
	inf := configMapsOf(t, config, namespace)
	added := make(chan string, 10)
	handler, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o.(*corev1.ConfigMap).Name }})
	if err != nil {
		t.Fatal(err)
	}
	set := informer.Set{Timeout: time.Minute}
	set.Add("configmaps", inf, handler)
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		t.Fatalf("Run() = %v", err)
	}
	got, ok, err := inf.GetStore().GetByKey(namespace + "/a")
	if err != nil || !ok {
		t.Fatalf("synced, but the cache has no a: %v", err)
	}
	o := got.(*corev1.ConfigMap)
	if o.ManagedFields != nil || o.ResourceVersion != created.ResourceVersion || len(o.Annotations) != 1 {
		t.Errorf("cached: %d managedFields, resourceVersion %s, annotations %v; want 0, %s, keep only", len(o.ManagedFields), o.ResourceVersion, o.Annotations, created.ResourceVersion)
	}
	if rv := inf.GetStore().LastStoreSyncResourceVersion(); rv == "" {
		t.Error("the store does not know how fresh it is: Trim broke resourceVersion")
	}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name := range added { // ends the test's wait with the event itself
		if name == "b" {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if !inf.IsStopped() {
		t.Error("Run returned before the informer stopped")
	}
}

// TestServerMetadataOnly: the metadata informer of docs/memory.md receives no data, begins with
// a consistent list, in pages if the API server does not stream it, and its objects are trimmed.
func TestServerMetadataOnly(t *testing.T) {
	for name, streams := range map[string]bool{"streamed": true, "in pages": false} {
		t.Run(name, func(t *testing.T) {
			namespace := testserver.Namespace(t)
			config := testserver.Config(t)
			created, err := typedClient(t, config).CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{lastApplied: "{}", "keep": "me"}},
				StringData: map[string]string{"password": "hidden"},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex // guards the variables below
			var lists, starts []url.Values
			var bodies lockedBuffer
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(req *http.Request) (*http.Response, error) {
					mu.Lock()
					defer mu.Unlock()
					if !strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata") {
						t.Errorf("the informer accepts %q", req.Header.Get("Accept"))
					}
					query := req.URL.Query()
					switch {
					case !query.Has("watch"):
						lists = append(lists, query)
					case query.Has("sendInitialEvents"):
						starts = append(starts, query)
						if !streams {
							return nil, errors.New("the server does not stream lists")
						}
					}
					resp, err := next.RoundTrip(req)
					if err == nil {
						resp.Body = struct {
							io.Reader
							io.Closer
						}{io.TeeReader(resp.Body, &bodies), resp.Body}
					}
					return resp, err
				})
			})
			config.Wrap(informer.ConsistentLists)
			h, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			defer h.CloseIdleConnections()
			client, err := metadata.NewForConfigAndClient(config, h)
			if err != nil {
				t.Fatal(err)
			}
			resource := corev1.SchemeGroupVersion.WithResource("secrets")
			secrets := metadatainformer.NewFilteredMetadataInformer(client, resource, namespace, 0, cache.Indexers{}, nil)
			if err := secrets.Informer().SetTransform(informer.Trim); err != nil {
				t.Fatal(err)
			}
			run(t, "secrets", secrets.Informer())

			got, err := metadatalister.New(secrets.Informer().GetIndexer(), resource).Namespace(namespace).Get("a")
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != created.UID || got.ResourceVersion != created.ResourceVersion || got.ManagedFields != nil || len(got.Annotations) != 1 {
				t.Errorf("cached: %v, want the trimmed metadata of %v", got, created.ObjectMeta)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, data := range []string{"hidden", base64.StdEncoding.EncodeToString([]byte("hidden"))} {
				if strings.Contains(bodies.String(), data) {
					t.Error("the response has the data of the Secret")
				}
			}
			if !strings.Contains(bodies.String(), string(created.UID)) {
				t.Error("the responses were not recorded")
			}
			switch {
			case streams && (len(starts) != 1 || len(lists) != 0):
				t.Errorf("streamed %v, listed %v: want one stream", starts, lists)
			case !streams && (len(lists) != 1 || lists[0].Get("limit") != "500" || lists[0].Has("resourceVersion")):
				t.Errorf("listed %v, want one page of 500 without a version", lists)
			}
		})
	}
}

// run runs a Set of one informer until the end of the test, and waits until it is synced.
func run(t *testing.T, name string, inf cache.SharedIndexInformer) {
	t.Helper()
	set := informer.Set{Timeout: time.Minute}
	set.Add(name, inf)
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		done <- nil
		t.Fatalf("Run() = %v", err)
	}
}

// TestServerForbidden proves I2.
func TestServerForbidden(t *testing.T) {
	t.Parallel() // it waits for the Timeout
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	config.Impersonate.UserName = "nobody-" + namespace
	err := runUntilError(t, "configmaps", 20*time.Second, configMapsOf(t, config, namespace))
	contains(t, err, `informer: not synced within 20s: "configmaps": forbidden to list: `,
		`must allow verbs ["list" "watch"] on resources ["configmaps"] in apiGroups [""]`, config.Impersonate.UserName, namespace)
	if !apierrors.IsForbidden(err) {
		t.Errorf("IsForbidden(%v) = false", err)
	}
}

// TestServerListAllowedWatchNot proves I3.
func TestServerListAllowedWatchNot(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	admin := typedClient(t, config)
	user := "lister-" + namespace
	if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "lister"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "lister"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "lister"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = user
	err := runUntilError(t, "configmaps", time.Minute, configMapsOf(t, config, namespace))
	contains(t, err, `"configmaps": its cache was filled and then went stale: forbidden to watch: `, "cannot watch resource")
}

// TestServerBadSelector: the API server does not parse a selector, and the error says so. A
// namespace that does not exist is one without objects.
//
// Proves I2.
func TestServerBadSelector(t *testing.T) {
	t.Parallel()
	for name, tweak := range map[string]func(*metav1.ListOptions){
		"label": func(o *metav1.ListOptions) { o.LabelSelector = "app in (x" },
		"field": func(o *metav1.ListOptions) { o.FieldSelector = "no.such=field" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the Timeout
			factory := informers.NewSharedInformerFactoryWithOptions(typedClient(t, testserver.Config(t)), 0, informers.WithTweakListOptions(tweak))
			err := runUntilError(t, "configmaps", 20*time.Second, factory.Core().V1().ConfigMaps().Informer())
			contains(t, err, `informer: not synced within 20s: "configmaps": cannot list configmaps: `)
			if !apierrors.IsBadRequest(err) {
				t.Errorf("IsBadRequest(%v) = false", err)
			}
			t.Log(err)
		})
	}
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", configMapsOf(t, testserver.Config(t), "does-not-exist"))
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServerMissingCRD proves I2.
func TestServerMissingCRD(t *testing.T) {
	t.Parallel() // it waits for the Timeout
	config := testserver.Config(t)
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	client, err := dynamic.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: "missing.example.com", Version: "v1", Resource: "widgets"}
	inf := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(gvr).Informer()
	err = runUntilError(t, "widgets.missing.example.com", 20*time.Second, inf)
	contains(t, err, `"widgets.missing.example.com": cannot list widgets.missing.example.com: the server does not serve it: install its CustomResourceDefinition`)
	if !apierrors.IsNotFound(err) {
		t.Errorf("IsNotFound(%v) = false", err)
	}
}

// TestServerUnreachable proves I2.
func TestServerUnreachable(t *testing.T) {
	const addr = "127.0.0.1:1" // nothing listens there
	for _, wrapped := range []bool{false, true} {
		config := &rest.Config{Host: "http://" + addr}
		if wrapped {
			config.Wrap(informer.EndSilentWatches(0))
		}
		err := runUntilError(t, "configmaps", time.Second, configMapsOf(t, config, ""))
		contains(t, err, `"configmaps": cannot watch configmaps: the server could not be reached, when client-go last tried, `, addr)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v does not wrap ECONNREFUSED", err)
		}
	}
}

// TestServerWithoutBookmark puts a proxy before the server that drops the end of
// the initial events, as some do.
//
// Proves I2.
func TestServerWithoutBookmark(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	config.ContentType = "application/json" // which filter can read; native types come as protobuf otherwise
	dropped := make(chan struct{}, 10)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &bookmarkEater{next, dropped} })
	err := runUntilError(t, "configmaps", 12*time.Second, configMapsOf(t, config, namespace))
	contains(t, err, `"configmaps": the server took the watch but does not mark the end of the initial events: `, "k8s.io/initial-events-end", "KUBE_FEATURE_WatchListClient=false")
	select {
	case <-dropped:
	default:
		t.Error("no bookmark was dropped, so this test proves nothing")
	}
}

type bookmarkEater struct {
	next    http.RoundTripper
	dropped chan<- struct{}
}

func (b *bookmarkEater) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") {
		resp.Body = &filter{body: resp.Body, events: json.NewDecoder(resp.Body), dropped: b.dropped}
	}
	return resp, err
}

func (b *bookmarkEater) WrappedRoundTripper() http.RoundTripper { return b.next }

// filter passes on a stream of watch events without the bookmarks.
type filter struct {
	body    io.Closer
	events  *json.Decoder
	buf     bytes.Buffer
	dropped chan<- struct{}
}

func (f *filter) Read(p []byte) (int, error) {
	for f.buf.Len() == 0 {
		var event json.RawMessage
		if err := f.events.Decode(&event); err != nil {
			return 0, err
		}
		var head struct{ Type string }
		if err := json.Unmarshal(event, &head); err != nil {
			return 0, err
		}
		if head.Type == "BOOKMARK" {
			select {
			case f.dropped <- struct{}{}:
			default:
			}
			continue
		}
		f.buf.Write(append(event, '\n'))
	}
	return f.buf.Read(p)
}

func (f *filter) Close() error { return f.body.Close() }
