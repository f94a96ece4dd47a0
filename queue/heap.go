package queue

const (
	// minRoom is how many items a heap has room for without giving it back.
	minRoom = 1024

	// arity is how many children an item has. With two, items move twice as
	// often, and to tell each its new place is a cache miss.
	arity = 4
)

// heap keeps the item that is less than all others first. Each item knows its
// place, so that it can be moved or removed from the middle.
type heap[T any] struct {
	items []T
	less  func(a, b T) bool
	place func(T) *int32 // where the item keeps its place; -1 while it is in no heap
}

func (h *heap[T]) len() int { return len(h.items) }
func (h *heap[T]) first() T { return h.items[0] }

func (h *heap[T]) push(t T) {
	if n := len(h.items); n == cap(h.items) { // append would grow by a quarter, and copy all that more often
		h.items = append(make([]T, 0, max(2*n, 8)), h.items...)
	}
	*h.place(t) = int32(len(h.items))
	h.items = append(h.items, t)
	if i := len(h.items) - 1; i > 0 {
		h.up(i)
	}
}

func (h *heap[T]) remove(t T) {
	place := h.place(t)
	i, last := int(*place), len(h.items)-1
	*place = -1
	moved := h.items[last]
	var none T
	h.items[last] = none
	h.items = h.items[:last]
	if i < last {
		h.set(i, moved)
		h.fix(moved)
	}
	if cap(h.items) > max(4*last, minRoom) { // gives back the room of a burst
		h.items = append(make([]T, 0, max(2*last, minRoom)), h.items...)
	}
}

// fix puts an item whose order changed in its place.
func (h *heap[T]) fix(t T) {
	i := int(*h.place(t))
	if h.up(i) == i {
		h.down(i)
	}
}

func (h *heap[T]) set(i int, t T) {
	h.items[i] = t
	*h.place(t) = int32(i)
}

func (h *heap[T]) up(i int) int {
	t := h.items[i]
	start := i
	for i > 0 {
		parent := (i - 1) / arity
		if !h.less(t, h.items[parent]) {
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

func (h *heap[T]) down(i int) {
	t := h.items[i]
	start := i
	for arity*i+1 < len(h.items) {
		least := arity*i + 1
		for child := least + 1; child < min(arity*(i+1)+1, len(h.items)); child++ {
			if h.less(h.items[child], h.items[least]) {
				least = child
			}
		}
		if !h.less(h.items[least], t) {
			break
		}
		h.set(i, h.items[least])
		i = least
	}
	if i != start {
		h.set(i, t)
	}
}

// least returns the n least items in order. In a heap the next one is always a
// child of one already taken.
func (h *heap[T]) least(n int) (least []T) {
	if h.len() == 0 {
		return nil
	}
	for edge := []int{0}; len(edge) > 0 && len(least) < n; {
		next := 0
		for i := range edge {
			if h.less(h.items[edge[i]], h.items[edge[next]]) {
				next = i
			}
		}
		i := edge[next]
		least = append(least, h.items[i])
		edge[next] = edge[len(edge)-1]
		edge = edge[:len(edge)-1]
		for child := arity*i + 1; child < min(arity*(i+1)+1, h.len()); child++ {
			edge = append(edge, child)
		}
	}
	return least
}
