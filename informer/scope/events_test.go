package scope_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
)

// A cache that replaces another is not shown while it is older.
//
// Proves SC4.
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

// labeled selects the objects of the namespace a with a label, or all.
func labeled(label string) scope.Selection {
	sel := in("a")
	if label != "all" {
		sel.LabelSelector = "app=" + label
	}
	return sel
}

// A list that takes long without an error holds the events of the part that it replaces for a
// limited time, also while a Select waits and with Follow. It is shown although it takes longer.
func TestHold(t *testing.T) {
	for name, choose := range map[string]func(*testing.T, context.Context, *scope.Informer) (to func(label string)){
		"a Select that has ended": func(_ *testing.T, ctx context.Context, objects *scope.Informer) func(string) {
			return func(label string) {
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				_ = objects.Select(short, labeled(label))
			}
		},
		"a Select that waits": func(_ *testing.T, ctx context.Context, objects *scope.Informer) func(string) {
			return func(label string) { go func() { _ = objects.Select(ctx, labeled(label)) }() }
		},
		"Follow": func(t *testing.T, ctx context.Context, objects *scope.Informer) func(string) {
			settings := newServer()
			list, err := settings.informer(scope.Part{Namespace: "settings"})
			must(t, err)
			must(t, objects.Follow(list, func() (scope.Selection, error) {
				c, ok, err := list.GetStore().GetByKey("settings/scope")
				if err != nil || !ok {
					return scope.Selection{}, errors.New("the ConfigMap settings/scope is absent")
				}
				return labeled(c.(*corev1.ConfigMap).Labels["app"]), nil
			}))
			go list.RunWithContext(ctx)
			return func(label string) { settings.put("settings", "scope", label) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(quiet(t))
				defer cancel()
				s := newServer()
				objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
					if p.LabelSelector != "" {
						return s.informerOf(p, 5*time.Minute)
					}
					return s.informer(p)
				})
				to := choose(t, ctx, objects)
				j := newJournal()
				handle(t, objects, j)
				stop := run(t, quiet(t), objects)
				s.put("a", "one", "x")
				s.put("a", "two", "y")
				to("all")
				time.Sleep(time.Minute)
				wantEvents(t, j, "add a/one 11", "add a/two 12")
				to("x")
				time.Sleep(time.Second) // until the list has begun
				s.put("a", "two", "z")
				time.Sleep(110 * time.Second)
				wantEvents(t, j)
				time.Sleep(20 * time.Second)
				wantEvents(t, j, "update a/two 13")
				s.put("a", "one", "y")
				wantEvents(t, j, "update a/one 14")
				time.Sleep(time.Hour)
				wantEvents(t, j, "delete a/one 14", "delete a/two 13")
				stop()
				cancel()
			})
		})
	}
}

// slow is an informer whose handlers get additions late.
type slow struct{ cache.SharedIndexInformer }

func (w slow) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	late := func(obj any) { time.Sleep(time.Second); h.OnAdd(obj, false) }
	return w.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: late, UpdateFunc: h.OnUpdate, DeleteFunc: h.OnDelete})
}

// An object whose addition is still on its way from the new cache is not reported as
// deleted.
func TestLateEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			w, err := s.informer(p)
			return slow{w}, err
		})
		stop := run(t, quiet(t), objects)
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

// Proves SC5.
func TestBadHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(s.informer)
		var text bytes.Buffer
		stop := run(t, logTo(t.Context(), &text), objects)
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
		must(t, shutDown(objects, blocked))
		stop()
		if got := text.String(); strings.Count(got, "A handler panicked") != 1 || !strings.Contains(got, `a\\nbug`) && !strings.Contains(got, `a\nbug`) {
			t.Errorf("log: %s", got)
		}
	})
}

// A handler that is removed before the Informer runs has ended, and is never called.
func TestRemovedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a", "one", "x")
		objects := scope.New(s.informer)
		j := newJournal()
		removed := handle(t, objects, j)
		must(t, shutDown(objects, removed))
		must(t, objects.RemoveEventHandler(removed)) // again
		stop := run(t, quiet(t), objects)
		must(t, objects.Select(t.Context(), in("a")))
		wantEvents(t, j)
		stop()
	})
}
