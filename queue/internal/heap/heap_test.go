package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHeap compares the heap with a list that is sorted each time.
func TestHeap(t *testing.T) {
	type item struct {
		order int
		place int32
	}
	h := Heap[*item]{
		Less:  func(a, b *item) bool { return a.order < b.order },
		Place: func(i *item) *int32 { return &i.place },
	}
	var want []*item
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20_000 {
		switch {
		case len(want) == 0 || rng.IntN(5) < 2 && n < 15_000:
			i := &item{order: rng.IntN(1000)*100_000 + n}
			want = append(want, i)
			h.Push(i)
		case rng.IntN(2) == 0:
			i := want[rng.IntN(len(want))]
			i.order = rng.IntN(1000)*100_000 + n
			h.Fix(i)
		default:
			i := rng.IntN(len(want))
			h.Remove(want[i])
			if want[i].place != -1 {
				t.Fatalf("a removed item has place %d", want[i].place)
			}
			want = slices.Delete(want, i, i+1)
		}
		slices.SortFunc(want, func(a, b *item) int { return a.order - b.order })
		if n := min(len(want), 20); h.Len() != len(want) || !slices.Equal(h.Least(n), want[:n]) || n > 0 && h.First() != want[0] {
			t.Fatalf("the first of %d items: got %v, want %v", h.Len(), h.Least(n), want[:n])
		}
		for place, i := range h.items {
			if int(i.place) != place {
				t.Fatalf("item at %d has place %d", place, i.place)
			}
		}
	}
}

// TestLeastCost holds that the first items of a large heap cost few comparisons: a snapshot of a
// queue looks for them while workers wait.
func TestLeastCost(t *testing.T) {
	type item struct{ order, place int32 }
	var compared int
	h := Heap[*item]{
		Less:  func(a, b *item) bool { compared++; return a.order < b.order },
		Place: func(i *item) *int32 { return &i.place },
	}
	for i := range int32(100_000) {
		h.Push(&item{order: i})
	}
	compared = 0
	const n = 100
	if least := h.Least(n); len(least) != n {
		t.Fatalf("%d items, want %d", len(least), n)
	}
	if most := 20 * n; compared > most {
		t.Errorf("%d comparisons for %d items, want at most %d", compared, n, most)
	}
}

// TestFreesMemory tests that a heap frees the memory of a burst, and keeps enough for a
// queue in steady use.
func TestFreesMemory(t *testing.T) {
	type item struct{ place int32 }
	h := Heap[*item]{
		Less:  func(a, b *item) bool { return false },
		Place: func(i *item) *int32 { return &i.place },
	}
	if h.Least(1) != nil {
		t.Error("an empty heap has a least item")
	}
	for range 100 * minRoom {
		h.Push(&item{})
	}
	for h.Len() > 0 {
		if most := max(4*h.Len(), minRoom); cap(h.items) > 2*most {
			t.Fatalf("%d items have room for %d", h.Len(), cap(h.items))
		}
		h.Remove(h.First())
	}
	if cap(h.items) != minRoom {
		t.Errorf("an empty heap has room for %d items, want %d", cap(h.items), minRoom)
	}
}
