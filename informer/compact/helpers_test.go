package compact_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// Gadget is a custom resource.
type Gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GadgetSpec `json:"spec,omitempty"`
}

type GadgetSpec struct {
	Text  string            `json:"text,omitempty"`
	Count int64             `json:"count,omitempty"`
	Tags  map[string]string `json:"tags,omitempty"`
	Wait  metav1.Duration   `json:"wait,omitempty"` // the schema calls it a string
}

func (g *Gadget) DeepCopyObject() runtime.Object {
	c := *g
	c.ObjectMeta = *g.ObjectMeta.DeepCopy()
	return &c
}

type GadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Gadget `json:"items"`
}

func (l *GadgetList) DeepCopyObject() runtime.Object { c := *l; return &c }

var gadgets = schema.GroupVersion{Group: "compact.example.com", Version: "v1"}

func gadgetDefinition() map[string]any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gadgets." + gadgets.Group},
		"spec": map[string]any{
			"group": gadgets.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
			"versions": []any{map[string]any{
				"name": gadgets.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}
}

// restClient returns a client of the group version of Gadget.
func restClient(t testing.TB, config *rest.Config) rest.Interface {
	t.Helper()
	return restClientOf(t, config, gadgets.Group)
}

func restClientOf(t testing.TB, config *rest.Config, group string) rest.Interface {
	t.Helper()
	gadgets := schema.GroupVersion{Group: group, Version: "v1"}
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, gadgets)
	s.AddKnownTypes(gadgets, &Gadget{}, &GadgetList{})
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.GroupVersion, config.APIPath = &gadgets, "/apis"
	config.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(s, serializer.NewCodecFactory(s)).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func clientset(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// logged returns a context whose logger is that of the test.
func logged(t testing.TB) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), testlog.Silent())
}

// start runs an informer until the test ends, or the returned function is called, and waits
// until it has synced.
func start(t testing.TB, inf cache.SharedIndexInformer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(logged(t))
	done := make(chan struct{})
	go func() { defer close(done); inf.RunWithContext(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	select {
	case <-inf.HasSyncedChecker().Done():
	case <-t.Context().Done():
		t.Fatal("the informer has not synced")
	}
	return stop
}

// line is a connection whose watches a test can hold, break and refuse.
type line struct {
	mu     sync.Mutex // guards the fields below
	held   chan struct{}
	breaks int  // how many times the connections broke
	gone   bool // the next watch gets 410
}

func (l *line) wrap(next http.RoundTripper) http.RoundTripper { return &road{next, l} }

// hold keeps back what the server sends.
func (l *line) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

// release ends hold. If broken is true, what was kept back and what follows is lost with its
// connection. If gone is true, the next watch gets a 410 answer.
func (l *line) release(broken, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if broken {
		l.breaks++
	}
	l.gone = gone
	close(l.held)
	l.held = nil
}

type road struct {
	http.RoundTripper
	line *line
}

func (r *road) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }

func (r *road) RoundTrip(req *http.Request) (*http.Response, error) {
	if !req.URL.Query().Has("watch") {
		return r.RoundTripper.RoundTrip(req)
	}
	r.line.mu.Lock()
	if r.line.gone && req.URL.Query().Get("sendInitialEvents") != "true" {
		r.line.gone = false
		query := req.URL.Query()
		query.Set("resourceVersion", "1") // compacted, or older than the window of the watch cache
		req = req.Clone(req.Context())
		req.URL.RawQuery = query.Encode()
	}
	breaks := r.line.breaks
	r.line.mu.Unlock()
	resp, err := r.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &held{resp.Body, req.Context(), r.line, breaks}
	}
	return resp, err
}

type held struct {
	io.ReadCloser
	ctx    context.Context
	line   *line
	breaks int // of line, before the request
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.line.mu.Lock()
	waiting := h.line.held
	h.line.mu.Unlock()
	if waiting != nil {
		select {
		case <-waiting:
		case <-h.ctx.Done():
			return 0, h.ctx.Err()
		}
	}
	h.line.mu.Lock()
	defer h.line.mu.Unlock()
	if h.line.breaks != h.breaks {
		return 0, errors.New("test: connection reset by peer")
	}
	return n, err
}

// lists makes the function of a ListWatch from the method of a client.
func lists[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) cache.ListWithContextFunc {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}
