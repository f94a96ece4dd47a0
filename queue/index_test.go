package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestIndex compares the index with a map, while it grows and shrinks. With few
// hashes most keys find no slot, or have the hash of another one.
func TestIndex(t *testing.T) {
	const most = 20_000
	for name, hash := range map[string]func(x *index[int, entry], key int) uint32{
		"its own hashes":    (*index[int, entry]).hash,
		"few hashes":        func(_ *index[int, entry], key int) uint32 { return uint32(key%7)<<3 | used },
		"the same low bits": func(_ *index[int, entry], key int) uint32 { return uint32(key)<<12 | used },
	} {
		t.Run(name, func(t *testing.T) {
			n := most
			if name != "its own hashes" {
				n /= 40 // its time is quadratic
			}
			x, want := newIndex[int, entry](), map[int]ref{}
			find := func(key int) (ref, place) {
				r, at := x.find(key, hash(&x, key))
				if r != want[key] {
					t.Fatalf("find(%d): got %d, want %d, of %d keys", key, r, want[key], len(want))
				}
				if r != 0 && x.key(r) != key {
					t.Fatalf("find(%d): got the entry of %d", key, x.key(r))
				}
				return r, at
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for _, grow := range []bool{true, false, true, false} {
				for len(want) > 0 && !grow || len(want) < n && grow {
					key := rng.IntN(2 * n)
					r, at := find(key)
					// Some go while it grows, and some come while it shrinks, until it is small.
					switch likely := rng.IntN(4) > 0 || !grow && len(want) < n/2+n/4; {
					case r == 0 && grow == likely:
						r, e := x.insert(key, hash(&x, key), at)
						if *e != (entry{}) {
							t.Fatalf("insert(%d): got an entry in use: %+v", key, *e)
						}
						e.priority = key
						want[key] = r
					case r != 0 && grow != likely:
						x.delete(r, at)
						delete(want, key)
					}
				}
				if x.n != len(want) {
					t.Errorf("got %d keys, want %d", x.n, len(want))
				}
				for key := range 2 * n {
					if r, _ := find(key); r != 0 && x.at(r).priority != key {
						t.Errorf("key %d has the entry of %d", key, x.at(r).priority)
					}
				}
				var all []int
				for r := range x.all {
					all = append(all, x.key(r))
				}
				slices.Sort(all)
				if len(slices.Compact(all)) != len(want) {
					t.Errorf("all: got %d different keys, want %d", len(slices.Compact(all)), len(want))
				}
			}
			blocks := 0
			for _, b := range x.blocks {
				if b != nil {
					blocks++
				}
			}
			if blocks > maxEmpty+1 || x.size > minSize {
				t.Errorf("without keys: got %d blocks and %d buckets, want %d and %d at most", blocks, x.size, maxEmpty+1, minSize)
			}
		})
	}
}

// TestHeap compares the heap with a list that is sorted each time.
func TestHeap(t *testing.T) {
	type item struct {
		order int
		place int32
	}
	h := heap[*item]{
		less:  func(a, b *item) bool { return a.order < b.order },
		place: func(i *item) *int32 { return &i.place },
	}
	var want []*item
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20_000 {
		switch {
		case len(want) == 0 || rng.IntN(5) < 2 && n < 15_000:
			i := &item{order: rng.IntN(1000)*100_000 + n}
			want = append(want, i)
			h.push(i)
		case rng.IntN(2) == 0:
			i := want[rng.IntN(len(want))]
			i.order = rng.IntN(1000)*100_000 + n
			h.fix(i)
		default:
			i := rng.IntN(len(want))
			h.remove(want[i])
			if want[i].place != -1 {
				t.Fatalf("a removed item has place %d", want[i].place)
			}
			want = slices.Delete(want, i, i+1)
		}
		slices.SortFunc(want, func(a, b *item) int { return a.order - b.order })
		if n := min(len(want), 20); h.len() != len(want) || !slices.Equal(h.least(n), want[:n]) || n > 0 && h.first() != want[0] {
			t.Fatalf("the first of %d items: got %v, want %v", h.len(), h.least(n), want[:n])
		}
		for place, i := range h.items {
			if int(i.place) != place {
				t.Fatalf("item at %d has place %d", place, i.place)
			}
		}
	}
}

// TestGroups: groups without keys are kept up to a number, and the room of the
// others is used again.
func TestGroups(t *testing.T) {
	s := newGroups()
	for round := range 3 {
		numbers := map[uint32]string{}
		for n := range 3 * maxIdleGroups {
			name := string(rune(round)) + "/" + string(rune(n+1))
			i := s.enter(name)
			if other, taken := numbers[i]; taken || i == 0 {
				t.Fatalf("number %d of group %q is that of %q", i, name, other)
			}
			numbers[i] = name
			if s.enter(name) != i || s.all[i].name != name || s.all[i].keys != 2 {
				t.Fatalf("group %q: got %+v", name, *s.all[i])
			}
			s.leave(i)
		}
		for i := range numbers {
			s.leave(i)
		}
		if len(s.byName.all) != maxIdleGroups || s.idle.n != maxIdleGroups || len(s.all) > 4*maxIdleGroups+1 {
			t.Errorf("round %d: %d groups by name, %d idle, %d numbers", round, len(s.byName.all), s.idle.n, len(s.all))
		}
	}
}
