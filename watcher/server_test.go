package watcher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/watcher"
)

// writer changes config maps and writes down what a watch must report.
type writer struct {
	t    *testing.T
	maps typedcorev1.ConfigMapInterface
	want []string
}

func line(eventType watch.EventType, o metav1.Object) string {
	return fmt.Sprintf("%s %s %s %s", eventType, o.GetName(), o.GetUID(), o.GetResourceVersion())
}

func (w *writer) create(name string) *corev1.ConfigMap {
	w.t.Helper()
	cm, err := w.maps.Create(w.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.want = append(w.want, line(watch.Added, cm))
	return cm
}

func (w *writer) update(cm *corev1.ConfigMap, value string) *corev1.ConfigMap {
	w.t.Helper()
	cm = cm.DeepCopy()
	cm.Data = map[string]string{"value": value}
	cm, err := w.maps.Update(w.t.Context(), cm, metav1.UpdateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.want = append(w.want, line(watch.Modified, cm))
	return cm
}

// delete does not learn the version of the deletion; the name and UID must do.
func (w *writer) delete(cm *corev1.ConfigMap) {
	w.t.Helper()
	if err := w.maps.Delete(w.t.Context(), cm.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.want = append(w.want, fmt.Sprintf("DELETED %s %s", cm.Name, cm.UID))
}

func eventLine[T controllerkit.Object](ev watcher.Event[T]) string {
	if ev.Type == watch.Deleted {
		return fmt.Sprintf("DELETED %s %s", ev.Object.GetName(), ev.Object.GetUID())
	}
	return line(ev.Type, ev.Object)
}

// cutter closes the connections it has made.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn
	cuts  int
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
		c.cuts++
	}
	c.conns = nil
}

// counts is a Metrics.
type counts struct {
	mu                        sync.Mutex // guards the fields below
	listed, watched, received int
	wrong                     string // the last name that is not the watcher's
}

func (c *counts) note(n *int, name string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *n++; name != "configmaps" || d < 0 {
		c.wrong = name
	}
}

func (c *counts) InformerListed(name string, d time.Duration)  { c.note(&c.listed, name, d) }
func (c *counts) InformerWatched(name string, d time.Duration) { c.note(&c.watched, name, d) }
func (c *counts) InformerReceived(name string)                 { c.note(&c.received, name, 0) }

// Each list, watch and event is counted, also those that fail. Without a name the Metrics are
// refused.
func TestServerMetrics(t *testing.T) {
	ns := testserver.Namespace(t)
	var cut cutter
	watching := clientset(t, func(cfg *rest.Config) { cfg.Dial = cut.dial }).CoreV1().ConfigMaps(ns)
	w := &writer{t: t, maps: clientset(t, nil).CoreV1().ConfigMaps(ns)}
	w.create("a")
	var got counts
	rw := &watcher.RetryWatcher[*corev1.ConfigMap]{Source: watcher.Client[*corev1.ConfigMap](watching), BaseDelay: 1e6, Metrics: &got}
	for _, err := range rw.Events(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "watcher: RetryWatcher.Name is empty") {
			t.Fatalf("got %v, want an error about the name", err)
		}
	}
	rw.Name = "configmaps"
	seen := 0
	for ev, err := range rw.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case ev.Type == watcher.Synced:
			w.create("b")
		case ev.Type == watch.Added && ev.Object.Name == "b":
			cut.cut()
			w.create("c")
		case ev.Type == watch.Added && ev.Object.Name == "c":
			seen = len(w.want)
		}
		if seen > 0 {
			break
		}
	}
	// The first list, and perhaps one that the end before its time asks for.
	if got.listed < 1 || got.watched < 2 || got.received < 3 || got.wrong != "" {
		t.Errorf("%d lists, %d watches, %d received, wrong name %q: want at least 1, 2 and 3", got.listed, got.watched, got.received, got.wrong)
	}
}

// Connections break while objects change: every change arrives, once, in order.
//
// Proves W1.
func TestServerCutConnections(t *testing.T) {
	ns := testserver.Namespace(t)
	var cut cutter
	watching := clientset(t, func(cfg *rest.Config) { cfg.Dial = cut.dial }).CoreV1().ConfigMaps(ns)
	w := &writer{t: t, maps: clientset(t, nil).CoreV1().ConfigMaps(ns)}
	rw := &watcher.RetryWatcher[*corev1.ConfigMap]{
		Source:    watcher.Client[*corev1.ConfigMap](watching),
		BaseDelay: 1e6, // 1ms: the cuts are not the server's trouble
	}
	const rounds = 12
	var got []string
	round := 0
	var current *corev1.ConfigMap
	for ev, err := range rw.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			got = append(got, eventLine(ev))
		case watcher.Synced:
		default:
			continue
		}
		if len(got) < len(w.want) {
			continue
		}
		if round == rounds {
			break
		}
		// Half of the changes happen before the cut, half while nothing is watched.
		round++
		current = w.create(fmt.Sprintf("cm-%d", round))
		current = w.update(current, "before")
		if round%2 == 1 {
			cut.cut()
		}
		current = w.update(current, "after")
		w.delete(current)
	}
	if diff := cmp.Diff(w.want, got); diff != "" {
		t.Errorf("events (-written +watched):\n%s", diff)
	}
	if cut.cuts < rounds/2 {
		t.Errorf("%d connections were cut, want at least %d", cut.cuts, rounds/2)
	}
}

// The version has expired, as the answer to the call and in the stream; meanwhile the
// collection has changed, and what has changed is delivered.
//
// Proves W2.
func TestServerExpired(t *testing.T) {
	const gone = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","message":"too old resource version","code":410}`
	for _, tc := range []struct {
		name string
		code int
		body string
	}{
		{"call", http.StatusGone, gone},
		{"stream", http.StatusOK, `{"type":"ERROR","object":` + gone + `}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := testserver.Namespace(t)
			w := &writer{t: t, maps: clientset(t, nil).CoreV1().ConfigMaps(ns)}
			a, b, c := w.create("a"), w.create("b"), w.create("c")
			watches := 0
			watching := clientset(t, func(cfg *rest.Config) {
				cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return roundTripper(func(req *http.Request) (*http.Response, error) {
						if !req.URL.Query().Has("watch") {
							return next.RoundTrip(req)
						}
						if watches++; watches > 1 {
							return next.RoundTrip(req)
						}
						w.want = nil
						w.delete(b)
						w.delete(c)
						w.update(a, "new")
						w.create("c") // another object of that name
						w.create("d")
						return &http.Response{
							StatusCode: tc.code, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
							Body: io.NopCloser(bytes.NewReader([]byte(tc.body))),
						}, nil
					})
				})
			}).CoreV1().ConfigMaps(ns)
			rw := &watcher.RetryWatcher[*corev1.ConfigMap]{Source: watcher.Client[*corev1.ConfigMap](watching), BaseDelay: 1e6}
			var got []string
			synced, expired := 0, 0
			for ev, err := range rw.Events(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				switch ev.Type {
				case watcher.Synced:
					if synced++; synced == 2 {
						w.update(a, "after the list") // conflicts if a's update was not read
					}
				case watcher.Retrying:
					expired++
					if !apierrors.IsResourceExpired(ev.Err) {
						t.Errorf("Retrying = %v, want the 410", ev.Err)
					}
				case watch.Added, watch.Modified, watch.Deleted:
					if ev.Object.Name == "a" {
						a = ev.Object
					}
					if expired > 0 {
						if ev.Synthetic != (synced == 1) {
							t.Errorf("%s: Synthetic = %v", eventLine(ev), ev.Synthetic)
						}
						got = append(got, eventLine(ev))
					}
				}
				if synced == 2 && len(got) == len(w.want) {
					break
				}
			}
			if diff := cmp.Diff(w.want, got); diff != "" {
				t.Errorf("events after the 410 (-changes +watched):\n%s", diff)
			}
			if expired != 1 {
				t.Errorf("%d times Retrying, want once", expired)
			}
		})
	}
}

// A consumer that comes back with LastResourceVersion gets what it has not handled, the
// event it left at included, whatever kind of client it uses.
//
// Proves W5.
func TestServerResume(t *testing.T) {
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	dynamicClient, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	metadataClient, err := metadata.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("typed", func(t *testing.T) {
		resume(t, func(ns string) watcher.Source[*corev1.ConfigMap] {
			return watcher.Client[*corev1.ConfigMap](clientset(t, nil).CoreV1().ConfigMaps(ns))
		})
	})
	t.Run("typed, protobuf", func(t *testing.T) {
		resume(t, func(ns string) watcher.Source[*corev1.ConfigMap] {
			return watcher.Client[*corev1.ConfigMap](clientset(t, func(cfg *rest.Config) { cfg.ContentType = "application/vnd.kubernetes.protobuf" }).CoreV1().ConfigMaps(ns))
		})
	})
	t.Run("dynamic", func(t *testing.T) {
		resume(t, func(ns string) watcher.Source[*unstructured.Unstructured] {
			return watcher.Client[*unstructured.Unstructured](dynamicClient.Resource(gvr).Namespace(ns))
		})
	})
	t.Run("metadata", func(t *testing.T) {
		resume(t, func(ns string) watcher.Source[*metav1.PartialObjectMetadata] {
			return watcher.Client[*metav1.PartialObjectMetadata](metadataClient.Resource(gvr).Namespace(ns))
		})
	})
}

func resume[T controllerkit.Object](t *testing.T, source func(ns string) watcher.Source[T]) {
	ns := testserver.Namespace(t)
	w := &writer{t: t, maps: clientset(t, nil).CoreV1().ConfigMaps(ns)}
	var got []string
	rv := ""
	for life := range 5 {
		rw := &watcher.RetryWatcher[T]{Source: source(ns), ResourceVersion: rv}
		wrote := false
		for ev, err := range rw.Events(t.Context()) {
			if err != nil || ev.Type == watcher.Retrying {
				t.Fatalf("life %d: error %v, %v", life, err, ev.Err)
			}
			if wrote && len(got)+2 == len(w.want) {
				break // two events are left, this one is not handled
			}
			switch ev.Type {
			case watch.Added, watch.Modified, watch.Deleted:
				got = append(got, eventLine(ev))
			}
			// Everything so far is handled but for the two that were left.
			if !wrote && len(got) == len(w.want) {
				cm := w.create(fmt.Sprintf("cm-%d", life))
				cm = w.update(cm, "1")
				cm = w.update(cm, "2")
				w.delete(cm)
				wrote = true
			}
		}
		if rv = rw.LastResourceVersion(); rv == "" {
			t.Fatalf("life %d: nothing to resume from", life)
		}
	}
	// The last life's two events.
	rw := &watcher.RetryWatcher[T]{Source: source(ns), ResourceVersion: rv}
	for ev, err := range rw.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, eventLine(ev))
		if len(got) == len(w.want) {
			break
		}
	}
	if diff := cmp.Diff(w.want, got); diff != "" {
		t.Errorf("events over all lives (-written +watched):\n%s", diff)
	}
}

// A selector is the server's work.
func TestServerSelector(t *testing.T) {
	ns := testserver.Namespace(t)
	maps := clientset(t, nil).CoreV1().ConfigMaps(ns)
	for _, name := range []string{"a", "b"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
		if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, rw := range []*watcher.RetryWatcher[*corev1.ConfigMap]{
		{Source: watcher.Client[*corev1.ConfigMap](maps), LabelSelector: "name=b"},
		{Source: watcher.Client[*corev1.ConfigMap](maps), FieldSelector: "metadata.name=b"},
	} {
		for ev, err := range rw.Events(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Type == watcher.Synced {
				break
			}
			if ev.Object.Name != "b" {
				t.Errorf("%s with selectors %q, %q, want only b", eventLine(ev), rw.LabelSelector, rw.FieldSelector)
			}
		}
	}
}

// The server rejects a version that is no number and a selector that cannot be parsed.
func TestServerInvalidRequests(t *testing.T) {
	maps := clientset(t, nil).CoreV1().ConfigMaps(testserver.Namespace(t))
	for _, rw := range []*watcher.RetryWatcher[*corev1.ConfigMap]{
		{Source: watcher.Client[*corev1.ConfigMap](maps), ResourceVersion: "abc"},
		{Source: watcher.Client[*corev1.ConfigMap](maps), LabelSelector: "a b c"},
		{Source: watcher.Client[*corev1.ConfigMap](maps), FieldSelector: "spec.unknown=x"},
	} {
		for ev, err := range rw.Events(t.Context()) {
			if err == nil {
				t.Errorf("version %q, selectors %q, %q: event %v %v, want an error", rw.ResourceVersion, rw.LabelSelector, rw.FieldSelector, ev.Type, ev.Err)
			}
			break
		}
	}
}

// bodies counts the responses to watches that are open.
type bodies struct {
	next http.RoundTripper
	open *atomic.Int64
}

func (b bodies) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") {
		b.open.Add(1)
		resp.Body = &body{ReadCloser: resp.Body, closed: sync.OnceFunc(func() { b.open.Add(-1) })}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	closed func()
}

func (b *body) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

// streams is a Source that keeps its streams.
type streams struct {
	watcher.Source[*corev1.ConfigMap]
	all []watch.Interface
}

func (s *streams) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	stream, err := s.Source.Watch(ctx, opts)
	if err == nil {
		s.all = append(s.all, stream)
	}
	return stream, err
}

// If the loop over a watch of the server ends, its connection is free and client-go's
// goroutine has ended.
//
// Proves W6.
func TestServerEndsWithNothingLeft(t *testing.T) {
	ns := testserver.Namespace(t)
	for _, leaves := range []bool{true, false} {
		t.Run(map[bool]string{true: "break", false: "ctx"}[leaves], func(t *testing.T) {
			var open atomic.Int64
			maps := clientset(t, func(config *rest.Config) {
				config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bodies{next, &open} })
			}).CoreV1().ConfigMaps(ns)
			s := &streams{Source: watcher.Client[*corev1.ConfigMap](maps)}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			name := fmt.Sprintf("made-%t", leaves)
			w := &writer{t: t, maps: maps}
			var last, want error
		loop:
			for ev, err := range (&watcher.RetryWatcher[*corev1.ConfigMap]{Source: s}).Events(ctx) {
				switch last = err; {
				case err != nil:
				case ev.Type == watcher.Synced:
					w.create(name)
				case ev.Type == watch.Added && ev.Object.Name == name:
					if n := open.Load(); n != 1 {
						t.Errorf("%d watches are open in the loop, want 1", n)
					}
					if leaves {
						break loop
					}
					want = context.Canceled
					cancel()
				}
			}
			if !errors.Is(last, want) || len(w.want) != 1 {
				t.Errorf("the loop ends with %v, want %v", last, want)
			}
			if n := open.Load(); n != 0 {
				t.Errorf("%d watches are open after the loop", n)
			}
			for _, stream := range s.all {
				for ended := false; !ended; {
					select {
					case _, more := <-stream.ResultChan():
						ended = !more
					default:
						t.Fatal("a stream goes on after the loop")
					}
				}
			}
		})
	}
}
