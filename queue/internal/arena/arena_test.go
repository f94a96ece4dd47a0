package arena

import (
	"math/rand/v2"
	"testing"
)

type entry struct{ value int }

// TestArena compares the arena with a map, while it grows and shrinks: refs are
// unique, entries are zero when added, and neither keys nor entries move.
func TestArena(t *testing.T) {
	const most = 20 * blockSize * MaxEmpty
	a := New[int, entry]()
	type held struct {
		key int
		e   *entry
	}
	want := map[Ref]held{}
	var refs []Ref
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{most, 100, most / 3, 0, most / 2, 0} {
		for len(refs) != size {
			if grows := len(refs) < size; grows == (rng.IntN(4) > 0) || len(refs) == 0 {
				key := rng.Int()
				r := a.Add(key)
				if _, used := want[r]; used || r == 0 {
					t.Fatalf("Add returned %d, which is in use", r)
				}
				e := a.At(r)
				if *e != (entry{}) {
					t.Fatalf("the entry of a new key is %+v", *e)
				}
				e.value = key
				want[r] = held{key, e}
				refs = append(refs, r)
				continue
			}
			i := rng.IntN(len(refs))
			r := refs[i]
			refs[i] = refs[len(refs)-1]
			refs = refs[:len(refs)-1]
			a.Remove(r)
			delete(want, r)
		}
		for r, h := range want {
			if got := a.Key(r); got != h.key || a.At(r) != h.e || h.e.value != h.key {
				t.Fatalf("ref %d: got key %d and entry %+v, want %d", r, got, *a.At(r), h.key)
			}
		}
		if *a.At(0) != (entry{}) || a.Key(0) != 0 {
			t.Errorf("ref 0 has key %d and entry %+v", a.Key(0), *a.At(0))
		}
	}
	blocks := 0
	for i, b := range a.Blocks {
		if (b == nil) != (a.keys[i] == nil) || (b == nil) != (a.links[i] == nil) {
			t.Errorf("block %d is freed in part", i)
		}
		if b != nil {
			blocks++
		}
	}
	if blocks != MaxEmpty+1 {
		t.Errorf("an empty arena has %d blocks, want %d and the block of ref 0", blocks, MaxEmpty)
	}
	for i, b := range a.keys {
		if b != nil && *b != [blockSize]int{} {
			t.Errorf("block %d holds removed keys: %v", i, *b)
		}
	}
}

// TestLink tests that each entry has a link of its own.
func TestLink(t *testing.T) {
	a := New[int, entry]()
	var refs []Ref
	for key := range 3 * blockSize {
		r := a.Add(key)
		*a.Link(r) = Link{Hash: uint32(key), Next: r}
		refs = append(refs, r)
	}
	for key, r := range refs {
		if got := *a.Link(r); got != (Link{Hash: uint32(key), Next: r}) {
			t.Errorf("the link of key %d is %+v", key, got)
		}
	}
}

// TestSteadyUse tests that adding and removing keys within the kept blocks does not
// allocate.
func TestSteadyUse(t *testing.T) {
	a := New[int, entry]()
	refs := make([]Ref, MaxEmpty*blockSize)
	run := func() {
		for i := range refs {
			refs[i] = a.Add(i)
		}
		for _, r := range refs {
			a.Remove(r)
		}
	}
	run()
	if got := testing.AllocsPerRun(10, run); got != 0 {
		t.Errorf("got %v allocations in a run, want 0", got)
	}
}
