package hot

import (
	"reflect"
	"testing"
	"time"
)

// TestGuardMemory: the guard forgets keys, but no bucket that matters, and uses their memory
// again.
//
// Proves R9.
func TestGuardMemory(t *testing.T) {
	var g Guard[int]
	most := 0
	for n := range 5 * maxKeys { // far more than it remembers, at once
		if wait, _, _ := g.Take(n, 0); wait > 0 {
			t.Fatalf("key %d waits for %v", n, wait)
		}
		most = max(most, len(g.young)+len(g.old))
	}
	if most > 2*maxKeys {
		t.Errorf("the guard remembers %d keys, want at most %d", most, 2*maxKeys)
	}
	spare := g.old
	for n := 0; reflect.ValueOf(g.young).Pointer() != reflect.ValueOf(spare).Pointer(); n++ {
		if g.Take(5*maxKeys+n, 0); n > maxKeys {
			t.Fatal("the guard did not use the memory of the forgotten keys again")
		}
	}
	g.Take(-1, full)
	g.Take(-2, 2*full)
	if got := len(g.young) + len(g.old); got != 2 {
		t.Errorf("the guard remembers %d keys, of which all but two have full buckets", got)
	}
}

// TestGuardAtItsEdges: the tokens of a bucket, one by one.
//
// Proves R9.
func TestGuardAtItsEdges(t *testing.T) {
	var g Guard[string]
	take := func(now, wait time.Duration, held bool) {
		t.Helper()
		if got, h, _ := g.Take("a", now); got != wait || h != held {
			t.Errorf("after %v: wait %v, held %t, want %v, %t", now, got, h, wait, held)
		}
	}
	for range Burst {
		take(time.Hour, 0, false)
	}
	take(time.Hour, Interval, true)
	take(time.Hour+1, Interval-1, false) // still the same wait
	take(time.Hour+Interval, 0, false)
	take(time.Hour+Interval, Interval, true)
	for n := range Burst {
		take(time.Hour+time.Duration(n+2)*Interval, 0, false)
	}
	later := time.Hour + (Burst+1)*Interval
	take(later, Interval, true)
	for range Burst {
		take(later+full, 0, false)
	}
	take(later+full, Interval, true)
}

// TestGuardTurns: a bucket that is not full stays when its map becomes old.
//
// Proves R9.
func TestGuardTurns(t *testing.T) {
	var g Guard[string]
	g.Take("b", 0)
	for range Burst {
		g.Take("a", full-1)
	}
	g.Take("c", full) // turns
	if len(g.young) != 1 {
		t.Fatalf("the map has not turned: %d young keys", len(g.young))
	}
	if wait, held, _ := g.Take("a", full); wait != Interval-1 || !held {
		t.Errorf("wait %v, held %t, want %v, true", wait, held, Interval-1)
	}
	if !g.Has("a", full) {
		t.Error("the key is not hot")
	}
	g.Take("d", 2*full) // turns again
	if !g.Has("a", full) {
		t.Error("the key of an old map is not hot")
	}
}

// TestKeys: a held key is hot until it has half of its tokens again. Keys lists at most 100.
func TestKeys(t *testing.T) {
	var g Guard[int]
	hot := func(now time.Duration) (n int) {
		for key := range g.Keys() {
			if g.Has(key, now) {
				n++
			}
		}
		return n
	}
	for key := range 2 * maxHot {
		for range Burst + 1 {
			g.Take(key, 0)
		}
	}
	if g.Has(-1, 0) || !g.Has(0, 0) || hot(0) != maxHot {
		t.Errorf("of %d held keys %d are hot, want %d", 2*maxHot, hot(0), maxHot)
	}
	if n := hot(full / 2); n != maxHot {
		t.Errorf("%d keys are hot with half of their tokens, want %d", n, maxHot)
	}
	if n := hot(full/2 + 1); n != 0 {
		t.Errorf("%d keys are hot with more than half of their tokens, want 0", n)
	}
	const late = full/2 + 1
	for range Burst + 1 {
		g.Take(-1, late)
	}
	if !g.Has(-1, late) || hot(late) != 1 {
		t.Errorf("%d keys are hot, want the one that was held since", hot(late))
	}
}
