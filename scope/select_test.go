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

	"github.com/controllerkit/controllerkit/scope"
)

// Proves SC1, SC3 and SC5.
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
