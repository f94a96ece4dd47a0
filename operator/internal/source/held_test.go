package source

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/malformed"
)

// TestHeld: the number of objects is exact, and their bytes follow the sizes of the last few
// thousand events.
func TestHeld(t *testing.T) {
	calls := 0
	s := &Held{next: cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { calls++ },
		UpdateFunc: func(any, any) { calls++ },
		DeleteFunc: func(any) { calls++ },
	}}
	size := func(kib int) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{"key": strings.Repeat("x", kib<<10)}}
	}
	check := func(when string, objects, low, high int64) {
		t.Helper()
		if n, bytes := s.Size(); n != objects || bytes < low<<10 || bytes > high<<10 {
			t.Errorf("%s: %d objects, %d KiB, want %d, from %d to %d KiB", when, n, bytes>>10, objects, low, high)
		}
	}
	check("at first", 0, 0, 0)
	s.OnAdd(size(4), true)
	check("after one", 1, 4, 5)
	for range 9999 {
		s.OnAdd(size(1), true)
	}
	check("after the first list", 10_000, 10_000, 20_000)
	for range 64 * 64 * 5 {
		s.OnUpdate(size(1), size(3))
	}
	check("when they have grown", 10_000, 29_000, 39_000)
	s.OnDelete(cache.DeletedFinalStateUnknown{Obj: &malformed.Object{}}) // of which there was no event
	check("after a malformed object", 10_000, 29_000, 39_000)
	for range 9999 {
		s.OnDelete(size(3))
	}
	s.OnDelete(cache.DeletedFinalStateUnknown{Obj: size(3)})
	check("at last", 0, 0, 0)
	if want := 20_001 + 64*64*5; calls != want {
		t.Errorf("the handler got %d events, want %d", calls, want)
	}
}
