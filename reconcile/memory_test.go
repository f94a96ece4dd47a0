package reconcile_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/reconcile/internal/hot"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// TestMemoryAfterABurst: after a first list, the loop keeps little for each key that ran.
func TestMemoryAfterABurst(t *testing.T) {
	const keys, most = 20_000, 60 // bytes for each key
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	name := func(n int) types.NamespacedName {
		return types.NamespacedName{Namespace: "default", Name: strconv.Itoa(n)}
	}
	before := heap()
	var g hot.Guard[types.NamespacedName]
	var events triggers.Memory[types.NamespacedName]
	for n := range keys {
		events.Note(triggers.Trigger{Source: "pods", Kind: "add"}, name(n))
	}
	events.Begin()
	for n := range keys {
		why := events.Take(name(n))
		g.Take(name(n), time.Duration(n))
		events.Called(why)
		if left := events.Uncalled(); left != keys-n-1 || events.Take(name(n)).Mask != 0 {
			t.Fatalf("%d keys are left after the call of %d", left, n+1)
		}
	}
	if got := (heap() - before) / keys; got > most {
		t.Errorf("%d bytes are kept for each of %d keys, want at most %d", got, keys, most)
	}
	if events.Uncalled() != 0 {
		t.Errorf("%d keys are awaited, want 0", events.Uncalled())
	}
	runtime.KeepAlive(&g)
	runtime.KeepAlive(&events)
}
