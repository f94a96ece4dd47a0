package consistency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// version is a store of which only the version matters.
type version struct{ rv atomic.Value }

func (v *version) set(rv string) { v.rv.Store(rv) }

func (v *version) LastStoreSyncResourceVersion() string { return v.rv.Load().(string) }

func at(rv string) *version {
	v := &version{}
	v.set(rv)
	return v
}

type stores = map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }

// counted is a store that counts how often its version is read.
type counted struct {
	*version
	reads int
}

func (c *counted) LastStoreSyncResourceVersion() string {
	c.reads++
	return c.version.LastStoreSyncResourceVersion()
}

// waits notes what a Store tells its Metrics.
type waits []string

func (w *waits) ConsistencyWaited(d time.Duration, timedOut bool) {
	*w = append(*w, fmt.Sprintf("%v timedOut=%v", d, timedOut))
}

// lose sends a write of pods of which the answer is lost.
func lose(t *testing.T, s *consistency.Store, key types.NamespacedName) {
	t.Helper()
	req, _ := http.NewRequestWithContext(s.Begin(t.Context(), key), "POST", "https://server/api/v1/namespaces/ns/pods", nil)
	if resp, err := s.Wrap(respond(500, jsonType, nil)).RoundTrip(req); err == nil {
		resp.Body.Close()
	}
}

// broken is a store that cannot be asked for an object.
type broken struct{ cache.Store }

func (broken) GetByKey(string) (any, bool, error) { return nil, false, errors.New("broken") }

func podWith(name string, uid types.UID, rv string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: rv},
	}
}

// cacheOf returns a store with the objects, as an informer would fill it.
func cacheOf(t testing.TB, items ...any) cache.Store {
	t.Helper()
	c := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	for _, item := range items {
		if err := c.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func respond(code int, contentType string, body []byte) roundTripper {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: code, Header: http.Header{"Content-Type": {contentType}},
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}, nil
	}
}

// encodings are the forms of answers that a transport must read.
var encodings = []struct {
	name, contentType string
	encode            func(testing.TB, k8sruntime.Object) []byte
}{
	{"json", jsonType, jsonOf},
	{"protobuf", pbType, protobufOf},
	{"cbor", cborType, cborOf},
}

func object(rv string) []byte {
	return []byte(`{"kind":"X","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"` + rv + `"},"spec":{"metadata":{"resourceVersion":"99"}}}`)
}

// tracked returns a store that has seen nothing, for every resource of these tests.
func tracked() *consistency.Store {
	return consistency.New(consistency.Config{Stores: stores{pods: at("1"), secrets: at("1"), widgets: at("1"), deployments: at("1"), namespaces: at("1")}})
}

// missing is what the owner waits for.
func missing(s *consistency.Store, owner types.NamespacedName) string {
	err := s.EnsureReady(owner)
	if err == nil {
		return ""
	}
	if stale, ok := errors.AsType[*consistency.StaleError](err); ok {
		return stale.GroupResource.String() + "@" + stale.WroteRV
	}
	return err.Error()
}

const jsonType, pbType, cborType = "application/json", "application/vnd.kubernetes.protobuf", "application/cbor"

// fixture is a controller's surroundings on the real API server: informers that can be
// held back, and a client whose writes are recorded.
type fixture struct {
	ns     string
	holder *holder
	writes *consistency.Store
	client kubernetes.Interface // recorded
	live   kubernetes.Interface // neither held nor recorded
	maps   cache.Indexer
	pods   cache.Indexer
	lose   chan struct{} // one value loses one answer
	key    types.NamespacedName
	ctx    context.Context
}

func (f *fixture) cached(t *testing.T, indexer cache.Indexer, name string) metav1.Object {
	t.Helper()
	obj, ok, err := indexer.GetByKey(f.ns + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return nil
	}
	return obj.(metav1.Object)
}

func newFixture(t *testing.T, contentType string) *fixture {
	t.Helper()
	return newFixtureOn(t, func() *rest.Config { return testserver.Config(t) }, testserver.Namespace(t), contentType)
}

func newFixtureOn(t *testing.T, server func() *rest.Config, ns, contentType string) *fixture {
	t.Helper()
	f := &fixture{ns: ns, holder: &holder{free: make(chan struct{})}, lose: make(chan struct{}, 1)}
	f.holder.release()
	// Long enough that what wakes in these tests is the informers' handlers.
	f.writes = consistency.New(consistency.Config{RecheckInterval: time.Hour})
	f.key = types.NamespacedName{Namespace: f.ns, Name: "owner"}
	f.ctx = f.writes.Begin(t.Context(), f.key)

	newClient := func(change func(*rest.Config)) kubernetes.Interface {
		cfg := server()
		change(cfg)
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	f.live = newClient(func(*rest.Config) {})
	f.client = newClient(func(cfg *rest.Config) {
		cfg.ContentType = contentType
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(req)
				select {
				case <-f.lose:
					resp.Body.Close()
					return nil, syscall.ECONNRESET
				default:
				}
				return resp, err
			})
		})
		cfg.Wrap(f.writes.Wrap)
	})
	factory := informers.NewSharedInformerFactoryWithOptions(newClient(func(cfg *rest.Config) { cfg.Wrap(f.holder.wrap) }), 0, informers.WithNamespace(f.ns))
	maps, pods := factory.Core().V1().ConfigMaps().Informer(), factory.Core().V1().Pods().Informer()
	f.maps, f.pods = maps.GetIndexer(), pods.GetIndexer()
	for resource, informer := range map[string]cache.SharedIndexInformer{"configmaps": maps, "pods": pods} {
		if err := f.writes.AddInformer(corev1.Resource(resource), informer); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		f.holder.release()
		cancel()
		factory.Shutdown()
	})
	if !cache.WaitFor(ctx, "", maps.HasSyncedChecker(), pods.HasSyncedChecker()) {
		t.Fatal("the informers did not sync")
	}
	return f
}

// holder holds back what the server sends on watches: a slow network, as far as the
// informer can tell.
type holder struct {
	mu   sync.Mutex
	free chan struct{} // closed while nothing is held
}

func (h *holder) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free = make(chan struct{})
}

func (h *holder) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.free:
	default:
		close(h.free)
	}
}

func (h *holder) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && req.URL.Query().Has("watch") {
			resp.Body = &heldBody{ReadCloser: resp.Body, h: h, ctx: req.Context()}
		}
		return resp, err
	})
}

func protobufOf(t testing.TB, obj k8sruntime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func cborOf(t testing.TB, obj k8sruntime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := cbor.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jsonOf(t testing.TB, obj k8sruntime.Object) []byte {
	t.Helper()
	b, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// noWatchList says of a source that it cannot send its list in a watch.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }
