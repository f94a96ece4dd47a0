package scope_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
)

// A namespace appears in both informers at once, and only when both can show it.
//
// Proves SC7.
func TestWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parents, children := newServer(), newServer()
		objects := scope.New(parents.informer)
		others := objects.With(children.informer)
		seen := make(chan int, 10)
		j, k := newJournal(), newJournal()
		handle(t, objects, j)
		handle(t, others, k)
		handle(t, objects, cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			found, err := others.GetIndexer().ByIndex(cache.NamespaceIndex, obj.(*corev1.ConfigMap).Namespace)
			if err != nil {
				t.Error(err)
			}
			seen <- len(found)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		// Not a: the Informers would list it when they run, before its objects are put.
		if err := others.Select(ctx, in("c")); err == nil || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("Select = %v before the Informers run, want the cure", err)
		}
		stop := run(t, quiet(t), objects, others)
		for _, n := range []string{"a", "b"} {
			parents.put(n, "parent", "x")
			children.put(n, "one", "x")
			children.put(n, "two", "x")
		}
		children.setDelay(func() time.Duration { return 10 * time.Second })
		children.forbid("b", true)
		if err := objects.Select(t.Context(), in("a", "b")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "1 of 2 parts are not shown: namespace b: ") {
			t.Errorf("Select = %v, want a forbidden that names b", err)
		}
		if got := <-seen; got != 2 {
			t.Errorf("the handler of a parent found %d children, want 2", got)
		}
		wantEvents(t, j, "add a/parent 11")
		wantEvents(t, k, "add a/one 11", "add a/two 12")
		if !objects.HasSynced() || !others.HasSynced() {
			t.Errorf("synced: %t, %t", objects.HasSynced(), others.HasSynced())
		}
		children.forbid("b", false)
		time.Sleep(2 * time.Minute)
		if got := <-seen; got != 2 {
			t.Errorf("the handler of a parent found %d children, want 2", got)
		}
		wantEvents(t, j, "add b/parent 12")
		wantEvents(t, k, "add b/one 13", "add b/two 14")
		must(t, others.Select(t.Context(), in("b")))
		wantEvents(t, j, "delete a/parent 11")
		wantEvents(t, k, "delete a/one 11", "delete a/two 12")
		late := objects.With(children.informer)
		set := &informer.Set{Timeout: time.Second}
		set.Add("late", late)
		if err := set.Run(quiet(t)); err == nil || !strings.Contains(err.Error(), "With was called after Select") {
			t.Errorf("Run = %v with a late With, want the cure", err)
		}
		if got := len(objects.GetStore().List()) + len(others.GetStore().List()); got != 3 {
			t.Errorf("after a late With the caches have %d objects, want 3", got)
		}
		if err := objects.Select(t.Context(), in("a")); err == nil || err.Error() != "scope: With was called after Select: call it before" {
			t.Errorf("Select = %v after a late With", err)
		}
		stop()
	})
}

// A handler that is added while objects change first gets the shown objects as the initial list,
// is synced after them, and gets nothing after its end.
func TestHandlersAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		s.put("a", "one", "x")
		s.put("b", "one", "x")
		must(t, objects.Select(t.Context(), in("a", "b")))
		for range 20 {
			initial, later := 0, 0
			release := make(chan struct{})
			h := handle(t, objects, cache.ResourceEventHandlerDetailedFuncs{
				AddFunc: func(_ any, isInInitialList bool) {
					<-release
					if isInInitialList {
						initial++
					} else {
						later++
					}
				},
				UpdateFunc: func(any, any) { later++ },
			})
			s.put("a", "one", "y")
			synctest.Wait()
			if h.HasSynced() {
				t.Error("the handler is synced before it got the objects")
			}
			close(release)
			synctest.Wait()
			if !h.HasSynced() || initial != 2 || later != 1 {
				t.Errorf("synced %t, %d initial events, %d others, want 2 and 1", h.HasSynced(), initial, later)
			}
			must(t, shutDown(objects, h))
			s.put("a", "one", "x")
			synctest.Wait()
			if initial+later != 3 {
				t.Error("the handler got an event after its end")
			}
		}
	})
}
