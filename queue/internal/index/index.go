// Package index finds the entry of a key.
//
// It is a hash table that grows and shrinks by one bucket at a time (linear
// hashing, W. Litwin, 1980). It replaces a map for three reasons, which profiles
// showed:
//
//   - One search both finds that a key is absent and adds it, and one search both
//     finds a key and deletes it. A map needs four searches for one key, a third of
//     the time that a key takes in the queue.
//   - In a long queue most of the time goes to cache misses. A search reads one
//     bucket, and only the matching key. Growing reads no entry.
//   - It frees memory after a burst, and never moves all keys at once.
package index

import (
	"hash/maphash"
	"math/bits"

	"github.com/controllerkit/controllerkit/queue/internal/arena"
)

const (
	slots = 7     // the number of keys in a bucket: as many as fit into a cache line
	rest  = slots // the position of the chain of keys without a slot
	load  = 3     // the average number of keys in a bucket; with more keys the table grows

	pageShift = 6 // buckets are allocated and freed by the page
	pageSize  = 1 << pageShift

	// minSize is the number of buckets that an index keeps. It has room for 1,536
	// keys, so that a queue in steady use does not allocate.
	minSize = 512

	used = 1 << 31 // set in each hash, so that no hash is 0
)

// Index holds keys of type K, each with an entry of type E.
type Index[K comparable, E any] struct {
	arena.Arena[K, E]
	seed  maphash.Seed
	pages []*[pageSize]bucket
	size  uint32 // the number of buckets
	mask  uint32 // 2^n-1, with size above half of it and at most one above it
	n     int    // the number of keys
}

// bucket holds the keys of some hashes. The first n slots are in use. The hashes of
// the other slots are 0.
type bucket struct {
	hashes [slots]uint32
	n      uint32
	refs   [slots + 1]arena.Ref
}

// New returns an empty index.
func New[K comparable, E any]() Index[K, E] {
	return Index[K, E]{
		Arena: arena.New[K, E](),
		seed:  maphash.MakeSeed(),
		pages: []*[pageSize]bucket{new([pageSize]bucket)},
		size:  pageSize,
		mask:  pageSize - 1,
	}
}

// Len returns the number of keys.
func (x *Index[K, E]) Len() int { return x.n }

// Hash returns the hash of a key. It can be called concurrently with all other
// methods.
func (x *Index[K, E]) Hash(key K) uint32 { return uint32(maphash.Comparable(x.seed, key)) | used }

// Place is the position of a key in the index. It is valid until the next change of
// the index.
type Place struct {
	*bucket
	slot int // rest if the key has no slot
}

// Find returns the number of a key's entry, or 0 if the index does not have the key.
// The place is for Delete or Insert.
func (x *Index[K, E]) Find(key K, hash uint32) (arena.Ref, Place) {
	b := x.bucket(hash)
	at := Place{b, b.slot(hash)}
	r := b.refs[at.slot]
	if r == 0 || at.slot < slots && x.Key(r) == key {
		return r, at
	}
	return x.search(b, key, hash)
}

// search finds a key that has no slot, or the hash of another key.
func (x *Index[K, E]) search(b *bucket, key K, hash uint32) (arena.Ref, Place) {
	for i, h := range &b.hashes {
		if h == hash && x.Key(b.refs[i]) == key {
			return b.refs[i], Place{b, i}
		}
	}
	r := b.refs[rest]
	for r != 0 && x.Key(r) != key {
		r = x.Link(r).Next
	}
	return r, Place{b, rest}
}

// slot returns the last slot with the hash, or rest if there is none. It compares all
// slots without a branch, because a branch could not be predicted. If the function
// were inlined, the compiler would make branches of the comparisons.
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

// bucket returns the bucket of a hash. If the bucket does not exist yet, its keys are
// in the bucket that it will be split from.
func (x *Index[K, E]) bucket(hash uint32) *bucket {
	i := hash & x.mask
	// If i >= x.size, clear the highest bit of the mask, without a branch.
	over := uint32((int64(x.size) - 1 - int64(i)) >> 63)
	return x.number(i &^ (over & (x.mask ^ x.mask>>1)))
}

func (x *Index[K, E]) number(i uint32) *bucket { return &x.pages[i>>pageShift][i%pageSize] }

// Insert adds a key at the place that Find returned, with a zero entry.
func (x *Index[K, E]) Insert(key K, hash uint32, at Place) (arena.Ref, *E) {
	r := x.Add(key)
	if !at.put(r, hash) {
		x.chain(at.bucket, r, hash)
	}
	if x.n++; x.n > load*int(x.size) {
		x.grow()
	}
	return r, x.At(r)
}

// Delete deletes the key that Find returned, with its entry.
func (x *Index[K, E]) Delete(r arena.Ref, at Place) {
	if at.slot == rest {
		before := &at.refs[rest]
		for *before != r {
			before = &x.Link(*before).Next
		}
		*before = x.Link(r).Next
	} else {
		at.n--
		last := at.n
		at.hashes[at.slot], at.refs[at.slot] = at.hashes[last], at.refs[last]
		at.hashes[last] = 0
		if at.refs[rest] != 0 {
			x.putRest(at.bucket)
		}
	}
	x.Remove(r)
	x.n--
	// Up to two buckets are freed with a key, so that the last key frees the last ones.
	for x.n < load*int(x.size)/4 && x.size > minSize {
		x.shrink()
	}
}

// put stores an entry in a slot. If the bucket is full, it returns false.
func (b *bucket) put(r arena.Ref, hash uint32) bool {
	n := b.n
	if n == slots {
		return false
	}
	b.hashes[n], b.refs[n] = hash, r
	b.n++
	return true
}

// chain stores an entry in the chain of a full bucket.
func (x *Index[K, E]) chain(b *bucket, r arena.Ref, hash uint32) {
	*x.Link(r) = arena.Link{Hash: hash, Next: b.refs[rest]}
	b.refs[rest] = r
}

// put stores an entry in the bucket of its hash.
func (x *Index[K, E]) put(r arena.Ref, hash uint32) {
	if b := x.bucket(hash); !b.put(r, hash) {
		x.chain(b, r, hash)
	}
}

// grow adds a bucket. It moves the bucket's keys out of the bucket that held them.
func (x *Index[K, E]) grow() {
	last := x.size
	if last%pageSize == 0 {
		x.pages = append(x.pages, new([pageSize]bucket))
	}
	if x.size++; last > x.mask {
		x.mask = x.mask<<1 | 1
	}
	from, to := x.number(last&(x.mask>>1)), x.number(last)
	bit := bits.Len32(x.mask) - 1 // of the hash; it is set for the keys that move
	all := from.n
	from.n = 0
	for i := range all { // each key is written to both and counted in one: no branch
		hash, r := from.hashes[i], from.refs[i]
		from.hashes[from.n], from.refs[from.n] = hash, r
		to.hashes[to.n], to.refs[to.n] = hash, r
		moves := hash >> bit & 1
		to.n += moves
		from.n += 1 - moves
	}
	for i := from.n; i < all; i++ {
		from.hashes[i] = 0
	}
	for i := to.n; i < all; i++ {
		to.hashes[i] = 0
	}
	x.putRest(from)
}

// shrink removes the last bucket, and moves its keys back.
func (x *Index[K, E]) shrink() {
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

// putRest moves the keys in a bucket's chain to where they belong now.
func (x *Index[K, E]) putRest(b *bucket) {
	r := b.refs[rest]
	b.refs[rest] = 0
	for r != 0 {
		l := x.Link(r)
		next := l.Next
		x.put(r, l.Hash)
		r = next
	}
}

// All calls yield with every entry, in no particular order.
func (x *Index[K, E]) All(yield func(arena.Ref) bool) {
	for i := range x.size {
		b := x.number(i)
		for _, r := range b.refs[:b.n] {
			if !yield(r) {
				return
			}
		}
		for r := b.refs[rest]; r != 0; r = x.Link(r).Next {
			if !yield(r) {
				return
			}
		}
	}
}
