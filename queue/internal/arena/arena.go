// Package arena stores the keys of an index, each with an entry.
//
// In a long queue most of the time goes to cache misses and garbage collection.
// Entries are therefore small, dense, apart from the keys, and known by number. If
// an entry has no pointers, the garbage collector does not scan it.
package arena

const (
	blockShift = 7
	blockSize  = 1 << blockShift

	// MaxEmpty is the number of blocks without keys that an arena keeps, so that
	// adding and removing a key in turn does not allocate.
	MaxEmpty = 8
)

// Ref is the number of an entry. 0 is no entry.
type Ref uint32

// Blocks holds the entries of an arena. The address of an entry stays the same until
// its key is removed.
type Blocks[E any] []*[blockSize]E // nil for a freed block

// At returns the entry of r. The entry of 0 is the zero E.
func (b Blocks[E]) At(r Ref) *E { return &b[r>>blockShift][r%blockSize] }

// Arena holds keys of type K, each with an entry of type E. It frees a block when
// the last key of the block is removed.
type Arena[K comparable, E any] struct {
	Blocks[E]
	keys  []*[blockSize]K // as Blocks, like the next two
	links []*[blockSize]Link
	usage []usage
	open  []uint32 // the blocks with room; the last one is filled first
	spare []uint32 // the numbers of freed blocks
	empty int      // the number of blocks in open without keys
}

// Link makes an entry part of a chain of the caller. Add does not clear it.
type Link struct {
	Hash uint32
	Next Ref
}

// usage describes one block.
type usage struct {
	free  Ref   // the chain of removed keys
	fresh int32 // the first key that was never used
	live  int32 // the number of keys in use
	open  int32 // the position in Arena.open while live < blockSize
}

// New returns an empty arena.
func New[K comparable, E any]() Arena[K, E] {
	var a Arena[K, E]
	var zero K
	a.Add(zero) // takes Ref 0
	return a
}

// Key returns the key of r.
func (a *Arena[K, E]) Key(r Ref) K { return a.keys[r>>blockShift][r%blockSize] }

// Link returns the link of r.
func (a *Arena[K, E]) Link(r Ref) *Link { return &a.links[r>>blockShift][r%blockSize] }

// Add adds a key with a zero entry. The arena does not look for equal keys.
func (a *Arena[K, E]) Add(key K) Ref {
	if len(a.open) == 0 {
		a.enlarge()
	}
	i := a.open[len(a.open)-1]
	u := &a.usage[i]
	r := u.free
	if r != 0 {
		u.free = a.Link(r).Next
		var zero E
		*a.At(r) = zero
	} else {
		r = Ref(i<<blockShift) + Ref(u.fresh)
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
func (a *Arena[K, E]) enlarge() {
	i := uint32(len(a.Blocks))
	if n := len(a.spare); n > 0 {
		i, a.spare = a.spare[n-1], a.spare[:n-1]
	} else {
		a.Blocks, a.keys = append(a.Blocks, nil), append(a.keys, nil)
		a.links, a.usage = append(a.links, nil), append(a.usage, usage{})
	}
	a.Blocks[i], a.keys[i], a.links[i] = new([blockSize]E), new([blockSize]K), new([blockSize]Link)
	a.usage[i] = usage{}
	a.open = append(a.open, i)
	a.empty++
}

// Remove removes the key of r. Add may use r again.
func (a *Arena[K, E]) Remove(r Ref) {
	i := uint32(r >> blockShift)
	u := &a.usage[i]
	var zero K
	a.keys[i][r%blockSize] = zero
	a.Link(r).Next, u.free = u.free, r
	if u.live == blockSize {
		u.open = int32(len(a.open))
		a.open = append(a.open, i)
	}
	if u.live--; u.live > 0 {
		return
	}
	if a.empty++; a.empty <= MaxEmpty {
		return
	}
	a.empty--
	last := a.open[len(a.open)-1]
	a.open[u.open], a.usage[last].open = last, u.open
	a.open = a.open[:len(a.open)-1]
	a.spare = append(a.spare, i)
	a.Blocks[i], a.keys[i], a.links[i] = nil, nil, nil
}
