package scope_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// followed is a scope that follows the labels of the ConfigMap settings/scope: app is a namespace,
// several with a dot between them.
func followed(t *testing.T, settings, s *server) (objects *scope.Informer, list cache.SharedIndexInformer) {
	t.Helper()
	list, err := settings.informer(scope.Part{Namespace: "settings"})
	must(t, err)
	objects = scope.New(s.informer)
	must(t, objects.Follow(list, func() (scope.Selection, error) {
		c, ok, err := list.GetStore().GetByKey("settings/scope")
		if err != nil || !ok {
			return scope.Selection{}, errors.Join(err, errors.New("the ConfigMap settings/scope is absent"))
		}
		label := c.(*corev1.ConfigMap).Labels["app"]
		if label == "panic" {
			panic("a bug")
		}
		return in(strings.Split(label, ".")...), nil
	}))
	return objects, list
}

// The selection follows the settings. If they are absent at the start, the Informer is not synced,
// and the Set has the reason. If they go away later, the selection stays.
//
// Proves SC8.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		objects, list := followed(t, settings, s)
		set := &informer.Set{Timeout: time.Hour}
		set.Add("settings", list)
		j := newJournal()
		set.Add("configmaps", objects, handle(t, objects, j))
		logs := testlog.New()
		ctx, cancel := context.WithCancel(logs.Context(t.Context()))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		for _, n := range all {
			s.put(n, "one", "x") // 11 to 14
		}
		time.Sleep(time.Minute)
		if err := set.Ready(); err == nil || !strings.Contains(err.Error(), `["configmaps"]: scope: no selection was made: the ConfigMap settings/scope is absent`) {
			t.Errorf("Ready = %v, want the reason", err)
		}
		s.forbid("b", true)
		settings.put("settings", "scope", "b")
		time.Sleep(time.Second)
		if err := set.Ready(); err == nil || !strings.Contains(err.Error(), "1 of 1 parts are not shown: namespace b: ") {
			t.Errorf("Ready = %v, want the reason", err)
		}
		settings.put("settings", "scope", "a.b")
		time.Sleep(time.Second)
		must(t, set.Ready())
		wantEvents(t, j, "add a/one 11")
		settings.put("settings", "other", "x") // selects the same
		settings.put("settings", "scope", "a.c")
		time.Sleep(time.Second)
		wantEvents(t, j, "add c/one 13")
		for _, label := range []string{"", "A", "panic"} { // "" deletes
			settings.put("settings", "scope", label)
			time.Sleep(time.Minute)
			wantEvents(t, j)
			must(t, set.Ready())
		}
		s.forbid("b", false)
		settings.put("settings", "scope", "b")
		time.Sleep(time.Second)
		wantEvents(t, j, "add b/one 12", "delete a/one 11", "delete c/one 13")
		if n := s.lists[scope.Part{Namespace: "a"}]; n != 1 {
			t.Errorf("a was listed %d times, want once", n)
		}
		cancel()
		must(t, <-done)
		for line, want := range map[string]int{
			"The selection stays as it was":                     4, // absent twice, not valid, panic
			"Some of the selected namespaces are not shown yet": 2,
			"The selected namespaces are shown":                 2,
		} {
			if got := logs.Find(line); len(got) != want {
				t.Errorf("%d lines %q, want %d: %v", len(got), line, want, got)
			}
		}
	})
}

// If the function of New fails, it is called again although the settings stay, and the log has the
// error once.
func TestFollowOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		list, err := settings.informer(scope.Part{Namespace: "settings"})
		must(t, err)
		failures := 3
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			if failures--; failures >= 0 {
				return nil, errors.New("not yet")
			}
			return s.informer(p)
		})
		must(t, objects.Follow(list, func() (scope.Selection, error) { return in("a"), nil }))
		s.put("a", "one", "x")
		logs := testlog.New()
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); list.RunWithContext(ctx) }()
		stop := run(t, logs.Context(quiet(t)), objects)
		time.Sleep(time.Minute)
		if got := objects.GetStore().ListKeys(); len(got) != 1 || failures >= 0 {
			t.Errorf("%d failures are left, and the cache has %q", failures, got)
		}
		if got := logs.Find("The selection stays as it was"); len(got) != 1 {
			t.Errorf("log: %v", got)
		}
		stop()
		cancel()
		<-ended
	})
}

// So it is if the informers of New do not take the indexers.
func TestFollowIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		list, err := settings.informer(scope.Part{Namespace: "settings"})
		must(t, err)
		var made atomic.Int64
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			inf, err := s.informer(p)
			if made.Add(1) <= 3 {
				inf = unindexed{inf}
			}
			return inf, err
		})
		must(t, objects.AddIndexers(cache.Indexers{"none": func(any) ([]string, error) { return nil, nil }}))
		must(t, objects.Follow(list, func() (scope.Selection, error) { return in("a"), nil }))
		s.put("a", "one", "x")
		logs := testlog.New()
		run(t, logs.Context(quiet(t)), objects)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); list.RunWithContext(ctx) }()
		time.Sleep(time.Minute)
		if got := objects.GetStore().ListKeys(); len(got) != 1 || made.Load() != 4 {
			t.Errorf("%d informers were made, and the cache has %q", made.Load(), got)
		}
		if got := logs.Find("The selection stays as it was"); len(got) != 1 {
			t.Errorf("log: %v", got)
		}
		if got := logs.Find("Some of the selected namespaces are not shown yet"); len(got) != 0 {
			t.Errorf("log: %v", got)
		}
		cancel()
		<-ended
	})
}

// While the lists of a selection run, the reason why the Informer is not synced names the parts, and
// their errors when they have some.
func TestUnsynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		settings.put("settings", "scope", "a.b")
		s.setDelay(func() time.Duration { return time.Minute })
		followed, list := followed(t, settings, s)
		selected := scope.New(s.informer)
		set := &informer.Set{Timeout: time.Hour}
		set.Add("settings", list)
		set.Add("followed", followed)
		set.Add("selected", selected)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		go func() { _ = selected.Select(ctx, in("a", "b")) }()
		want := func(text string) {
			t.Helper()
			err := set.Ready()
			if err == nil || strings.Count(err.Error(), text) != 2 || strings.Contains(err.Error(), "no selection was made") {
				t.Errorf("Ready = %v, want twice %q", err, text)
			}
		}
		time.Sleep(time.Second)
		want("scope: select: 2 of 2 parts are not shown: namespace a: no list or watch has failed or is complete: ")
		s.mu.Lock()
		s.broken = map[string]bool{"a": true, "b": true}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		want("scope: select: 2 of 2 parts are not shown: namespace a: failed to list *v1.ConfigMap: broken")
		cancel()
		must(t, <-done)
		time.Sleep(time.Hour) // until the lists have ended
	})
}

// A change of the settings does not wait for a namespace of the last ones.
//
// Proves SC8.
func TestFollowSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		objects, list := followed(t, settings, s)
		j := newJournal()
		handle(t, objects, j)
		settings.put("settings", "scope", "a")
		s.put("a", "one", "x")
		s.put("b", "one", "x")
		s.setDelay(func() time.Duration { return time.Hour })
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); list.RunWithContext(ctx) }()
		stop := run(t, quiet(t), objects)
		time.Sleep(time.Minute) // the list of a takes an hour
		s.setDelay(nil)
		settings.put("settings", "scope", "b")
		time.Sleep(time.Minute)
		wantEvents(t, j, "add b/one 12")
		stop()
		cancel()
		<-ended
		time.Sleep(time.Hour) // until the list has ended
	})
}

// Follow and Select exclude each other, and misuse is an error.
func TestFollowMisuse(t *testing.T) {
	settings, s := newServer(), newServer()
	objects, list := followed(t, settings, s)
	which := func() (scope.Selection, error) { return scope.Selection{}, nil }
	fresh := scope.New(s.informer)
	selected, chosen := scope.New(s.informer), scope.New(s.informer)
	must(t, selected.Select(t.Context(), in()))
	must(t, chosen.Select(t.Context(), in()))
	late := selected.With(s.informer)
	for want, err := range map[string]error{
		"Select was called after Follow":      objects.Select(t.Context(), in()),
		"Follow was called twice":             objects.Follow(list, which),
		"nil argument":                        fresh.Follow(nil, which),
		"pass an informer and a function":     fresh.Follow(list, nil),
		"an Informer of the selection itself": fresh.Follow(fresh.With(s.informer), which),
		"With was called after Select":        late.Follow(list, which),
		"New or With got a nil function":      scope.New(nil).Follow(list, which),
		"Follow was called after Select":      chosen.Follow(list, which),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "scope: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The reason of a misuse that comes after Follow stays: the settings cannot mend it.
func TestMisuseAfterFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings, s := newServer(), newServer()
		objects, list := followed(t, settings, s)
		objects.With(nil)
		set := &informer.Set{Timeout: time.Minute}
		set.Add("settings", list)
		set.Add("configmaps", objects)
		logs := testlog.New()
		if err := set.Run(logs.Context(t.Context())); err == nil || !strings.Contains(err.Error(), "New or With got a nil function") {
			t.Errorf("Run() = %v, want the misuse", err)
		}
	})
}
