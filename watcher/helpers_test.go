package watcher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/internal/testpipe"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/watcher"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"net/http"
)

func pod(name, uid, rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: rv}}
}

func status(code int32, reason metav1.StatusReason, retryAfter int32) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason),
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}

func errorEvent(err *apierrors.StatusError) watch.Event {
	return watch.Event{Type: watch.Error, Object: &err.ErrStatus}
}

func bookmark(rv string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: pod("", "", rv)}
}

// stream is a watch whose events are known from the start.
type stream struct {
	events chan watch.Event

	mu      sync.Mutex // guards the closing of events
	stopped bool
	ended   bool
}

// closing is a stream that the server closes after the events.
func closing(events ...watch.Event) *stream {
	s := open(events...)
	s.ended = true
	close(s.events)
	return s
}

// open is a stream that stays open after the events.
func open(events ...watch.Event) *stream {
	s := &stream{events: make(chan watch.Event, len(events)+1)}
	for _, ev := range events {
		s.events <- ev
	}
	return s
}

func (s *stream) ResultChan() <-chan watch.Event { return s.events }

func (s *stream) send(ev watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.events <- ev
	}
}

func (s *stream) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if !s.ended {
		s.ended = true
		close(s.events)
	}
}

// call is what a source was asked, and when.
type call struct {
	Verb string
	At   time.Duration
	RV   string
}

// source responds with functions and records the calls. Its calls never overlap.
type source struct {
	start time.Time
	calls []call
	list  func(n int, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error)
	watch func(ctx context.Context, n int, opts metav1.ListOptions) (watch.Interface, error)
	check func(opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) // nil means that nothing can be compared
	nList int
	nW    int
}

func (s *source) note(verb, rv string) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.calls = append(s.calls, call{verb, time.Since(s.start), rv})
}

func (s *source) List(_ context.Context, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	if isCheck(opts) {
		if s.check == nil {
			return nil, metav1.ListMeta{}, nil // a version that cannot be compared
		}
		s.note("check", opts.ResourceVersion)
		return s.check(opts)
	}
	s.note("list", opts.ResourceVersion)
	s.nList++
	if s.list == nil {
		return nil, metav1.ListMeta{ResourceVersion: "10"}, nil
	}
	return s.list(s.nList, opts)
}

func (s *source) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	s.note("watch", opts.ResourceVersion)
	s.nW++
	return s.watch(ctx, s.nW, opts)
}

// isCheck recognises the requests that find a restored server: they ask for less than
// a page.
func isCheck(opts metav1.ListOptions) bool { return opts.Limit == 101 }

// show writes an event in one line.
func show(ev watcher.Event[*corev1.Pod]) string {
	var b strings.Builder
	b.WriteString(string(ev.Type))
	if ev.Object != nil {
		fmt.Fprintf(&b, " %s/%s@%s", ev.Object.Name, ev.Object.UID, ev.Object.ResourceVersion)
	}
	if ev.Synthetic {
		b.WriteString(" synthetic")
	}
	if ev.ResourceVersion != "" {
		b.WriteString(" rv=" + ev.ResourceVersion)
	}
	return b.String()
}

// collect ranges over w for d and returns the events and the last error.
func collect(t *testing.T, w *watcher.RetryWatcher[*corev1.Pod], d time.Duration) (events []watcher.Event[*corev1.Pod], err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for ev, e := range w.Events(ctx) {
		if e != nil {
			err = e
			continue
		}
		events = append(events, ev)
	}
	return events, err
}

func lines(events []watcher.Event[*corev1.Pod]) []string {
	var out []string
	for _, ev := range events {
		out = append(out, show(ev))
	}
	return out
}

// serve returns a client of a server in memory. Both end with the test.
func serve(t *testing.T, handler http.HandlerFunc) *kubernetes.Clientset {
	t.Helper()
	p := testpipe.Listen()
	server := &http.Server{Handler: handler}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(p) }()
	transport := &http.Transport{DialContext: p.DialContext}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-ended
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server.invalid", Transport: transport, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func clientset(t *testing.T, change func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	cfg := testserver.Config(t)
	if change != nil {
		change(cfg)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
