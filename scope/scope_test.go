package scope_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/scope"
)

// setup runs a scope of a server.
func setup(t *testing.T) (*server, *scope.Informer, func()) {
	t.Helper()
	s := newServer()
	informers := s.informers()
	objects := scope.New(informers.Open)
	return s, objects, run(t, quiet(t), informers, objects)
}

func in(namespaces ...string) scope.Selection { return scope.Selection{Namespaces: namespaces} }

// wantEvents compares what a journal got since the last time.
func wantEvents(t *testing.T, j *journal, want ...string) {
	t.Helper()
	synctest.Wait()
	got, wrong := j.take()
	slices.Sort(want)
	if !slices.Equal(got, want) || len(wrong) > 0 {
		t.Errorf("events %q, want %q; wrong: %q", got, want, wrong)
	}
}

// Proves SC1, SC3, SC4.
func TestNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, stop := setup(t)
		j := newJournal()
		registration := handle(t, objects, j)
		for _, n := range all {
			s.put(n, "one", "x") // 11 to 14
			s.put(n, "two", "x")
		}
		if objects.HasSynced() || registration.HasSynced() {
			t.Error("synced before the first Select")
		}
		must(t, objects.Select(t.Context(), in("a", "b", "a")))
		wantEvents(t, j, "add a/one 11", "add a/two 12", "add b/one 13", "add b/two 14")
		if !objects.HasSynced() || !registration.HasSynced() {
			t.Error("not synced after Select")
		}
		s.put("b", "two", "y")
		s.put("c", "two", "y")
		wantEvents(t, j, "update b/two 19")
		must(t, objects.Select(t.Context(), in("b", "c")))
		wantEvents(t, j, "delete a/one 11", "delete a/two 12", "add c/one 15", "add c/two 20")
		s.put("a", "one", "y")
		s.put("b", "one", "")
		wantEvents(t, j, "delete b/one 22")
		must(t, objects.Select(t.Context(), in("b", "c")))
		wantEvents(t, j)
		late := newJournal()
		handle(t, objects, late)
		wantEvents(t, late, "add b/two 19", "add c/one 15", "add c/two 20")
		must(t, objects.Select(t.Context(), scope.Selection{}))
		wantEvents(t, j, "delete b/two 19", "delete c/one 15", "delete c/two 20")
		if n := len(objects.GetStore().List()); n > 0 {
			t.Errorf("the lister has %d objects without a selection", n)
		}
		must(t, objects.Select(t.Context(), in("b")))
		wantEvents(t, j, "add b/two 19")
		for _, n := range []string{"a", "c"} {
			if got := s.lists[scope.Part{Namespace: n}]; got != 1 {
				t.Errorf("namespace %s was listed %d times, want once", n, got)
			}
		}
		if got := s.lists[scope.Part{Namespace: "b"}]; got != 2 {
			t.Errorf("namespace b was listed %d times, want once for each time that it was added", got)
		}
		stop()
		if len(s.watches) > 0 {
			t.Errorf("%d watches are open after the stop", len(s.watches))
		}
	})
}

// The handler of an added object sees the whole namespace in the lister, and nobody sees a
// part of it.
//
// Proves SC1.
func TestWhole(t *testing.T) {
	s, objects, stop := setup(t)
	const n = 50
	for i := range n {
		s.put("a", fmt.Sprint("o", i), "x")
	}
	s.put("b", "o", "x")
	must(t, objects.Select(t.Context(), in("b")))
	seen := make(chan int, n)
	handle(t, objects, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen <- len(objects.GetIndexer().ListKeys()) },
		DeleteFunc: func(obj any) { seen <- len(objects.GetIndexer().ListKeys()) },
	})
	<-seen
	done, reader := make(chan struct{}), make(chan map[int]bool)
	go func() {
		sizes := map[int]bool{}
		for {
			select {
			case <-done:
				reader <- sizes
				return
			default:
				sizes[len(objects.GetStore().List())] = true
			}
		}
	}()
	must(t, objects.Select(t.Context(), in("a", "b")))
	for range n {
		if got := <-seen; got != n+1 {
			t.Fatalf("the handler of an addition sees %d objects, want %d", got, n+1)
		}
	}
	must(t, objects.Select(t.Context(), in("a")))
	if got := <-seen; got != n {
		t.Errorf("the handler of a deletion sees %d objects, want %d", got, n)
	}
	close(done)
	for size := range <-reader {
		if size != 1 && size != n && size != n+1 {
			t.Errorf("the lister showed %d objects", size)
		}
	}
	stop()
}

// Proves SC6.
func TestSelectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		handle(t, objects, j)
		s.put("a", "x", "x")
		s.put("a", "y", "y")
		s.put("b", "x", "x")
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=x"}))
		wantEvents(t, j, "add a/x 11")
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: " app = x"}))
		if n := len(s.lists); n != 1 {
			t.Errorf("an equal selector: %d parts, want 1", n)
		}
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app in (x,y)"}))
		wantEvents(t, j, "add a/y 12")
		must(t, objects.Select(t.Context(), in("", "b")))
		wantEvents(t, j, "add b/x 13")
		s.setDelay(func() time.Duration { return time.Second }) // the change arrives during Select
		go s.put("a", "x", "y")
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a", "b"}, LabelSelector: "app=y"}))
		wantEvents(t, j, "delete b/x 13", "update a/x 14")
		s.setDelay(nil)
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=z"}))
		wantEvents(t, j, "delete a/x 14", "delete a/y 12")
	})
}

// A cache that replaces another is not shown while it is older.
//
// Proves SC5.
func TestOlderCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		handle(t, objects, j)
		s.put("a", "one", "x")
		s.put("a", "two", "x")
		must(t, objects.Select(t.Context(), in("a")))
		s.put("a", "two", "") // 13
		wantEvents(t, j, "add a/one 11", "add a/two 12", "delete a/two 13")
		s.mu.Lock()
		s.stale = true
		s.mu.Unlock()
		s.setDelay(func() time.Duration { return time.Second }) // also of the watch that brings version 13
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=x"}))
		wantEvents(t, j)

		s.put("a", "one", "x") // 14; the list lacks it, and no event brings it to the new selection
		s.put("a", "one", "y") // 15
		time.Sleep(time.Minute)
		s.setDelay(nil)
		wantEvents(t, j, "update a/one 14", "delete a/one 15")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.mu.Lock()
		s.history, s.version = append(s.history, change{version: 16}), 16
		s.mu.Unlock()
		s.bookmark()
		synctest.Wait()
		s.mu.Lock()
		s.stale, s.version = false, 15 // of an old cache
		s.mu.Unlock()
		err := objects.Select(ctx, scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=z"})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "older") {
			t.Errorf("Select = %v with an old list, want a deadline exceeded", err)
		}
		go func() {
			time.Sleep(10 * time.Second)
			s.mu.Lock()
			s.version = 16
			s.mu.Unlock()
			s.bookmark()
		}()
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=z"}))
		wantEvents(t, j)
	})
}

// slow is a Watch whose handlers get additions late.
type slow struct{ *ondemand.Watch }

func (w slow) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	late := func(obj any) { time.Sleep(time.Second); h.OnAdd(obj, false) }
	return w.Watch.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: late, UpdateFunc: h.OnUpdate, DeleteFunc: h.OnDelete})
}

// An object whose addition is still on its way from the new cache is not reported as deleted.
//
// Proves SC6.
func TestLateEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		informers := s.informers()
		objects := scope.New(func(p scope.Part) (slow, error) {
			w, err := informers.Open(p)
			return slow{w}, err
		})
		stop := run(t, quiet(t), informers, objects)
		j := newJournal()
		handle(t, objects, j)
		s.put("a", "one", "x")
		s.put("a", "two", "x")
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11", "add a/two 12")
		must(t, objects.Select(t.Context(), in("")))
		time.Sleep(time.Minute)
		wantEvents(t, j)
		stop()
	})
}

// Proves SC2.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		handle(t, objects, j)
		s.put("a", "one", "x")
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11")
		s.forbid("b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := objects.Select(ctx, in("b", "c"))
		if !apierrors.IsForbidden(err) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "select namespace b: ") {
			t.Errorf("Select = %v, want a forbidden that names b", err)
		}
		s.put("a", "one", "y")
		s.put("c", "one", "y")
		wantEvents(t, j, "update a/one 12")

		// Events that wait for a change of selectors come after its failure.
		s.forbid("a")
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		failed := make(chan error)
		go func() {
			failed <- objects.Select(ctx, scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=y"})
		}()
		synctest.Wait()
		s.put("a", "one", "z")
		s.put("a", "two", "y")
		s.put("a", "one", "")
		wantEvents(t, j)
		if err := <-failed; !apierrors.IsForbidden(err) {
			t.Errorf("Select = %v, want a forbidden", err)
		}
		wantEvents(t, j, "update a/one 14", "add a/two 15", "delete a/one 16")
		if diff := cmp.Diff(s.selected(in("a")), listed(objects.GetStore())); diff != "" {
			t.Errorf("the lister after failures (-want +got):\n%s", diff)
		}
		if len(s.watches) != 1 {
			t.Errorf("%d watches are open, want 1: failed parts are closed", len(s.watches))
		}
	})
}

// Proves SC8.
func TestBadHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		informers := s.informers()
		objects := scope.New(informers.Open)
		var text bytes.Buffer
		stop := run(t, logTo(t.Context(), &text), informers, objects)
		j := newJournal()
		release := make(chan struct{})
		blocked := handle(t, objects, cache.ResourceEventHandlerFuncs{AddFunc: func(any) { <-release }})
		calls := 0
		handle(t, objects, cache.ResourceEventHandlerFuncs{AddFunc: func(any) { calls++; panic("a\nbug") }})
		handle(t, objects, j)
		s.put("a", "one", "x")
		s.put("a", "two", "x")
		must(t, objects.Select(t.Context(), in("a")))
		must(t, objects.Select(t.Context(), in("b")))
		wantEvents(t, j, "add a/one 11", "add a/two 12", "delete a/one 11", "delete a/two 12")
		if calls != 2 {
			t.Errorf("the handler that panics was called %d times, want 2", calls)
		}
		if blocked.HasSynced() {
			t.Error("the blocked handler is synced")
		}
		must(t, objects.RemoveEventHandler(blocked))
		must(t, objects.RemoveEventHandler(blocked))
		close(release)
		must(t, cache.ShutDownEventHandler(objects, blocked))
		stop()
		if got := text.String(); strings.Count(got, "A handler panicked") != 1 || !strings.Contains(got, `a\\nbug`) && !strings.Contains(got, `a\nbug`) {
			t.Errorf("log: %s", got)
		}
	})
}

// Proves SC9.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		informers := s.informers()
		objects := scope.New(informers.Open)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		other, end := context.WithCancel(quiet(t))
		done, ended := make(chan error, 1), make(chan struct{})
		go func() { done <- informers.Run(other) }()
		go func() { defer close(ended); objects.RunWithContext(ctx) }()
		s.put("a", "one", "x")
		must(t, objects.Select(t.Context(), in("a")))
		release, running := make(chan struct{}), make(chan struct{})
		handle(t, objects, cache.ResourceEventHandlerFuncs{AddFunc: func(any) { close(running); <-release }})
		<-running
		s.forbid("b")
		results := make(chan error)
		for range 3 { // one runs, two wait
			go func() { results <- objects.Select(t.Context(), in("a", "b")) }()
		}
		synctest.Wait()
		cancel()
		for range 3 {
			if err := <-results; !errors.Is(err, scope.ErrStopped) {
				t.Errorf("Select = %v during the stop, want ErrStopped", err)
			}
		}
		synctest.Wait()
		select {
		case <-ended:
			t.Error("RunWithContext returned while a handler runs")
		default:
		}
		close(release)
		<-ended
		synctest.Wait()
		if len(s.watches) > 0 {
			t.Errorf("%d watches are open after the stop", len(s.watches))
		}
		_, added := objects.AddEventHandler(newJournal())
		for what, err := range map[string]error{
			"Select": objects.Select(t.Context(), in("a")), "AddEventHandler": added, "AddIndexers": objects.AddIndexers(cache.Indexers{}),
		} {
			if !errors.Is(err, scope.ErrStopped) {
				t.Errorf("%s = %v after the stop, want ErrStopped", what, err)
			}
		}
		if !objects.IsStopped() {
			t.Error("IsStopped = false after the stop")
		}
		objects.RunWithContext(quiet(t)) // returns
		end()
		must(t, <-done)
	})
}

// Proves SC10.
func TestVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		want := func(version string) {
			t.Helper()
			synctest.Wait()
			if got := objects.GetStore().LastStoreSyncResourceVersion(); got != version {
				t.Errorf("version %q, want %q", got, version)
			}
		}
		want("")
		must(t, objects.Select(t.Context(), in("a")))
		want("10")
		s.put("a", "one", "x")
		want("11")
		must(t, objects.Select(t.Context(), in("a", "b")))
		want("11")
		s.put("a", "one", "y")
		want("11") // of b
		s.bookmark()
		want("12")
		s.put("a", "one", "x")
		must(t, objects.Select(t.Context(), in("a")))
		want("13")
		s.mu.Lock()
		s.version = 12
		s.mu.Unlock()
		must(t, objects.Select(t.Context(), in("a", "c"))) // an old list
		want("")
		s.mu.Lock()
		s.version = 13
		s.mu.Unlock()
		s.bookmark()
		want("13")
		s.mu.Lock()
		s.version = 12
		s.mu.Unlock()
		s.bookmark()
		want("12") // a restore of etcd is not hidden
		s.mu.Lock()
		s.version = 13
		s.mu.Unlock()
		s.bookmark()
		want("13")
		must(t, objects.Select(t.Context(), in("")))
		want("13")
		must(t, objects.Select(t.Context(), in()))
		want("")
	})
}

func TestBadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		selection scope.Selection
		want      string
	}{
		"namespace":      {in("a", "Blue\n"), `scope: Selection.Namespaces: "Blue\\n" is not a namespace: a lowercase RFC 1123 label`},
		"label selector": {scope.Selection{LabelSelector: "app in (x"}, `scope: Selection.LabelSelector "app in (x" is not valid: `},
		"field selector": {scope.Selection{FieldSelector: "a=b=c,,d"}, `scope: Selection.FieldSelector "a=b=c,,d" is not valid: `},
		"long selector":  {scope.Selection{LabelSelector: strings.Repeat("a,", 1<<16)}, "scope: a selector of the Selection has 131072 bytes: the limit is 65536"},
		"many":           {in(make([]string, 10_001)...), "scope: Selection.Namespaces has 10001 namespaces: the limit is 10000"},
		"long field":     {scope.Selection{FieldSelector: strings.Repeat("a", 1<<16+1)}, "scope: a selector of the Selection has 65537 bytes: the limit is 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := scope.New(newServer().informers().Open)
			err := objects.Select(t.Context(), tc.selection)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || len(err.Error()) > 5000 {
				t.Errorf("Select = %v, want %s...", err, tc.want)
			}
		})
	}
	for name, objects := range map[string]*scope.Informer{
		"nil function": scope.New[*ondemand.Watch](nil),
		"nil Watch":    scope.New(func(scope.Part) (*ondemand.Watch, error) { return nil, nil }),
		"error":        scope.New(func(scope.Part) (*ondemand.Watch, error) { return nil, errors.New("nil: not a kind") }),
	} {
		if err := objects.Select(t.Context(), in("a")); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: Select = %v, want an error", name, err)
		}
		if err := objects.Select(t.Context(), in()); name != "nil function" && err != nil {
			t.Errorf("%s: Select = %v, want none for no namespace", name, err)
		}
	}
	objects := scope.New(newServer().informers().Open)
	period := time.Minute
	_, nothing := objects.AddEventHandler((*journal)(nil))
	_, resync := objects.AddEventHandlerWithOptions(newJournal(), cache.HandlerOptions{ResyncPeriod: &period})
	for what, err := range map[string]error{
		"a nil handler": nothing, "a resync": resync, "a nil handle": objects.RemoveEventHandler(nil), "a transform": objects.SetTransform(nil),
		"a write": objects.GetStore().Add(&corev1.ConfigMap{}),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "scope: ") {
			t.Errorf("%s: %v, want an error", what, err)
		}
	}
}

// A handler that is removed before the Informer runs has ended, and is never called.
func TestRemovedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		informers := s.informers()
		objects := scope.New(informers.Open)
		j := newJournal()
		removed := handle(t, objects, j)
		must(t, cache.ShutDownEventHandler(objects, removed))
		must(t, objects.RemoveEventHandler(removed)) // again
		stop := run(t, quiet(t), informers, objects)
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j)
		stop()
	})
}

// The options of a part have both of its selectors.
func TestOptions(t *testing.T) {
	options := metav1.ListOptions{Limit: 5, LabelSelector: "old"}
	scope.Part{Namespace: "a", LabelSelector: "app=x", FieldSelector: "metadata.name=one", ShardSelector: "s"}.Options(&options)
	want := metav1.ListOptions{Limit: 5, LabelSelector: "app=x", FieldSelector: "metadata.name=one"}
	if diff := cmp.Diff(want, options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

// The cache has a version of each selected namespace, and of no other one.
func TestVersionOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		want := func(namespace, version string) {
			t.Helper()
			synctest.Wait()
			of := objects.GetStore().(interface {
				LastStoreSyncResourceVersionOf(string) (string, bool)
			}).LastStoreSyncResourceVersionOf
			if got, ok := of(namespace); got != version || ok != (version != "") {
				t.Errorf("version of %q: %q, %v, want %q", namespace, got, ok, version)
			}
		}
		want("a", "")
		must(t, objects.Select(t.Context(), in("a", "b")))
		s.put("a", "one", "x")
		want("a", "11")
		want("b", "10")
		want("c", "")
		want("", "")
		must(t, objects.Select(t.Context(), in("")))
		want("a", "")
		want("", "")
	})
}

// The indexer equals that of a client-go informer over the same objects.
func TestIndexer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		app := func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Labels["app"]}, nil }
		for i, n := range all {
			s.put(n, "one", "x")
			s.put(n, fmt.Sprint("o", i), "y")
		}
		s.setDelay(func() time.Duration { return time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := objects.Select(ctx, in("c")); err == nil {
			t.Error("Select = nil before the list")
		}
		time.Sleep(time.Minute) // the informer of c has ended, and an index of it would be an error
		must(t, objects.AddIndexers(cache.Indexers{"other": app}))
		must(t, objects.Select(t.Context(), in("d")))
		must(t, objects.Select(t.Context(), in("b")))
		time.Sleep(time.Minute) // the informer of d has ended
		selected := make(chan error, 1)
		go func() { selected <- objects.Select(t.Context(), in("a", "b")) }()
		time.Sleep(time.Millisecond)
		must(t, objects.AddIndexers(cache.Indexers{"app": app})) // a, which is not selected yet, gets the index
		must(t, <-selected)
		s.setDelay(nil)
		must(t, objects.Select(t.Context(), in("a", "c"))) // c gets the index
		if err := objects.AddIndexers(cache.Indexers{"app": app}); err == nil {
			t.Error("an index was added twice")
		}
		want := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"app": app, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, n := range []string{"a", "c"} {
			for _, o := range s.objects {
				if o.Namespace == n {
					must(t, want.Add(o))
				}
			}
		}
		got := objects.GetIndexer()
		names := func(found []any, err error) []string {
			keys := []string{fmt.Sprint(err)}
			for _, o := range found {
				keys = append(keys, o.(*corev1.ConfigMap).Namespace+"/"+o.(*corev1.ConfigMap).Name)
			}
			slices.Sort(keys)
			return keys
		}
		sorted := func(keys []string, err error) []string {
			keys = append(slices.Clone(keys), fmt.Sprint(err))
			slices.Sort(keys)
			return keys
		}
		for what, read := range map[string]func(cache.Indexer) []string{
			"List":                func(x cache.Indexer) []string { return names(x.List(), nil) },
			"ListKeys":            func(x cache.Indexer) []string { return sorted(x.ListKeys(), nil) },
			"ByIndex":             func(x cache.Indexer) []string { return names(x.ByIndex("app", "y")) },
			"ByIndex of a":        func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "a")) },
			"ByIndex of b":        func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "b")) },
			"Index":               func(x cache.Indexer) []string { return names(x.Index("app", s.objects["d/one"])) },
			"IndexKeys":           func(x cache.Indexer) []string { return sorted(x.IndexKeys("app", "x")) },
			"ListIndexFuncValues": func(x cache.Indexer) []string { return sorted(x.ListIndexFuncValues("app"), nil) },
			"namespaces":          func(x cache.Indexer) []string { return sorted(x.ListIndexFuncValues(cache.NamespaceIndex), nil) },
			"Get": func(x cache.Indexer) []string {
				o, ok, err := x.Get(s.objects["c/one"])
				return names([]any{o}, fmt.Errorf("%v %w", ok, err))
			},
			"GetByKey of no object": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("a/none")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"GetByKey out of it": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("b/one")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"GetByKey of no key": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("a/b/c")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"a namespace of nowhere": func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "x")) },
		} {
			if diff := cmp.Diff(read(want), read(got)); diff != "" {
				t.Errorf("%s (-client-go +scope):\n%s", what, diff)
			}
		}
		if _, err := got.ByIndex("none", ""); err == nil {
			t.Error("ByIndex of an index that does not exist = nil")
		}
	})
}

// An informer.Set runs a scope like any informer, and is ready after the first Select.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		informers := s.informers()
		objects := scope.New(informers.Open)
		set := &informer.Set{}
		j := newJournal()
		set.Add("configmaps", objects, handle(t, objects, j))
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 2)
		go func() { done <- informers.Run(ctx) }()
		go func() { done <- set.Run(ctx) }()
		s.put("a", "one", "x")
		synctest.Wait()
		if err := set.Ready(); !errors.Is(err, informer.ErrNotSynced) {
			t.Errorf("Ready = %v before Select, want ErrNotSynced", err)
		}
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11")
		must(t, set.Ready())
		if err := objects.SetWatchErrorHandlerWithContext(nil); err == nil {
			t.Error("the handler of watch errors was set after the start")
		}
		cancel()
		must(t, <-done)
		must(t, <-done)
	})
}

// A Select of nothing, before anything runs, makes the Informer synced: a controller that waits
// for it can begin, and select more.
func TestNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		informers := s.informers()
		objects := scope.New(informers.Open)
		j := newJournal()
		h := handle(t, objects, j)
		must(t, objects.Select(t.Context(), scope.Selection{}))
		stop := run(t, quiet(t), informers, objects)
		synctest.Wait()
		if !objects.HasSynced() || !h.HasSynced() || len(objects.GetStore().List()) > 0 {
			t.Errorf("synced %v, handler %v, objects %v", objects.HasSynced(), h.HasSynced(), objects.GetStore().List())
		}
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11")
		stop()
	})
}

// Two scopes share the informer of a part, and each may add the same index.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		informers := s.informers()
		one, two := scope.New(informers.Open), scope.New(informers.Open)
		stop := run(t, quiet(t), informers, one)
		ctx, cancel := context.WithCancel(quiet(t))
		var wait sync.WaitGroup
		wait.Go(func() { two.RunWithContext(ctx) })
		index := cache.Indexers{"app": func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Labels["app"]}, nil }}
		must(t, one.AddIndexers(index))
		must(t, two.AddIndexers(index))
		j, k := newJournal(), newJournal()
		handle(t, one, j)
		handle(t, two, k)
		s.put("a", "one", "x")
		must(t, one.Select(t.Context(), in("a")))
		must(t, two.Select(t.Context(), in("a")))
		if got := s.lists[scope.Part{Namespace: "a"}]; got != 1 {
			t.Errorf("%d lists, want one for both scopes", got)
		}
		wantEvents(t, j, "add a/one 11")
		wantEvents(t, k, "add a/one 11")
		must(t, one.Select(t.Context(), in()))
		s.put("a", "one", "y")
		wantEvents(t, j, "delete a/one 11")
		wantEvents(t, k, "update a/one 12")
		cancel()
		wait.Wait()
		stop()
	})
}

// TestShardSelector: the informers of the parts get the selector of the shards, which the
// options do not contain, and another selector is another part.
func TestShardSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		informers := s.informers()
		var parts []scope.Part
		make := informers.New
		informers.New = func(p scope.Part) (cache.SharedIndexInformer, error) {
			parts = append(parts, p)
			return make(p)
		}
		objects := scope.New(informers.Open)
		stop := run(t, quiet(t), informers, objects)
		defer stop()
		for _, text := range []string{"one", "two", "two"} {
			must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, ShardSelector: text}))
		}
		want := []scope.Part{{Namespace: "a", ShardSelector: "one"}, {Namespace: "a", ShardSelector: "two"}}
		if diff := cmp.Diff(want, parts); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
		if got := parts[0].String(); got != "namespace a, shards one" {
			t.Errorf("the part is %q", got)
		}
		options := metav1.ListOptions{}
		if parts[0].Options(&options); options.ShardSelector != "" {
			t.Errorf("the options have the selector %q: children would be selected by their own uid", options.ShardSelector)
		}
		err := objects.Select(t.Context(), scope.Selection{ShardSelector: strings.Repeat("x", 1<<16+1)})
		if err == nil || !strings.Contains(err.Error(), "the limit is 65536") {
			t.Errorf("a long selector: %v", err)
		}
	})
}
