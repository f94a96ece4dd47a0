package index

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/controllerkit/controllerkit/queue/internal/arena"
)

// entry is what a queue stores for a key, as far as the index is concerned.
type entry struct{ value int }

// TestIndex compares the index with a map, while it grows and shrinks. With few
// hashes most keys have no slot, or the hash of another key.
func TestIndex(t *testing.T) {
	const most = 20_000
	for name, hash := range map[string]func(x *Index[int, entry], key int) uint32{
		"its own hashes":         (*Index[int, entry]).Hash,
		"few hashes":             func(_ *Index[int, entry], key int) uint32 { return uint32(key%7)<<3 | used },
		"ten keys for each hash": func(_ *Index[int, entry], key int) uint32 { return uint32(key/10)*2654435761 | used },
		"the same low bits":      func(_ *Index[int, entry], key int) uint32 { return uint32(key)<<12 | used },
	} {
		t.Run(name, func(t *testing.T) {
			n := most
			if name == "few hashes" || name == "the same low bits" {
				n /= 40 // its time is quadratic
			}
			x, want := New[int, entry](), map[int]arena.Ref{}
			find := func(key int) (arena.Ref, Place) {
				r, at := x.Find(key, hash(&x, key))
				if r != want[key] {
					t.Fatalf("find(%d): got %d, want %d, of %d keys", key, r, want[key], len(want))
				}
				if r != 0 && x.Key(r) != key {
					t.Fatalf("find(%d): got the entry of %d", key, x.Key(r))
				}
				return r, at
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for _, grow := range []bool{true, false, true, false} {
				for len(want) > 0 && !grow || len(want) < n && grow {
					key := rng.IntN(2 * n)
					r, at := find(key)
					// Some keys are deleted while it grows, and some are added while it shrinks.
					switch likely := rng.IntN(4) > 0 || !grow && len(want) < n/2+n/4; {
					case r == 0 && grow == likely:
						r, e := x.Insert(key, hash(&x, key), at)
						if *e != (entry{}) {
							t.Fatalf("insert(%d): got an entry in use: %+v", key, *e)
						}
						e.value = key
						want[key] = r
					case r != 0 && grow != likely:
						x.Delete(r, at)
						delete(want, key)
					}
				}
				if x.Len() != len(want) {
					t.Errorf("got %d keys, want %d", x.Len(), len(want))
				}
				for key := range 2 * n {
					if r, _ := find(key); r != 0 && x.At(r).value != key {
						t.Errorf("key %d has the entry of %d", key, x.At(r).value)
					}
				}
				var all []int
				for r := range x.All {
					all = append(all, x.Key(r))
				}
				slices.Sort(all)
				if len(slices.Compact(all)) != len(want) {
					t.Errorf("all: got %d different keys, want %d", len(slices.Compact(all)), len(want))
				}
			}
			blocks := 0
			for _, b := range x.Blocks {
				if b != nil {
					blocks++
				}
			}
			if blocks > arena.MaxEmpty+1 || x.size > minSize {
				t.Errorf("without keys: got %d blocks and %d buckets, want %d and %d at most", blocks, x.size, arena.MaxEmpty+1, minSize)
			}
		})
	}
}

// TestGrowsAfterShrinking tests an index that grows again before it has freed all
// buckets of a page, so that it uses a bucket twice.
func TestGrowsAfterShrinking(t *testing.T) {
	const most, least = 100 * minSize, 61 * minSize / 7
	for name, hash := range map[string]func(x *Index[int, entry], key int) uint32{
		"its own hashes":         (*Index[int, entry]).Hash,
		"ten keys for each hash": func(_ *Index[int, entry], key int) uint32 { return uint32(key/10)*2654435761 | used },
	} {
		t.Run(name, func(t *testing.T) {
			x := New[int, entry]()
			first, next := 0, 0 // the index has the keys in between
			for _, size := range []int{most, least, most, least - 100, most} {
				for ; x.Len() < size; next++ {
					h := hash(&x, next)
					r, at := x.Find(next, h)
					if r != 0 {
						t.Fatalf("found key %d before it was added", next)
					}
					_, e := x.Insert(next, h, at)
					e.value = next
				}
				for ; x.Len() > size; first++ {
					r, at := x.Find(first, hash(&x, first))
					if r == 0 {
						t.Fatalf("did not find key %d", first)
					}
					x.Delete(r, at)
				}
				if x.size%pageSize == 0 {
					t.Fatalf("%d keys fill whole pages: this tests nothing", size)
				}
				for key := first; key < next; key++ {
					if r, _ := x.Find(key, hash(&x, key)); r == 0 || x.Key(r) != key || x.At(r).value != key {
						t.Fatalf("of %d keys, found key %d at %d", size, key, r)
					}
				}
				n := 0
				for range x.All {
					n++
				}
				if n != size {
					t.Fatalf("All has %d keys, want %d", n, size)
				}
			}
		})
	}
}

// TestAllStops tests that All ends when yield returns false, both in the slots and
// in the chain of a bucket.
func TestAllStops(t *testing.T) {
	const keys = 3 * slots // all in one bucket
	x := New[int, entry]()
	for key := range keys {
		hash := uint32(used)
		_, at := x.Find(key, hash)
		x.Insert(key, hash, at)
	}
	for stop := 1; stop <= keys; stop++ {
		n := 0
		for range x.All {
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("All called yield %d times, want %d", n, stop)
		}
	}
}

// TestMinimum tests that an index in steady use keeps its buckets, and that few keys are in
// chains.
func TestMinimum(t *testing.T) {
	x := New[int, entry]()
	for range 3 {
		for key := range minSize * load {
			hash := x.Hash(key)
			_, at := x.Find(key, hash)
			x.Insert(key, hash, at)
		}
		if x.size != minSize {
			t.Errorf("%d keys have %d buckets, want %d", x.Len(), x.size, minSize)
		}
		inSlots := 0
		for i := range x.size {
			inSlots += int(x.number(i).n)
		}
		if inSlots < x.Len()*9/10 {
			t.Errorf("%d of %d keys have a slot", inSlots, x.Len())
		}
		for key := range minSize * load {
			r, at := x.Find(key, x.Hash(key))
			x.Delete(r, at)
		}
		if x.size != minSize {
			t.Errorf("no keys have %d buckets, want %d", x.size, minSize)
		}
	}
}
