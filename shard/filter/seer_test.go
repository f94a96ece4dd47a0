package filter_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// reads counts the requests of a replica and the bytes of the responses that it reads. It can
// connect the replica to an API server that does not know selectors of shards.
type reads struct {
	http.RoundTripper
	requests, bytes atomic.Int64

	mu     sync.Mutex // guards the fields below
	old    bool
	bodies []*body // of the current API server
}

func (r *reads) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	old := r.old
	r.mu.Unlock()
	if old {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Del("shardSelector")
		request.URL.RawQuery = query.Encode()
	}
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		r.requests.Add(1)
		b := &body{ReadCloser: response.Body, n: &r.bytes}
		response.Body = b
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies = append(r.bodies, b)
	}
	return response, err
}

// reconnect ends the watches, and connects the next ones to the other API server.
func (r *reads) reconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old = true
	for _, b := range r.bodies {
		b.ended.Store(true)
		b.Close()
	}
}

type body struct {
	io.ReadCloser
	n     *atomic.Int64
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	if b.ended.Load() {
		return 0, io.EOF
	}
	return n, err
}

// seer is a replica that sees the ConfigMaps with a label of some shards.
type seer struct {
	label   string
	ranges  shard.Ranges
	objects *scope.Informer
	view    *filter.View
	wake    chan struct{} // shared: an event has come

	reads reads

	mu      sync.Mutex
	owned   []int
	known   map[types.UID]string // versions, by the events
	wrong   []string             // events that do not follow from those before
	sources []*filter.Source
}

func newSeer(t *testing.T, config *rest.Config, label string, ranges shard.Ranges, wake chan struct{}, of func(cache.ListerWatcher, string) (*filter.Source, error)) *seer {
	t.Helper()
	s := &seer{label: label, ranges: ranges, wake: wake, known: map[types.UID]string{}}
	config = rest.CopyConfig(config)
	config.QPS, config.DisableCompression = -1, true
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { s.reads.RoundTripper = rt; return &s.reads })
	client := seesClient(t, config)
	s.objects = scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", p.Namespace, p.Options)
		source, err := of(lw, p.ShardSelector)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sources = append(s.sources, source)
		return cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), nil
	})
	if _, err := s.objects.AddEventHandler(s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), testlog.Silent()))
	var wait sync.WaitGroup
	wait.Go(func() { s.objects.RunWithContext(ctx) })
	began := make(chan struct{}) // closed by the first Select, which is for no shard
	begin := sync.OnceFunc(func() { close(began) })
	s.view = &filter.View{Ranges: ranges, SelectTimeout: 4 * time.Minute, Select: func(ctx context.Context, shardSelector string) error {
		defer begin()
		return s.selectShards(ctx, shardSelector)
	}}
	wait.Go(func() {
		if err := s.view.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wait.Wait() })
	select {
	case <-began: // before own, which selects without the View
	case <-t.Context().Done():
	}
	return s
}

func seesClient(t *testing.T, config *rest.Config) kubernetes.Interface {
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

func (s *seer) selectShards(ctx context.Context, shardSelector string) error {
	selection := scope.Selection{LabelSelector: s.label, ShardSelector: shardSelector}
	if shardSelector != "" {
		selection.Namespaces = []string{""}
	}
	return s.objects.Select(ctx, selection)
}

// own selects the shards without the View.
func (s *seer) own(t *testing.T, shards ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if err := s.selectShards(ctx, selectorOf(t, s.ranges, shards...)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned = shards
}

// move adds the shards to the View, or removes them.
func (s *seer) move(t *testing.T, set func(context.Context, int) error, owned, shards []int) {
	t.Helper()
	var wait sync.WaitGroup
	for _, shard := range shards {
		wait.Go(func() {
			if err := set(t.Context(), shard); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned = owned
}

func (s *seer) note(obj any, is bool, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	o := obj.(*corev1.ConfigMap)
	if _, known := s.known[o.UID]; known != is {
		s.wrong = append(s.wrong, fmt.Sprintf("%s is known: %t", o.Name, known))
	}
	if version == "" {
		delete(s.known, o.UID)
	} else {
		s.known[o.UID] = version
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *seer) OnAdd(obj any, _ bool) { s.note(obj, false, obj.(*corev1.ConfigMap).ResourceVersion) }
func (s *seer) OnUpdate(old, obj any) {
	before, after := old.(*corev1.ConfigMap), obj.(*corev1.ConfigMap)
	if before.UID != after.UID { // it was deleted and created again
		s.OnDelete(before)
		s.OnAdd(after, false)
		return
	}
	s.note(obj, true, after.ResourceVersion)
}
func (s *seer) OnDelete(obj any) { s.note(obj, true, "") }
func (s *seer) source() *filter.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sources[len(s.sources)-1]
}
func (s *seer) listed() []*corev1.ConfigMap {
	var all []*corev1.ConfigMap
	for _, o := range s.objects.GetIndexer().List() {
		all = append(all, o.(*corev1.ConfigMap))
	}
	return all
}

// check fails the test if a replica has an object of another one, and returns the versions of
// all objects of the caches and, from the events, of the handlers.
func check(t *testing.T, seers ...*seer) (cached, known map[types.UID]string) {
	t.Helper()
	cached, known = map[types.UID]string{}, map[types.UID]string{}
	for i, s := range seers {
		for _, o := range s.listed() {
			version := o.ResourceVersion
			switch _, twice := cached[o.UID]; {
			case twice && strings.HasPrefix(o.Name, "child"):
				version = "twice" // until both caches have seen its other controller
			case twice:
				t.Errorf("%s is in two caches", o.Name)
			}
			cached[o.UID] = version
			if in, ok, err := s.of(o); err != nil || !ok || !slices.Contains(s.owned, in) {
				t.Errorf("replica %d has %s of shard %d, %v, and owns %v", i, o.Name, in, err, s.owned)
			}
		}
		s.mu.Lock()
		maps.Copy(known, s.known)
		for _, w := range s.wrong {
			t.Errorf("replica %d: an event of %s before it", i, w)
		}
		s.mu.Unlock()
	}
	return cached, known
}

func (s *seer) of(o *corev1.ConfigMap) (int, bool, error) {
	if strings.HasPrefix(o.Name, "child") {
		return s.ranges.OfChild(o)
	}
	in, err := s.ranges.Of(o)
	return in, true, err
}

// settleAll waits until the caches and the handlers of the replicas have all objects of the API
// server with the label, each once, and returns their versions.
func settleAll(t *testing.T, client kubernetes.Interface, label string, seers ...*seer) map[types.UID]string {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{LabelSelector: label})
	if err != nil {
		t.Fatal(err)
	}
	want := map[types.UID]string{}
	for _, o := range list.Items {
		want[o.UID] = o.ResourceVersion
	}
	late := time.After(4 * time.Minute)
	for {
		cached, known := check(t, seers...)
		if maps.Equal(want, cached) && maps.Equal(want, known) {
			return want
		}
		if t.Failed() {
			t.FailNow()
		}
		select {
		case <-seers[0].wake:
		case <-late:
			t.Fatalf("caches (-server +caches):\n%s\nevents (-server +events):\n%s", cmp.Diff(want, cached), cmp.Diff(want, known))
		}
	}
}
