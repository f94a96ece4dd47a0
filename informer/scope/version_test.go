package scope_test

import (
	"testing"
	"testing/synctest"
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
