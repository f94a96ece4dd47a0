package queue

// The queue's memory: of a backlog nearly all time is cache misses and garbage
// collection, so entries are small, dense, numbered, and apart from the keys.

const (
	blockShift = 7
	blockSize  = 1 << blockShift

	// maxEmpty is how many blocks without a key are kept, so that keys that come
	// and go do not allocate; no more, so that those of a burst are not kept for
	// ever.
	maxEmpty = 8
)

// ref is the number of an entry. 0 means none.
type ref uint32

// entry is all that the queue knows of one key, except for the key. A key has at
// most one, and an entry is in exactly one of the three states; what a running
// key does after Done is in then. It has no pointers, so that the garbage
// collector has nothing to look at in it: to make, link and index 100,000 of them
// took 117 ns each with pointers, and 50 ns without.
type entry struct {
	next  ref // ready: in its lane; running: in running
	prev  ref
	group uint32 // in groups
	place int32  // delayed: in delays

	state keyState

	// While running: what the adds since Get asked for.
	then   then
	asks   bool // asked is set
	forgot bool // Forget was called: priority does not carry over
	asked  int  // highest priority asked for

	priority int

	at    int64 // when it is due, while there is a delay; otherwise when it was asked for, if there are metrics
	order int64 // ready, delayed: number in this order; running: since when
}

type keyState uint8

const (
	stateReady   keyState = iota // in ready
	stateDelayed                 // in delays
	stateRunning                 // in running, handed out and not done
)

// then is what a running key does after Done.
type then uint8

const (
	thenNothing then = iota
	thenReady        // ready right after Done
	thenDelayed      // delayed until at
)

// arena holds what there is for each key: an E, which is an entry in a queue, and
// apart from it the key. They are in blocks that never move, each of which is
// given back once none of its keys is in use.
type arena[K comparable, E any] struct {
	blocks[E]                 // nil where one was given back
	keys      []*[blockSize]K // as in blocks, like the next two
	nodes     []*[blockSize]node
	usage     []usage
	open      []uint32 // the blocks with room; the last one is filled first
	spare     []uint32 // the numbers of blocks that were given back
	empty     int      // how many of open have no key in use
}

type blocks[E any] []*[blockSize]E

// node is for keys that are in a chain.
type node struct {
	hash  uint32 // in a bucket's chain: of the key
	chain ref    // next in the bucket's chain, or of the free ones
}

type usage struct {
	free  ref   // keys that were used before, as a chain
	fresh int32 // the first one that was never used
	live  int32 // how many are in use
	open  int32 // position in open, if live < blockSize
}

func newArena[K comparable, E any]() arena[K, E] {
	var a arena[K, E]
	var nobody K
	a.add(nobody) // takes the ref that means none
	return a
}

func (b blocks[E]) at(r ref) *E { return &b[r>>blockShift][r%blockSize] }

func (a *arena[K, E]) key(r ref) K { return a.keys[r>>blockShift][r%blockSize] }

func (a *arena[K, E]) node(r ref) *node { return &a.nodes[r>>blockShift][r%blockSize] }

// add returns the ref of a key. Its E is zero.
func (a *arena[K, E]) add(key K) ref {
	if len(a.open) == 0 {
		a.enlarge()
	}
	i := a.open[len(a.open)-1]
	u := &a.usage[i]
	r := u.free
	if r != 0 {
		u.free = a.node(r).chain
		var zero E
		*a.at(r) = zero
	} else {
		r = ref(i<<blockShift) + ref(u.fresh)
		u.fresh++
	}
	if u.live == 0 {
		a.empty--
	}
	if u.live++; u.live == blockSize {
		a.open = a.open[:len(a.open)-1]
	}
	a.keys[i][r%blockSize] = key
	return r
}

// enlarge adds a block.
func (a *arena[K, E]) enlarge() {
	i := uint32(len(a.blocks))
	if n := len(a.spare); n > 0 {
		i, a.spare = a.spare[n-1], a.spare[:n-1]
	} else {
		a.blocks, a.keys = append(a.blocks, nil), append(a.keys, nil)
		a.nodes, a.usage = append(a.nodes, nil), append(a.usage, usage{})
	}
	a.blocks[i], a.keys[i], a.nodes[i] = new([blockSize]E), new([blockSize]K), new([blockSize]node)
	a.usage[i] = usage{}
	a.open = append(a.open, i)
	a.empty++
}

// remove takes back a ref and forgets its key.
func (a *arena[K, E]) remove(r ref) {
	i := uint32(r >> blockShift)
	u := &a.usage[i]
	var nobody K
	a.keys[i][r%blockSize] = nobody
	a.node(r).chain, u.free = u.free, r
	if u.live == blockSize {
		u.open = int32(len(a.open))
		a.open = append(a.open, i)
	}
	if u.live--; u.live > 0 {
		return
	}
	if a.empty++; a.empty <= maxEmpty {
		return
	}
	a.empty--
	last := a.open[len(a.open)-1]
	a.open[u.open], a.usage[last].open = last, u.open
	a.open = a.open[:len(a.open)-1]
	a.spare = append(a.spare, i)
	a.blocks[i], a.keys[i], a.nodes[i] = nil, nil, nil
}

// entries are those of a queue.
type entries = blocks[entry]

// list is a list of entries, linked by themselves, so that adding and removing a
// key anywhere takes constant time and no memory. An entry is in one list at most.
type list struct {
	head, tail ref
	n          int
}

func (l *list) push(s entries, r ref, e *entry) {
	e.next, e.prev = 0, l.tail
	if l.tail == 0 {
		l.head = r
	} else {
		s.at(l.tail).next = r
	}
	l.tail = r
	l.n++
}

func (l *list) remove(s entries, e *entry) {
	if e.prev == 0 {
		l.head = e.next
	} else {
		s.at(e.prev).next = e.next
	}
	if e.next == 0 {
		l.tail = e.prev
	} else {
		s.at(e.next).prev = e.prev
	}
	l.n--
}
