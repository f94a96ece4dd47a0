package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/watcher"
)

// route sends requests to the server of the moment, or refuses them.
type route struct {
	mu     sync.Mutex // guards the fields below
	target *url.URL
	next   http.RoundTripper
}

func (r *route) to(t *testing.T, config *rest.Config) {
	t.Helper()
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	next, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target, r.next = target, next
}

func (r *route) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = nil
}

func (r *route) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	target, next := r.target, r.next
	r.mu.Unlock()
	if next == nil {
		return nil, errors.New("the server is away")
	}
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = target.Scheme, target.Host
	return next.RoundTrip(req)
}

// follower keeps the state that the events of one watcher tell.
type follower struct {
	name     string
	selector string
	changed  chan struct{} // has an element after each event

	mu       sync.Mutex // guards the fields below
	state    map[string]string
	synced   bool
	restored bool
	position string
}

func (f *follower) follow(ctx context.Context, client kubernetes.Interface) {
	w := &watcher.RetryWatcher[*corev1.ConfigMap]{
		Source:        watcher.Client[*corev1.ConfigMap](client.CoreV1().ConfigMaps("default")),
		LabelSelector: f.selector, BaseDelay: 50 * time.Millisecond, MaxDelay: 500 * time.Millisecond,
	}
	for event, err := range w.Events(ctx) {
		if err != nil {
			return
		}
		f.handle(event)
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

func (f *follower) handle(event watcher.Event[*corev1.ConfigMap]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		f.state[event.Object.Name] = event.Object.ResourceVersion
	case watch.Deleted:
		delete(f.state, event.Object.Name)
	case watcher.Synced:
		f.synced = true
	case watcher.Retrying:
		f.restored = f.restored || errors.Is(event.Err, watcher.ErrRestored)
	}
	f.position = event.ResourceVersion
}

// await returns once the follower has the given state.
func (f *follower) await(t *testing.T, step string, want map[string]string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		f.mu.Lock()
		same := f.synced && maps.Equal(f.state, want)
		got, position := len(f.state), f.position
		f.mu.Unlock()
		if same {
			return
		}
		select {
		case <-f.changed:
		case <-timeout:
			t.Errorf("%s: %s: it knows %d objects at %s, which are not the %d of the server", step, f.name, got, position, len(want))
			return
		}
	}
}

// The storage is restored from a backup, and the new history passes the position of the
// watchers before they are back. Each finds that out and follows the server.
//
// Proves W3.
func TestServerRestoredFromABackup(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	data, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	// All watchers use one client; the one of "early" is back before the new writes.
	var late, early route
	lateClient, err := kubernetes.NewForConfig(&rest.Config{Host: "http://late.invalid", Transport: &late, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	earlyClient, err := kubernetes.NewForConfig(&rest.Config{Host: "http://early.invalid", Transport: &early, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	var server *testserver.Server
	var client kubernetes.Interface
	start := func() {
		t.Helper()
		if server, err = testserver.Start("-data", data); err != nil {
			t.Fatal(err)
		}
		if client, err = kubernetes.NewForConfig(server.Config()); err != nil {
			t.Fatal(err)
		}
	}
	stop := func() {
		t.Helper()
		late.close()
		early.close()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(group string, n int, prefix string) {
		t.Helper()
		for i := range n {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, i), Labels: map[string]string{"group": group}}}
			if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(selector string) map[string]string {
		t.Helper()
		all, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		state := map[string]string{}
		for _, cm := range all.Items {
			state[cm.Name] = cm.ResourceVersion
		}
		return state
	}
	of := func(group string) string { return labels.Set{"group": group}.String() }

	start()
	write("large", 110, "large-")
	write("small", 3, "small-")
	write("quiet", 3, "quiet-")
	stop()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}

	start()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	followers := []*follower{
		{name: "a large collection", selector: of("large")},
		{name: "a small collection", selector: of("small")},
		{name: "a collection without a lost event", selector: of("quiet")},
		{name: "one that is back early", selector: of("small")},
	}
	// The lost part of the history comes before the lists and after them.
	write("other", 150, "lost-")
	late.to(t, server.Config())
	early.to(t, server.Config())
	for i, f := range followers {
		f.changed, f.state = make(chan struct{}, 1), map[string]string{}
		watching := lateClient
		if i == 3 {
			watching = earlyClient
		}
		wg.Go(func() { f.follow(ctx, watching) })
		f.await(t, "before", list(f.selector))
	}
	write("large", 3, "large-lost-")
	write("small", 3, "small-lost-")
	if err := client.CoreV1().ConfigMaps("default").Delete(t.Context(), "small-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, f := range followers {
		f.await(t, "lost", list(f.selector))
	}
	stop()

	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	start()
	defer stop()
	early.to(t, server.Config())
	write("quiet", 2, "quiet-new-")
	write("small", 2, "small-new-")
	write("large", 2, "large-new-")
	followers[3].await(t, "not passed", list(followers[3].selector))
	write("other", 250, "new-")
	late.to(t, server.Config())
	for _, f := range followers {
		f.await(t, "restored", list(f.selector))
		f.mu.Lock()
		if !f.restored && f != followers[3] { // which the server itself refuses
			t.Errorf("%s: no event with ErrRestored", f.name)
		}
		f.mu.Unlock()
	}
	// The watchers end before the server does, so that no goroutine of a test outlives it.
	cancel()
	wg.Wait()
}
