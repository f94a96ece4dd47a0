package scope_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// Proves SC6.
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

// A namespace that is selected in a leader's term can be older than the writes of the last leader.
func TestVersionOfNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		writes := consistency.New(consistency.Config{})
		must(t, writes.AddInformer(corev1.Resource("configmaps"), objects))
		check := func(want bool) {
			t.Helper()
			synctest.Wait()
			ctx := calls.WithSince(t.Context(), "13")
			if got := consistency.LiveRead(writes.Begin(ctx, types.NamespacedName{Name: "key"})); got != want {
				t.Errorf("LiveRead = %t, want %t", got, want)
			}
		}
		set := func(version int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.version = version
		}
		must(t, objects.Select(t.Context(), in("a")))
		check(true)
		set(13)
		s.bookmark()
		check(false)
		set(12)
		must(t, objects.Select(t.Context(), in("a", "b"))) // an old list
		check(true)
		set(13)
		s.bookmark()
		check(false)
	})
}

// counting is an informer that counts the reads of its store's version.
type counting struct {
	cache.SharedIndexInformer
	reads *atomic.Int64
}

func (c counting) GetStore() cache.Store {
	return countingStore{c.SharedIndexInformer.GetStore(), c.reads}
}

type countingStore struct {
	cache.Store
	reads *atomic.Int64
}

func (c countingStore) LastStoreSyncResourceVersion() string {
	c.reads.Add(1)
	return c.Store.LastStoreSyncResourceVersion()
}

// The calls of a leader do not read the version of each namespace again, until the selection changes.
func TestVersionOfNewLeaderIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.version = 13
		var reads atomic.Int64
		objects := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			i, err := s.informer(p)
			return counting{i, &reads}, err
		})
		run(t, quiet(t), objects)
		writes := consistency.New(consistency.Config{})
		must(t, writes.AddInformer(corev1.Resource("configmaps"), objects))
		var names []string
		for n := range 20 {
			names = append(names, fmt.Sprint("n", n))
			must(t, objects.Select(t.Context(), in(names...)))
			synctest.Wait()
			reads.Store(0)
			ctx := calls.WithSince(t.Context(), "13")
			for range 100 {
				if consistency.LiveRead(writes.Begin(ctx, types.NamespacedName{Name: "key"})) {
					t.Fatalf("%d namespaces: LiveRead is true", len(names))
				}
			}
			if got := int(reads.Load()); got != len(names) {
				t.Errorf("%d namespaces: %d reads of a version for 100 calls, want one for each namespace", len(names), got)
			}
		}
	})
}

// A selection without a namespace has no cache that can be older than the writes of the last leader. One that is
// selected later can be.
func TestNoVersionOfNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		writes := consistency.New(consistency.Config{})
		must(t, writes.AddInformer(corev1.Resource("configmaps"), objects))
		check := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			ctx := calls.WithSince(t.Context(), "13")
			if got := consistency.LiveRead(writes.Begin(ctx, types.NamespacedName{Name: "key"})); got != want {
				t.Errorf("%s: LiveRead = %t, want %t", when, got, want)
			}
		}
		set := func(version int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.version = version
		}
		check("before the first selection", true)
		must(t, objects.Select(t.Context(), in()))
		check("nothing is selected", false)
		must(t, objects.Select(t.Context(), in("a"))) // at 10
		check("an old cache is selected", true)
		set(13)
		s.bookmark()
		check("it has caught up", false)
		must(t, objects.Select(t.Context(), in()))
		check("nothing is selected again", false)
		set(12)
		must(t, objects.Select(t.Context(), in("b"))) // an old list
		check("another old cache is selected", true)
		set(13)
		s.bookmark()
		check("it has caught up, too", false)
		must(t, objects.Select(t.Context(), in()))
		s.forbid("c", true)
		if err := objects.Select(t.Context(), in("c")); err == nil {
			t.Error("Select of a namespace that cannot be listed returned nil: this test checks nothing")
		}
		check("a selected namespace cannot be listed yet", true)
	})
}

// versionOf returns the version of a namespace, as package consistency reads it.
func versionOf(objects *scope.Informer, namespace string) (version string, ok bool) {
	return objects.GetStore().(interface {
		LastStoreSyncResourceVersionOf(string) (string, bool)
	}).LastStoreSyncResourceVersionOf(namespace)
}

// The cache has a version of each selected namespace, and of no other one.
func TestVersionOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		want := func(namespace, version string) {
			t.Helper()
			synctest.Wait()
			if got, ok := versionOf(objects, namespace); got != version || ok != (version != "") {
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

// A change of the selectors does not lower the version of a namespace, which package consistency
// would take for a restore of etcd.
func TestVersionOfReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		want := func(version string) {
			t.Helper()
			synctest.Wait()
			if got, ok := versionOf(objects, "a"); got != version || !ok {
				t.Errorf("version %q, %v, want %q", got, ok, version)
			}
		}
		must(t, objects.Select(t.Context(), in("a")))
		only := func(label string) scope.Selection {
			return scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=" + label}
		}
		replace := func(label string) {
			s.setDelay(func() time.Duration { return time.Second })
			selected := make(chan error)
			go func() { selected <- objects.Select(t.Context(), only(label)) }()
			synctest.Wait() // the list has begun
			s.setDelay(nil)
			s.mu.Lock()
			s.stale = true
			s.mu.Unlock()
			s.put("a", "one", "z") // after the list's version, in the cache that is still shown
			s.bookmark()
			want(fmt.Sprint(s.version))
			must(t, <-selected)
		}
		replace("x")
		want("")
		s.bookmark()
		want("11")
		replace("y")
		want("")
		must(t, objects.Select(t.Context(), only("w"))) // its list is older, too
		want("")
		s.bookmark()
		want("12")
		s.mu.Lock()
		s.version = 11
		s.mu.Unlock()
		s.bookmark()
		want("11") // a restore of etcd is not hidden
	})
}

// A read of the old view cannot return a version above the floor of the new view.
//
// Proves SC6.
func TestVersionFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var objects *scope.Informer
		read := func() (versions [2]int) {
			of, _ := versionOf(objects, "a")
			return [2]int{number(objects.LastSyncResourceVersion()), number(of)}
		}
		var calls atomic.Int64
		seen := make(chan [2]int, 1)
		objects = scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			i, err := s.informer(p)
			if p.LabelSelector != "" {
				return i, err
			}
			return versioned{i, func() string {
				switch n := calls.Add(1); {
				case n == 3: // the last read of the floors: the event 20 follows it
					go func() { seen <- read() }()
					for range 1000 {
						runtime.Gosched()
					}
					fallthrough
				case n < 3: // the first one is the version of the held events
					return "10"
				}
				return "20"
			}}, err
		})
		run(t, quiet(t), objects)
		must(t, objects.Select(t.Context(), in("a")))
		must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{"a"}, LabelSelector: "app=x"}))
		before, after := <-seen, read()
		if calls.Load() < 3 || after != [2]int{10, 10} || before != after {
			t.Errorf("%d reads; during the Select: versions %v, after: %v", calls.Load(), before, after)
		}
	})
}

// versioned is an informer whose store has a version of the test.
type versioned struct {
	cache.SharedIndexInformer
	version func() string
}

func (v versioned) GetStore() cache.Store { return versionedStore{v.GetIndexer(), v.version} }

type versionedStore struct {
	cache.Store
	version func() string
}

func (v versionedStore) LastStoreSyncResourceVersion() string { return v.version() }
