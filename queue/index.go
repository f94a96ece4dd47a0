package queue

import (
	"hash/maphash"
	"math/bits"
)

const (
	slots = 7     // how many keys a bucket has room for: as many as fit into a cache line
	rest  = slots // where a bucket keeps the chain of those that found no slot
	load  = 3     // keys a bucket, on average, before there is one bucket more

	pageShift = 6 // buckets are made and given back by the page
	pageSize  = 1 << pageShift

	// minSize is how many buckets stay: enough for 1,536 keys, so that a queue in
	// steady use does not allocate.
	minSize = 512

	used = 1 << 31 // in each hash, so that none is 0
)

// index finds the entry of a key: a hash table that grows and shrinks by one
// bucket at a time (linear hashing, W. Litwin, 1980).
//
// It takes the place of a map for three reasons that profiles gave. To find that
// a key is not there and to add it is one search, as is to find and to remove it;
// with a map these four searches were a third of a cycle. In a backlog
// nearly all time is cache misses: here a search reads one bucket, and a key
// only if it is the right one; growing reads no entry. And it gives back the room
// of a burst, which a map does not, without ever moving all keys at once.
type index[K comparable, E any] struct {
	arena[K, E]
	seed  maphash.Seed
	pages []*[pageSize]bucket
	size  uint32 // how many buckets are in use
	mask  uint32 // 2^n-1, with size above half of it and at most one above it
	n     int    // how many keys there are
}

// bucket holds the entries of some hashes: n of them in its first slots. The
// hashes of the other slots are 0.
type bucket struct {
	hashes [slots]uint32
	n      uint32
	refs   [slots + 1]ref
}

func newIndex[K comparable, E any]() index[K, E] {
	return index[K, E]{
		arena: newArena[K, E](),
		seed:  maphash.MakeSeed(),
		pages: []*[pageSize]bucket{new([pageSize]bucket)},
		size:  pageSize,
		mask:  pageSize - 1,
	}
}

// hash returns the hash of a key. It may be called without the lock.
func (x *index[K, E]) hash(key K) uint32 { return uint32(maphash.Comparable(x.seed, key)) | used }

// place is where find found a key, or where insert is to put it.
type place struct {
	*bucket
	slot int // rest if it has none
}

// find returns the entry of key, 0 if there is none.
func (x *index[K, E]) find(key K, hash uint32) (ref, place) {
	b := x.bucket(hash)
	at := place{b, b.slot(hash)}
	r := b.refs[at.slot]
	if r == 0 || at.slot < slots && x.key(r) == key {
		return r, at
	}
	return x.search(b, key, hash)
}

// search is for a key that has no slot, or the hash of another key.
func (x *index[K, E]) search(b *bucket, key K, hash uint32) (ref, place) {
	for i, h := range &b.hashes {
		if h == hash && x.key(b.refs[i]) == key {
			return b.refs[i], place{b, i}
		}
	}
	r := b.refs[rest]
	for r != 0 && x.key(r) != key {
		r = x.node(r).chain
	}
	return r, place{b, rest}
}

// slot returns the last slot with this hash, or rest if there is none. It looks
// at all of them without a branch, since which one it is cannot be predicted; when
// it is inlined the compiler makes branches of these.
//
//go:noinline
func (b *bucket) slot(hash uint32) int {
	slot := rest
	if b.hashes[0] == hash {
		slot = 0
	}
	if b.hashes[1] == hash {
		slot = 1
	}
	if b.hashes[2] == hash {
		slot = 2
	}
	if b.hashes[3] == hash {
		slot = 3
	}
	if b.hashes[4] == hash {
		slot = 4
	}
	if b.hashes[5] == hash {
		slot = 5
	}
	if b.hashes[6] == hash {
		slot = 6
	}
	return slot
}

// bucket returns the bucket of a hash. The last doubling has split only so many
// buckets; the others take what belongs to both of their halves.
func (x *index[K, E]) bucket(hash uint32) *bucket {
	i := hash & x.mask
	// If i >= x.size, without the highest bit of the mask; no branch here either.
	over := uint32((int64(x.size) - 1 - int64(i)) >> 63)
	return x.number(i &^ (over & (x.mask ^ x.mask>>1)))
}

func (x *index[K, E]) number(i uint32) *bucket { return &x.pages[i>>pageShift][i%pageSize] }

// insert makes the entry of a key that find did not find.
func (x *index[K, E]) insert(key K, hash uint32, at place) (ref, *E) {
	r := x.add(key)
	if !at.put(r, hash) {
		x.chain(at.bucket, r, hash)
	}
	if x.n++; x.n > load*int(x.size) {
		x.grow()
	}
	return r, x.at(r)
}

// delete forgets a key that find found, and its entry.
func (x *index[K, E]) delete(r ref, at place) {
	if at.slot == rest {
		before := &at.refs[rest]
		for *before != r {
			before = &x.node(*before).chain
		}
		*before = x.node(r).chain
	} else {
		at.n--
		last := at.n
		at.hashes[at.slot], at.refs[at.slot] = at.hashes[last], at.refs[last]
		at.hashes[last] = 0
		if at.refs[rest] != 0 {
			x.putRest(at.bucket)
		}
	}
	x.remove(r)
	x.n--
	// Up to two buckets go with a key, so that they are gone when the keys are.
	for x.n < load*int(x.size)/4 && x.size > minSize {
		x.shrink()
	}
}

// put takes an entry into a slot, if there is one.
func (b *bucket) put(r ref, hash uint32) bool {
	n := b.n
	if n == slots {
		return false
	}
	b.hashes[n], b.refs[n] = hash, r
	b.n++
	return true
}

// chain takes an entry that finds no slot.
func (x *index[K, E]) chain(b *bucket, r ref, hash uint32) {
	*x.node(r) = node{hash: hash, chain: b.refs[rest]}
	b.refs[rest] = r
}

// put puts an entry where it belongs.
func (x *index[K, E]) put(r ref, hash uint32) {
	if b := x.bucket(hash); !b.put(r, hash) {
		x.chain(b, r, hash)
	}
}

// grow adds a bucket, which takes its part of the one that has served for both.
func (x *index[K, E]) grow() {
	last := x.size
	if last%pageSize == 0 {
		x.pages = append(x.pages, new([pageSize]bucket))
	}
	if x.size++; last > x.mask {
		x.mask = x.mask<<1 | 1
	}
	from, to := x.number(last&(x.mask>>1)), x.number(last)
	bit := bits.Len32(x.mask) - 1 // tells one from the other
	all := from.n
	from.n = 0
	for i := range all { // written to both, counted in one: no branch
		hash, r := from.hashes[i], from.refs[i]
		from.hashes[from.n], from.refs[from.n] = hash, r
		to.hashes[to.n], to.refs[to.n] = hash, r
		goes := hash >> bit & 1
		to.n += goes
		from.n += 1 - goes
	}
	for i := from.n; i < all; i++ {
		from.hashes[i] = 0
	}
	for i := to.n; i < all; i++ {
		to.hashes[i] = 0
	}
	x.putRest(from)
}

// shrink removes the last bucket; what is in it goes to where it came from.
func (x *index[K, E]) shrink() {
	x.size--
	last := x.size
	if last <= x.mask>>1 {
		x.mask >>= 1
	}
	from := x.number(last)
	for i := range from.n {
		x.put(from.refs[i], from.hashes[i])
	}
	x.putRest(from)
	*from = bucket{}
	if last%pageSize == 0 {
		x.pages[last>>pageShift] = nil
		x.pages = x.pages[:last>>pageShift]
	}
}

// putRest puts what found no slot in a bucket where it belongs now.
func (x *index[K, E]) putRest(b *bucket) {
	r := b.refs[rest]
	b.refs[rest] = 0
	for r != 0 {
		n := x.node(r)
		next := n.chain
		x.put(r, n.hash)
		r = next
	}
}

// all calls yield with every entry, in no order.
func (x *index[K, E]) all(yield func(ref) bool) {
	for i := range x.size {
		b := x.number(i)
		for _, r := range b.refs[:b.n] {
			if !yield(r) {
				return
			}
		}
		for r := b.refs[rest]; r != 0; r = x.node(r).chain {
			if !yield(r) {
				return
			}
		}
	}
}
