package reads

import (
	"hash/maphash"
	"slices"
)

// A graph has an edge from each key to each thing that it has read, which is a hash. Its edges are
// linked by their numbers, so that a million of them are few objects for the garbage collector. The
// number 0 is none.
type graph[K comparable] struct {
	hasher
	keys  map[uint64]uint32 // the first slot of each hash of a key, which is smaller than a map of keys
	slots slab[slot[K]]
	edges slab[edge]
	refs  map[uint64]uint32 // the first edge of each thing
	used  int               // edges

	freeSlot, freeEdge uint32
}

// A hasher makes hashes of names.
type hasher struct {
	seed   maphash.Seed
	narrow uint // the bits that a test takes from a hash
}

func hashOf[T comparable](h hasher, v T) uint64 { return maphash.Comparable(h.seed, v) >> h.narrow }

// A slab is a slice that grows without a copy, so without unused memory.
type slab[E any] struct {
	chunks [][]E
	next   uint32 // number
}

const chunk = 256

func (s *slab[E]) at(i uint32) *E { return &s.chunks[i/chunk][i%chunk] }

// add returns the number of a new element.
func (s *slab[E]) add() uint32 {
	i := s.next
	if i%chunk == 0 {
		s.chunks = append(s.chunks, make([]E, chunk))
	}
	s.next++
	return i
}

// A slot is a key with edges.
type slot[K comparable] struct {
	key     K
	first   uint32 // edge; of a free slot, the next free one
	next    uint32 // slot with the same hash
	call    uint32 // number of the last call
	running uint32 // calls that have read
}

// An edge is one thing that a key has read.
type edge struct {
	ref                              uint64
	slot                             uint32
	call                             uint32 // the greatest number of a call that read it
	nextOfSlot, nextOfRef, prevOfRef uint32
	source                           uint16 // 0 means that the edge is free
}

// slot returns the slot of a key, and 0 if it has none.
func (g *graph[K]) slot(key K, hash uint64) uint32 {
	at := g.keys[hash]
	for at != 0 && g.slots.at(at).key != key {
		at = g.slots.at(at).next
	}
	return at
}

// enter returns the slot of a key, for a call that begins to read, and the number of the call.
func (g *graph[K]) enter(key K) (at, call uint32) {
	if g.keys == nil {
		g.keys, g.refs = map[uint64]uint32{}, map[uint64]uint32{}
		g.slots.add()
		g.edges.add()
	}
	hash := hashOf(g.hasher, key)
	if at = g.slot(key, hash); at == 0 {
		if at = g.freeSlot; at != 0 {
			g.freeSlot = g.slots.at(at).first
		} else {
			at = g.slots.add()
		}
		*g.slots.at(at) = slot[K]{key: key, next: g.keys[hash]}
		g.keys[hash] = at
	}
	s := g.slots.at(at)
	s.running++
	s.call++
	return at, s.call
}

// free frees the slot of a key that has read nothing.
func (g *graph[K]) free(at uint32) {
	s := g.slots.at(at)
	hash := hashOf(g.hasher, s.key)
	if first := g.keys[hash]; first == at {
		if s.next == 0 {
			delete(g.keys, hash)
		} else {
			g.keys[hash] = s.next
		}
	} else {
		before := g.slots.at(first)
		for before.next != at {
			before = g.slots.at(before.next)
		}
		before.next = s.next
	}
	*s = slot[K]{first: g.freeSlot}
	g.freeSlot = at
	if len(g.keys) == 0 {
		*g = graph[K]{hasher: g.hasher} // a map does not shrink
	}
}

// few is the number of edges that are searched one by one.
const few = 16

// find returns the edge from a slot to ref, and 0 if there is none. If there are many edges, it makes
// an index of them.
func (g *graph[K]) find(at uint32, ref uint64, index *map[uint64]uint32) uint32 {
	if *index != nil {
		return (*index)[ref]
	}
	i, n := g.slots.at(at).first, 0
	for ; i != 0 && n < few; i, n = g.edges.at(i).nextOfSlot, n+1 {
		if g.edges.at(i).ref == ref {
			return i
		}
	}
	if i == 0 {
		return 0
	}
	*index = map[uint64]uint32{}
	for i := g.slots.at(at).first; i != 0; i = g.edges.at(i).nextOfSlot {
		(*index)[g.edges.at(i).ref] = i
	}
	return (*index)[ref]
}

// read notes that a call has read ref. index is that of the call for find.
func (g *graph[K]) read(at, call uint32, ref uint64, source uint16, index *map[uint64]uint32) {
	if i := g.find(at, ref, index); i != 0 {
		if e := g.edges.at(i); int32(call-e.call) > 0 { // not if a later call that overlaps has read it, too
			e.call = call
		}
		return
	}
	i := g.freeEdge
	if i != 0 {
		g.freeEdge = g.edges.at(i).nextOfSlot
	} else {
		i = g.edges.add()
	}
	next := g.refs[ref]
	*g.edges.at(i) = edge{ref: ref, slot: at, call: call, nextOfSlot: g.slots.at(at).first, nextOfRef: next, source: source}
	g.edges.at(next).prevOfRef = i // edge 0 is nobody's
	g.slots.at(at).first = i
	g.refs[ref] = i
	g.used++
	if *index != nil {
		(*index)[ref] = i
	}
}

// leave notes the end of a call. If replace is set and no other call of the key runs, it removes the edges that
// neither the call nor a later one has read. It calls gone with each thing that no key has read any more.
func (g *graph[K]) leave(at, call uint32, replace bool, gone func(ref uint64)) {
	s := g.slots.at(at)
	s.running--
	if replace && s.running == 0 {
		link := &s.first
		for i := *link; i != 0; {
			e := g.edges.at(i)
			next := e.nextOfSlot
			if int32(e.call-call) >= 0 { // the numbers can wrap
				link = &e.nextOfSlot
			} else {
				*link = next
				g.remove(i, gone)
			}
			i = next
		}
	}
	if s.first == 0 && s.running == 0 {
		g.free(at)
	}
}

// forget is the end of a call that has read nothing.
func (g *graph[K]) forget(key K, gone func(ref uint64)) {
	if g.slot(key, hashOf(g.hasher, key)) != 0 {
		at, call := g.enter(key)
		g.leave(at, call, true, gone)
	}
}

// remove frees an edge that its slot has unlinked.
func (g *graph[K]) remove(i uint32, gone func(ref uint64)) {
	e := g.edges.at(i)
	ref := e.ref
	g.edges.at(e.nextOfRef).prevOfRef = e.prevOfRef
	switch {
	case e.prevOfRef != 0:
		g.edges.at(e.prevOfRef).nextOfRef = e.nextOfRef
	case e.nextOfRef != 0:
		g.refs[ref] = e.nextOfRef
	default:
		delete(g.refs, ref)
		gone(ref)
	}
	*e = edge{nextOfSlot: g.freeEdge}
	g.freeEdge = i
	g.used--
}

// readers appends the keys that have read ref.
func (g *graph[K]) readers(keys []K, ref uint64) []K {
	for i := g.refs[ref]; i != 0; i = g.edges.at(i).nextOfRef {
		keys = append(keys, g.slots.at(g.edges.at(i).slot).key)
	}
	return keys
}

// readersOf returns the keys that have read anything of a source.
func (g *graph[K]) readersOf(source uint16) (keys []K) {
	seen := map[uint32]bool{}
	for i := range g.edges.next {
		if e := g.edges.at(i); e.source == source && !seen[e.slot] {
			seen[e.slot] = true
			keys = append(keys, g.slots.at(e.slot).key)
		}
	}
	return keys
}

// distinct returns the keys without duplicates, in no order.
func distinct[K comparable](keys []K) []K {
	if len(keys) <= few {
		for i := 0; i < len(keys); i++ {
			if slices.Contains(keys[:i], keys[i]) {
				keys[i] = keys[len(keys)-1]
				keys = keys[:len(keys)-1]
				i--
			}
		}
		return keys
	}
	seen := make(map[K]struct{}, len(keys))
	return slices.DeleteFunc(keys, func(key K) bool {
		if _, ok := seen[key]; ok {
			return true
		}
		seen[key] = struct{}{}
		return false
	})
}
