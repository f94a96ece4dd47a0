package informer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
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
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var cuts = flag.Int("cuts", 15, "how many faults of watches TestServerCuts injects")

var beside = flag.Int("beside", 0, "how often TestServerBeside injects each fault into an informer of each side; 0 compares only the names of the table")

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
// cache has the state of the API server afterwards. Each second informer is one of package compact.
// make explore does that 2,000 times.
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
			as := caught
			as.compact = n%2 == 1
			if _, err := survives(t, namespace, client, kind, fmt.Sprint("cut-", n), as); err != nil {
				t.Errorf("%s, number %d, compact %v: %v", kind.name, n, as.compact, err)
			}
		})
	}
	running.Wait()
}

// side is the way in which an informer runs.
type side struct {
	wrap []func(http.RoundTripper) http.RoundTripper
	run  func(ctx context.Context, inf cache.SharedIndexInformer) error

	compact bool // the informer is one of package compact
}

// caught is an informer whose silent watches end soon, so that a test of a stall is short.
var caught = side{
	wrap: []func(http.RoundTripper) http.RoundTripper{informer.EndSilentWatches(2 * time.Second)},
	run:  runSet,
}

func runSet(ctx context.Context, inf cache.SharedIndexInformer) error {
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", inf)
	return set.Run(ctx)
}

// TestServerBeside holds that the table of docs/from-client-go.md has a row for each fault. With
// -beside it injects them into plain informers of client-go too, and prints the table.
func TestServerBeside(t *testing.T) {
	page, err := os.ReadFile("../docs/from-client-go.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := append(slices.Clone(kindsOfCuts), cut{name: lasting, gone: true, next: fault.Fault{NoBookmark: time.Hour}})
	for _, kind := range kinds {
		if !strings.Contains(string(page), "\n| "+kind.name+" | ") {
			t.Errorf("docs/from-client-go.md has no row %q", kind.name)
		}
	}
	if *beside == 0 {
		return
	}
	config := testserver.Config(t)
	config.QPS = -1
	namespace := testserver.Namespace(t)
	client := typedClient(t, config).CoreV1().ConfigMaps(namespace)
	sides := []side{
		{run: func(ctx context.Context, inf cache.SharedIndexInformer) error { inf.RunWithContext(ctx); return nil }},
		{run: runSet, wrap: []func(http.RoundTripper) http.RoundTripper{informer.ConsistentLists, informer.EndSilentWatches(0)}},
	}
	var mu sync.Mutex // guards the maps below
	slowest, late := map[string]time.Duration{}, map[string]int{}
	var running sync.WaitGroup
	slots := make(chan struct{}, 24)
	for n := range *beside * len(kinds) * len(sides) {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			kind, i := kinds[len(kinds)-1-n/len(sides)%len(kinds)], n%len(sides)
			took, err := survives(t, namespace, client, kind, fmt.Sprint("beside-", n), sides[i])
			mu.Lock()
			defer mu.Unlock()
			name := fmt.Sprint(kind.name, i)
			if slowest[name] = max(slowest[name], took); err != nil {
				late[name]++
				if i == 1 && kind.name != lasting {
					t.Errorf("%s, number %d: %v", kind.name, n, err)
				}
			}
		})
	}
	running.Wait()
	var table strings.Builder
	for _, kind := range kinds {
		fmt.Fprintf(&table, "| %s |", kind.name)
		for i := range sides {
			name := fmt.Sprint(kind.name, i)
			switch {
			case late[name] > 0:
				fmt.Fprintf(&table, " %d of %d not within 5 min |", late[name], *beside)
			default:
				fmt.Fprintf(&table, " %.1f s |", slowest[name].Seconds())
			}
		}
		table.WriteByte('\n')
	}
	t.Logf("the slowest of %d from a fault until the cache equals the API server\n%s", *beside, &table)
}

// lasting is a fault that outlasts the bound of TestServerCuts: the watch goes on with bookmarks,
// so that it is not silent. The Set reports it at a start, and an Audit later.
const lasting = "no mark of the end of the list, and an open watch"

// survives runs an informer of the objects with the label run through a fault. It returns the
// time from the fault, which is followed by changes, until the cache has the changes.
func survives(t *testing.T, namespace string, client corev1client.ConfigMapInterface, kind cut, label string, as side) (time.Duration, error) {
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
			return 0, err
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
		return 0, err
	}
	defer process.Kill()
	config := process.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { spoils.next = next; return &spoils })
	for _, wrap := range as.wrap {
		config.Wrap(wrap)
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	tweak := func(o *metav1.ListOptions) { o.LabelSelector = "run=" + label }
	factory := informers.NewSharedInformerFactoryWithOptions(typed, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(tweak))
	var inf cache.SharedIndexInformer = factory.Core().V1().ConfigMaps().Informer()
	if as.compact {
		if inf, err = compact.New[*corev1.ConfigMap](typed.CoreV1().RESTClient(), "configmaps", compact.Options{Namespace: namespace, Tweak: tweak}); err != nil {
			return 0, err
		}
	}
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
		return 0, err
	}
	run, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- as.run(run, inf) }()
	defer func() { end(); <-done }()
	select {
	case <-inf.HasSyncedChecker().Done():
	case err := <-done:
		done <- nil
		return 0, err
	}

	begin := time.Now()
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
		return 0, err
	}
	if err := note(client.Update(ctx, changed, metav1.UpdateOptions{})); err != nil {
		return 0, err
	}
	if err := client.Delete(ctx, object("goes").Name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	delete(want, object("goes").Name)
	select {
	case <-again:
	case <-ctx.Done():
		return 0, errors.New("the informer does not watch again")
	}
	release()
	for {
		have := map[string]string{}
		for _, obj := range inf.GetStore().List() {
			have[obj.(*corev1.ConfigMap).Name] = obj.(*corev1.ConfigMap).ResourceVersion
		}
		if maps.Equal(have, want) {
			if spoils.half.Load() {
				return 0, errors.New("no body was truncated")
			}
			return time.Since(begin), nil
		}
		select {
		case <-event:
		case <-ctx.Done():
			return 0, fmt.Errorf("the cache has %v, and the API server %v", slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)))
		}
	}
}
