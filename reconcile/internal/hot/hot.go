package reconcile

import (
	"hash/maphash"
	"maps"
	"time"
)

// The guard bounds a key that makes itself run, for example by writing the time of day
// to its own object. Each key has a token bucket: it runs at most guardBurst times at
// once, and then once every guardInterval. The loop delays a key without a token in the
// queue, which folds the events that come meanwhile into one call.
const (
	guardBurst    = 100
	guardInterval = 100 * time.Millisecond
	guardFull     = guardBurst * guardInterval // the time in which an empty bucket fills

	guardKeys  = 1 << 15     // bounds each of the two maps of a guard
	guardHot   = 100         // bounds the keys that hot lists
	nameAtMost = time.Second // between two lines of log that name a key
)

// bucket is the token bucket of a key.
type bucket struct {
	full  time.Duration // when it is full, in time since the start of Run
	held  bool          // the key waits for a token
	named bool          // the key was logged since the bucket was full
}

// guard has the buckets of the keys that ran lately. A key that runs moves to the map
// young. When young is as old as a bucket takes to fill, or has guardKeys keys, it becomes
// old, and the guard forgets the keys in old: either their buckets are full, or more than
// guardKeys other keys have run since. So the memory is bounded, and a key that runs often
// is not forgotten.
//
// The maps hold hashes instead of keys, so that they are small and the garbage collector
// does not read them. Two keys with one hash share a bucket. Among a million keys there are
// two such keys with a chance of about 1 in 37 million.
type guard[K comparable] struct {
	seed       maphash.Seed
	young, old map[uint64]bucket
	since      time.Duration  // when young was made
	nextName   time.Duration  // when the next key can be named
	hot        map[K]struct{} // some of the keys that were held, for Snapshot
}

// take takes a token of the key, or returns how long the key has to wait for one. held
// reports that this wait is a new one, name that the key is to be logged.
func (g *guard[K]) take(key K, now time.Duration) (wait time.Duration, held, name bool) {
	if g.young == nil {
		g.seed = maphash.MakeSeed()
		g.turn(now)
	}
	hash := maphash.Comparable(g.seed, key)
	b, young := g.young[hash]
	if !young {
		b = g.old[hash]
		if len(g.young) >= guardKeys || now-g.since >= guardFull {
			g.turn(now)
		}
	}
	if b.full <= now {
		b = bucket{full: now}
	}
	if wait = b.full + guardInterval - now - guardFull; wait > 0 {
		held, name = !b.held, !b.named && now >= g.nextName
		b.held, b.named = true, b.named || name
		if held {
			g.noteHot(key, now)
		}
		if name {
			g.nextName = now + nameAtMost
		}
	} else {
		wait = 0
		b.full, b.held = b.full+guardInterval, false
	}
	g.young[hash] = b
	return wait, held, name
}

// turn makes young old.
func (g *guard[K]) turn(now time.Duration) {
	next := map[uint64]bucket{}
	if len(g.young) >= guardKeys && g.old != nil {
		next = g.old // so many keys need no new memory each time
		clear(next)
	}
	g.old, g.young, g.since = g.young, next, now
}

// noteHot notes that the key was held.
func (g *guard[K]) noteHot(key K, now time.Duration) {
	if len(g.hot) >= guardHot {
		maps.DeleteFunc(g.hot, func(key K, _ struct{}) bool { return !g.isHot(key, now) })
	}
	if len(g.hot) < guardHot {
		if g.hot == nil {
			g.hot = map[K]struct{}{}
		}
		g.hot[key] = struct{}{}
	}
}

// isHot reports whether a key was held and still lacks half of its tokens.
func (g *guard[K]) isHot(key K, now time.Duration) bool {
	if _, ok := g.hot[key]; !ok {
		return false
	}
	hash := maphash.Comparable(g.seed, key)
	b, young := g.young[hash]
	if !young {
		b = g.old[hash]
	}
	return b.full-now >= guardFull/2
}
