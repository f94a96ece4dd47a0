package scope_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
)

// TestStop tests that the end of the context ends a running Select and all handlers.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(s.informer)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); objects.RunWithContext(ctx) }()
		s.put("a", "one", "x")
		must(t, objects.Select(t.Context(), in("a")))
		release, running := make(chan struct{}), make(chan struct{})
		handle(t, objects, cache.ResourceEventHandlerFuncs{AddFunc: func(any) { close(running); <-release }})
		<-running
		s.setDelay(func() time.Duration { return time.Hour }) // of the list of b
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
		time.Sleep(time.Hour)            // until the list has ended
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
			objects := scope.New(newServer().informer)
			err := objects.Select(t.Context(), tc.selection)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || len(err.Error()) > 5000 {
				t.Errorf("Select = %v, want %s...", err, tc.want)
			}
		})
	}
	for name, objects := range map[string]*scope.Informer{
		"nil function": scope.New(nil),
		"nil informer": scope.New(func(scope.Part) (cache.SharedIndexInformer, error) { return nil, nil }),
		"error":        scope.New(func(scope.Part) (cache.SharedIndexInformer, error) { return nil, errors.New("nil: not a kind") }),
	} {
		if err := objects.Select(t.Context(), in("a")); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: Select = %v, want an error", name, err)
		}
		if err := objects.Select(t.Context(), in()); name != "nil function" && err != nil {
			t.Errorf("%s: Select = %v, want none for no namespace", name, err)
		}
	}
	objects := scope.New(newServer().informer)
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

// The options of a part have both of its selectors.
func TestOptions(t *testing.T) {
	options := metav1.ListOptions{Limit: 5, LabelSelector: "old"}
	scope.Part{Namespace: "a", LabelSelector: "app=x", FieldSelector: "metadata.name=one", ShardSelector: "s"}.Options(&options)
	want := metav1.ListOptions{Limit: 5, LabelSelector: "app=x", FieldSelector: "metadata.name=one"}
	if diff := cmp.Diff(want, options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

// An informer.Set runs a scope like any informer, and is ready after the first Select.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(s.informer)
		set := &informer.Set{}
		j := newJournal()
		set.Add("configmaps", objects, handle(t, objects, j))
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		s.put("a", "one", "x")
		synctest.Wait()
		if err := set.Ready(); !errors.Is(err, informer.ErrNotSynced) {
			t.Errorf("Ready = %v before Select, want ErrNotSynced", err)
		} else if !strings.Contains(err.Error(), "scope: no selection was made: call Select or Follow") {
			t.Errorf("Ready = %v before Select, want the reason", err)
		}
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11")
		must(t, set.Ready())
		if err := objects.SetWatchErrorHandlerWithContext(nil); err == nil {
			t.Error("the handler of watch errors was set after the start")
		}
		cancel()
		must(t, <-done)
	})
}

// A Select of nothing, before anything runs, makes the Informer synced: a controller that waits
// for it can begin, and select more.
func TestNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		objects := scope.New(s.informer)
		j := newJournal()
		h := handle(t, objects, j)
		must(t, objects.Select(t.Context(), scope.Selection{}))
		stop := run(t, quiet(t), objects)
		synctest.Wait()
		if !objects.HasSynced() || !h.HasSynced() || len(objects.GetStore().List()) > 0 {
			t.Errorf("synced %v, handler %v, objects %v", objects.HasSynced(), h.HasSynced(), objects.GetStore().List())
		}
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j, "add a/one 11")
		stop()
	})
}

// Until informer.Set.Served returns, a part whose list fails is no failure: the selection waits for it.
func TestServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			longer := time.Duration(0)
			if p.Namespace == "b" {
				longer = 10 * time.Second
			}
			return s.informerOf(p, longer)
		})
		served := make(chan struct{})
		set := &informer.Set{Timeout: time.Hour, Served: func(context.Context) error { <-served; return nil }}
		set.Add("configmaps", objects)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done, selected := make(chan error, 1), make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		for _, n := range []string{"a", "b"} {
			s.put(n, "one", "x")
			s.forbid(n, true)
		}
		go func() { selected <- objects.Select(t.Context(), in("a", "b")) }()
		time.Sleep(5 * time.Minute)
		select {
		case err := <-selected:
			t.Fatalf("Select = %v before the end of Served", err)
		default:
		}
		for _, n := range []string{"a", "b"} {
			s.forbid(n, false)
		}
		close(served)
		<-objects.HasSyncedChecker().Done()
		if got := objects.GetStore().ListKeys(); len(got) != 2 {
			t.Errorf("synced with %q, want both parts", got)
		}
		must(t, <-selected)
		cancel()
		must(t, <-done)
	})
}
