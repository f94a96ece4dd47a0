package scope_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// Proves SC1, SC3 and SC4.
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

// TestSelectors tests that new selectors cause at most one update of an object.
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

// A namespace that may not be listed is named, does not stop the others, and is shown when it may
// be listed.
//
// Proves SC2.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		h := handle(t, objects, j)
		s.put("a", "one", "x")
		s.put("b", "one", "x")
		s.forbid("b", true)
		s.forbid("d", true)
		began := time.Now()
		err := objects.Select(t.Context(), in("b", "d"))
		if !apierrors.IsForbidden(err) || objects.HasSynced() || h.HasSynced() {
			t.Errorf("Select = %v, synced %t, handler %t: want a forbidden, and none, because nothing is shown", err, objects.HasSynced(), h.HasSynced())
		}
		err = objects.Select(t.Context(), in("a", "b", "c"))
		if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "scope: select: 1 of 3 parts are not shown: namespace b: ") {
			t.Errorf("Select = %v, want a forbidden that names b", err)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("Select waited for %v, but a rejected list needs no second attempt", waited)
		}
		wantEvents(t, j, "add a/one 11")
		if !objects.HasSynced() || !h.HasSynced() {
			t.Error("not synced, but all other namespaces are shown")
		}
		s.put("c", "one", "y")
		wantEvents(t, j, "add c/one 13")
		s.forbid("b", false)
		time.Sleep(2 * time.Minute) // more than client-go's longest pause
		wantEvents(t, j, "add b/one 12")
		s.put("b", "one", "y")
		wantEvents(t, j, "update b/one 14")
		if diff := cmp.Diff(s.selected(in("a", "b", "c")), listed(objects.GetStore())); diff != "" {
			t.Errorf("the lister (-want +got):\n%s", diff)
		}
		if len(s.watches) != 3 {
			t.Errorf("%d watches are open, want 3: d is closed", len(s.watches))
		}
	})
}

// A namespace whose new selector fails keeps its old one. All namespaces stay until each of those
// that replace them can be shown.
//
// Proves SC2.
func TestReplacedStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		handle(t, objects, j)
		for _, n := range []string{"a", "b"} {
			s.put(n, "x", "x") // 11, 13
			s.put(n, "y", "y") // 12, 14
		}
		must(t, objects.Select(t.Context(), in("a", "b")))
		wantEvents(t, j, "add a/x 11", "add a/y 12", "add b/x 13", "add b/y 14")
		s.forbid("a", true)
		only := func(namespaces ...string) scope.Selection {
			return scope.Selection{Namespaces: namespaces, LabelSelector: "app=y"}
		}
		if err := objects.Select(t.Context(), only("a", "b")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), ": namespace a, labels app=y: ") {
			t.Errorf("Select = %v, want a forbidden that names a", err)
		}
		wantEvents(t, j, "delete b/x 13")
		s.put("a", "x", "z")
		wantEvents(t, j, "update a/x 15")
		s.forbid("a", false)
		time.Sleep(2 * time.Minute)
		wantEvents(t, j, "delete a/x 15")

		must(t, objects.Select(t.Context(), in("")))
		wantEvents(t, j, "add a/x 15", "add b/x 13")
		s.forbid("a", true)
		if err := objects.Select(t.Context(), only("a", "b")); !apierrors.IsForbidden(err) {
			t.Errorf("Select = %v, want a forbidden", err)
		}
		s.put("b", "x", "z")
		wantEvents(t, j, "update b/x 16")
		must(t, objects.Select(t.Context(), only("b")))
		wantEvents(t, j, "delete a/x 15", "delete a/y 12", "delete b/x 16")
	})
}

// A Select whose context ends, and one whose lists fail without a rejection, leave the parts to be
// shown later. A later Select without them closes them.
//
// Proves SC2.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		j := newJournal()
		handle(t, objects, j)
		s.put("a", "one", "x")
		s.setDelay(func() time.Duration { return time.Minute })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := objects.Select(ctx, in("a"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no list or watch has failed or is complete") || objects.HasSynced() {
			t.Errorf("Select = %v, synced %t, want a deadline exceeded, and not synced", err, objects.HasSynced())
		}
		time.Sleep(2 * time.Minute)
		wantEvents(t, j, "add a/one 11")
		if !objects.HasSynced() {
			t.Error("not synced, but the only namespace is shown")
		}
		s.setDelay(nil)
		s.mu.Lock()
		s.broken = map[string]bool{"b": true}
		s.mu.Unlock()
		if err := objects.Select(t.Context(), in("a", "b")); err == nil || !strings.Contains(err.Error(), "namespace b: failed to list *v1.ConfigMap: broken") {
			t.Errorf("Select = %v, want the error of the list of b", err)
		}
		s.mu.Lock()
		got := s.lists[scope.Part{Namespace: "b"}]
		s.mu.Unlock()
		if got != 3 {
			t.Errorf("Select returned after %d lists of b, want 3", got)
		}
		must(t, objects.Select(t.Context(), in("a")))
		synctest.Wait()
		lists := s.lists[scope.Part{Namespace: "b"}]
		time.Sleep(10 * time.Minute)
		if got := s.lists[scope.Part{Namespace: "b"}]; got != lists {
			t.Errorf("b was listed %d times after the Select without it", got-lists)
		}
		wantEvents(t, j)
	})
}

// unindexed is an informer that rejects indexers.
type unindexed struct{ cache.SharedIndexInformer }

func (unindexed) AddIndexers(cache.Indexers) error { return errors.New("not yet") }

// If the function of New fails, or returns an informer that rejects the indexers, when a late part
// is listed again, the function is called again, the log has the error once, and a Select returns
// the error. The events of the replaced part go on.
//
// Proves SC2.
func TestLateOpens(t *testing.T) {
	for name, fail := range map[string]func(cache.SharedIndexInformer) (cache.SharedIndexInformer, error){
		"New":      func(cache.SharedIndexInformer) (cache.SharedIndexInformer, error) { return nil, errors.New("not yet") },
		"indexers": func(i cache.SharedIndexInformer) (cache.SharedIndexInformer, error) { return unindexed{i}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				opened := 0
				objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
					if p.LabelSelector == "" {
						return s.informer(p)
					}
					i, err := s.informerOf(p, 3*time.Minute)
					if opened++; opened > 1 && opened < 10 {
						return fail(i)
					}
					return i, err
				})
				must(t, objects.AddIndexers(cache.Indexers{"none": func(any) ([]string, error) { return nil, nil }}))
				logs := testlog.New()
				stop := run(t, logs.Context(t.Context()), objects)
				j := newJournal()
				handle(t, objects, j)
				s.put("a", "one", "x")
				s.put("a", "two", "y")
				must(t, objects.Select(t.Context(), in("a")))
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := objects.Select(ctx, labeled("x")) // is opened again after the list of 3 minutes
				if err == nil || !strings.HasPrefix(err.Error(), "scope: select: 1 of 2 parts are not shown: namespace a, labels app=x: ") || !strings.HasSuffix(err.Error(), "not yet") {
					t.Errorf("Select = %v, want the error of New", err)
				}
				s.put("a", "two", "z")
				wantEvents(t, j, "add a/one 11", "add a/two 12", "update a/two 13")
				time.Sleep(10 * time.Minute)
				wantEvents(t, j, "delete a/two 13")
				if got := logs.Find("A late namespace cannot be listed again"); len(got) != 1 || opened != 10 {
					t.Errorf("opened %d times, log: %v", opened, got)
				}
				stop()
			})
		})
	}
}

// TestShardSelector: the informers of the parts get the selector of the shards, which the
// options do not contain, and another selector is another part.
func TestShardSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		var parts []scope.Part
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			parts = append(parts, p)
			return s.informer(p)
		})
		stop := run(t, quiet(t), objects)
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
