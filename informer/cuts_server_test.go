package informer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var cuts = flag.Int("cuts", 15, "how many faults of watches TestServerCuts injects")

// cut is a fault of a watch.
type cut struct {
	name  string
	next  fault.Fault // of the next watch, once
	gone  bool        // the present watch ends with a 410 event
	reset bool        // its connection breaks
	stall bool        // it delivers nothing more, until the informer watches again
	half  bool        // its body ends within the next event; if gone, that of the next watch
	slow  bool        // it comes in small pieces, as does the next list if gone
}

var kindsOfCuts = []cut{
	{name: "the end of a watch"},
	{name: "a 410 event", gone: true},
	{name: "a broken connection", reset: true},
	{name: "a stall", stall: true},
	{name: "a lost request", next: fault.Fault{Drop: true}},
	{name: "a lost response", next: fault.Fault{Lose: true}},
	{name: "410 at the start", next: fault.Fault{Response: &fault.Response{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}}},
	{name: "429 at the start", next: fault.Fault{Response: &fault.Response{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 1}}},
	{name: "503 at the start", next: fault.Fault{Response: &fault.Response{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable}}},
	{name: "no mark of the end of the list", gone: true, next: fault.Fault{NoBookmark: 100 * time.Millisecond}},
	{name: "a late start", next: fault.Fault{Hold: 100 * time.Millisecond}},
	{name: "a truncated event", half: true},
	{name: "a truncated list", gone: true, half: true},
	{name: "slow events", slow: true},
	{name: "a slow list", gone: true, slow: true},
}

// line is a connection that truncates and slows the bodies of watches.
type line struct {
	next       http.RoundTripper
	half, slow atomic.Bool // half is over after one body
}

func (l *line) WrappedRoundTripper() http.RoundTripper { return l.next }

func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") {
		resp.Body = &spoiled{resp.Body, req.Context(), l}
	}
	return resp, err
}

type spoiled struct {
	io.ReadCloser
	ctx  context.Context
	line *line
}

func (s *spoiled) Read(p []byte) (int, error) {
	if s.line.slow.Load() {
		p = p[:min(len(p), 16)]
		select {
		case <-time.After(time.Millisecond):
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	n, err := s.ReadCloser.Read(p)
	if n > 1 && s.line.half.Swap(false) {
		return n / 2, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestServerCuts injects a fault into the watch of an informer, and then changes objects: the
// cache has the state of the API server afterwards. make explore does that 2,000 times.
func TestServerCuts(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	config.QPS = -1
	namespace := testserver.Namespace(t)
	client := typedClient(t, config).CoreV1().ConfigMaps(namespace)
	var running sync.WaitGroup
	slots := make(chan struct{}, 24)
	for n := range *cuts {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			kind := kindsOfCuts[n%len(kindsOfCuts)]
			if err := survives(t, namespace, client, kind, fmt.Sprint("cut-", n)); err != nil {
				t.Errorf("%s, number %d: %v", kind.name, n, err)
			}
		})
	}
	running.Wait()
}

// survives runs an informer of the objects with the label run through a fault.
func survives(t *testing.T, namespace string, client corev1client.ConfigMapInterface, kind cut, label string) error {
	ctx, stop := context.WithTimeout(quiet(t), 5*time.Minute) // bounds a failing test
	defer stop()
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: label + "-" + name, Labels: map[string]string{"run": label}}}
	}
	want := map[string]string{} // versions by name
	note := func(obj *corev1.ConfigMap, err error) error {
		if err == nil {
			want[obj.Name] = obj.ResourceVersion
		}
		return err
	}
	for _, name := range []string{"stays", "changes", "goes"} {
		if err := note(client.Create(ctx, object(name), metav1.CreateOptions{})); err != nil {
			return err
		}
	}

	var armed atomic.Bool
	again := make(chan struct{}, 1) // a watch began after the fault
	var spoils line
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		if op.Verb != "watch" || !armed.Swap(false) {
			return fault.Fault{}
		}
		again <- struct{}{}
		spoils.half.Store(kind.half && kind.gone)
		return kind.next
	}, nil)
	if err != nil {
		return err
	}
	defer process.Kill()
	config := process.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { spoils.next = next; return &spoils })
	config.Wrap(informer.EndSilentWatches(2 * time.Second))
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(typed, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "run=" + label }))
	inf := factory.Core().V1().ConfigMaps().Informer()
	event := make(chan struct{}, 1) // since the cache was last compared
	signal := func() {
		select {
		case event <- struct{}{}:
		default:
		}
	}
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { signal() }, UpdateFunc: func(any, any) { signal() }, DeleteFunc: func(any) { signal() },
	}); err != nil {
		return err
	}
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", inf)
	run, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- set.Run(run) }()
	defer func() { end(); <-done }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		done <- nil
		return err
	}

	armed.Store(true)
	release := func() {}
	spoils.slow.Store(kind.slow)
	switch {
	case kind.slow && !kind.gone:
		again <- struct{}{} // this watch goes on
	case kind.half && !kind.gone:
		spoils.half.Store(true)
	case kind.stall:
		release = process.Hold("configmaps")
	case kind.reset:
		process.Reset()
	default:
		process.Cut("configmaps", kind.gone)
	}
	defer func() { release() }()
	changed := object("changes")
	changed.Data = map[string]string{"a": "b"}
	if err := note(client.Create(ctx, object("comes"), metav1.CreateOptions{})); err != nil {
		return err
	}
	if err := note(client.Update(ctx, changed, metav1.UpdateOptions{})); err != nil {
		return err
	}
	if err := client.Delete(ctx, object("goes").Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	delete(want, object("goes").Name)
	select {
	case <-again:
	case <-ctx.Done():
		return errors.New("the informer does not watch again")
	}
	release()
	for {
		have := map[string]string{}
		for _, obj := range inf.GetStore().List() {
			have[obj.(*corev1.ConfigMap).Name] = obj.(*corev1.ConfigMap).ResourceVersion
		}
		if maps.Equal(have, want) {
			if spoils.half.Load() {
				return errors.New("no body was truncated")
			}
			return nil
		}
		select {
		case <-event:
		case <-ctx.Done():
			return fmt.Errorf("the cache has %v, and the API server %v", slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)))
		}
	}
}
