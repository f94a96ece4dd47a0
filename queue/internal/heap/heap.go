// Package heap is a priority queue whose items can be moved and removed from the
// middle.
package heap

const (
	// minRoom is the number of items that a heap keeps memory for.
	minRoom = 1024

	// arity is the number of children of an item. With two, items move twice as
	// often, and each move stores a place, which is a cache miss.
	arity = 4
)

// Heap keeps the least item first. Each item stores its place in the heap.
type Heap[T any] struct {
	items []T
	Less  func(a, b T) bool // Required.
	Place func(T) *int32    // Required. Where an item stores its place; Remove sets it to -1.
}

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

// First returns the least item. The heap must not be empty.
func (h *Heap[T]) First() T { return h.items[0] }

// Push adds an item.
func (h *Heap[T]) Push(t T) {
	if n := len(h.items); n == cap(h.items) { // append grows by a quarter, and so copies more often
		h.items = append(make([]T, 0, max(2*n, 8)), h.items...)
	}
	*h.Place(t) = int32(len(h.items))
	h.items = append(h.items, t)
	if i := len(h.items) - 1; i > 0 {
		h.up(i)
	}
}

// Remove removes an item, which must be in the heap.
func (h *Heap[T]) Remove(t T) {
	place := h.Place(t)
	i, last := int(*place), len(h.items)-1
	*place = -1
	moved := h.items[last]
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	if i < last {
		h.set(i, moved)
		h.Fix(moved)
	}
	if cap(h.items) > max(4*last, minRoom) { // frees the memory of a burst
		h.items = append(make([]T, 0, max(2*last, minRoom)), h.items...)
	}
}

// Fix moves an item after its order has changed.
func (h *Heap[T]) Fix(t T) {
	i := int(*h.Place(t))
	if h.up(i) == i {
		h.down(i)
	}
}

func (h *Heap[T]) set(i int, t T) {
	h.items[i] = t
	*h.Place(t) = int32(i)
}

func (h *Heap[T]) up(i int) int {
	t := h.items[i]
	start := i
	for i > 0 {
		parent := (i - 1) / arity
		if !h.Less(t, h.items[parent]) {
			break
		}
		h.set(i, h.items[parent])
		i = parent
	}
	if i != start {
		h.set(i, t)
	}
	return i
}

func (h *Heap[T]) down(i int) {
	t := h.items[i]
	start := i
	for arity*i+1 < len(h.items) {
		least := arity*i + 1
		for child := least + 1; child < min(arity*(i+1)+1, len(h.items)); child++ {
			if h.Less(h.items[child], h.items[least]) {
				least = child
			}
		}
		if !h.Less(h.items[least], t) {
			break
		}
		h.set(i, h.items[least])
		i = least
	}
	if i != start {
		h.set(i, t)
	}
}

// Least returns the n least items in order, with about n log n comparisons. The next item is
// always a child of an item that was taken before. Those are in a binary heap of their own,
// the edge.
func (h *Heap[T]) Least(n int) (least []T) {
	if n = min(n, h.Len()); n <= 0 {
		return nil
	}
	least = make([]T, 0, n)
	edge := make([]int, 1, (arity-1)*n+arity)
	less := func(i, j int) bool { return h.Less(h.items[edge[i]], h.items[edge[j]]) }
	for len(least) < n {
		taken := edge[0]
		least = append(least, h.items[taken])
		last := len(edge) - 1
		edge[0] = edge[last]
		edge = edge[:last]
		for i := 0; ; {
			child := 2*i + 1
			if child+1 < len(edge) && less(child+1, child) {
				child++
			}
			if child >= len(edge) || !less(child, i) {
				break
			}
			edge[i], edge[child] = edge[child], edge[i]
			i = child
		}
		for next := arity*taken + 1; next < min(arity*(taken+1)+1, h.Len()); next++ {
			edge = append(edge, next)
			for i := len(edge) - 1; i > 0 && less(i, (i-1)/2); i = (i - 1) / 2 {
				edge[i], edge[(i-1)/2] = edge[(i-1)/2], edge[i]
			}
		}
	}
	return least
}
