package reconcile

import (
	"reflect"
	"runtime"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestGuardMemory: the guard forgets keys, but no bucket that matters, and uses their memory
// again.
//
// Proves R16.
func TestGuardMemory(t *testing.T) {
	var g guard[int]
	most := 0
	for n := range 5 * guardKeys { // far more than it remembers, at once
		if wait, _, _ := g.take(n, 0); wait > 0 {
			t.Fatalf("key %d waits for %v", n, wait)
		}
		most = max(most, len(g.young)+len(g.old))
	}
	if most > 2*guardKeys {
		t.Errorf("the guard remembers %d keys, want at most %d", most, 2*guardKeys)
	}
	spare := reflect.ValueOf(g.old).Pointer()
	for n := 0; reflect.ValueOf(g.young).Pointer() != spare; n++ {
		if g.take(5*guardKeys+n, 0); n > guardKeys {
			t.Fatal("the guard did not use the memory of the forgotten keys again")
		}
	}
	g.take(-1, guardFull)
	g.take(-2, 2*guardFull)
	if got := len(g.young) + len(g.old); got != 2 {
		t.Errorf("the guard remembers %d keys, of which all but two have full buckets", got)
	}
}

// TestGuardAtItsEdges: the tokens of a bucket, one by one.
//
// Proves R16.
func TestGuardAtItsEdges(t *testing.T) {
	var g guard[string]
	take := func(now, wait time.Duration, held bool) {
		t.Helper()
		if got, h, _ := g.take("a", now); got != wait || h != held {
			t.Errorf("after %v: wait %v, held %t, want %v, %t", now, got, h, wait, held)
		}
	}
	for range guardBurst {
		take(time.Hour, 0, false)
	}
	take(time.Hour, guardInterval, true)
	take(time.Hour+1, guardInterval-1, false) // still the same wait
	take(time.Hour+guardInterval, 0, false)
	take(time.Hour+guardInterval, guardInterval, true)
	for n := range guardBurst { // the map turns in between
		take(time.Hour+time.Duration(n+2)*guardInterval, 0, false)
	}
	later := time.Hour + (guardBurst+1)*guardInterval
	take(later, guardInterval, true)
	for range guardBurst {
		take(later+guardFull, 0, false)
	}
	take(later+guardFull, guardInterval, true)
}

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
	var g guard[types.NamespacedName]
	var events triggers[types.NamespacedName]
	for n := range keys {
		events.note(trigger{source: "pods", kind: "add"}, name(n))
	}
	events.begin()
	for n := range keys {
		why := events.take(name(n))
		g.take(name(n), time.Duration(n))
		events.called(why)
		if len(events.keys) != keys-n-1 || events.take(name(n)).mask != 0 {
			t.Fatalf("%d keys are left after the call of %d", len(events.keys), n+1)
		}
	}
	if got := (heap() - before) / keys; got > most {
		t.Errorf("%d bytes are kept for each of %d keys, want at most %d", got, keys, most)
	}
	if events.uncalled() != 0 {
		t.Errorf("%d keys are awaited, want 0", events.uncalled())
	}
	runtime.KeepAlive(&g)
	runtime.KeepAlive(&events)
}
