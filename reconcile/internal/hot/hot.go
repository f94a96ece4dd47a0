// Package hot bounds how often a key runs that makes itself run, for example by writing the
// time of day to its own object.
package hot

import (
	"hash/maphash"
	"iter"
	"maps"
	"time"
)

// Each key has a token bucket: it runs at most Burst times at once, and then once every
// Interval. The loop delays a key without a token in the queue, which folds the events that
// come meanwhile into one call.
const (
	Burst    = 100
	Interval = 100 * time.Millisecond
)

const (
	full       = Burst * Interval // the time in which an empty bucket fills
	maxKeys    = 1 << 15          // bounds each of the two maps of a Guard
	maxHot     = 100              // bounds the keys of Keys
	nameAtMost = time.Second      // between two lines of log that name a key
)

// bucket is the token bucket of a key.
type bucket struct {
	full  time.Duration // when it is full
	held  bool          // the key waits for a token
	named bool          // the key was logged since the bucket was full
}

// A Guard has the buckets of the keys that ran lately. A key that runs moves to the map
// young. When young is as old as a bucket takes to fill, or has maxKeys keys, it becomes
// old, and the Guard forgets the keys in old: either their buckets are full, or more than
// maxKeys other keys have run since. So the memory is bounded, and a key that runs often
// is not forgotten.
//
// The maps hold hashes instead of keys, so that they are small and the garbage collector
// does not read them. Two keys with one hash share a bucket. Among a million keys there are
// two such keys with a chance of about 1 in 37 million.
//
// The zero value is empty. A Guard is not safe for concurrent use. Its methods get the present
// time as a duration since any fixed moment.
type Guard[K comparable] struct {
	seed       maphash.Seed
	young, old map[uint64]bucket
	since      time.Duration  // when young was made
	nextName   time.Duration  // when the next key can be named
	hot        map[K]struct{} // some of the keys that were held
}

// Take takes a token of the key, or returns how long the key has to wait for one. held
// reports that this wait is a new one, name that the key is to be logged.
func (g *Guard[K]) Take(key K, now time.Duration) (wait time.Duration, held, name bool) {
	if g.young == nil {
		g.seed = maphash.MakeSeed()
		g.turn(now)
	}
	hash := maphash.Comparable(g.seed, key)
	b, young := g.young[hash]
	if !young {
		b = g.old[hash]
		if len(g.young) >= maxKeys || now-g.since >= full {
			g.turn(now)
		}
	}
	if b.full <= now {
		b = bucket{full: now}
	}
	if wait = b.full + Interval - now - full; wait > 0 {
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
		b.full, b.held = b.full+Interval, false
	}
	g.young[hash] = b
	return wait, held, name
}

// turn makes young old.
func (g *Guard[K]) turn(now time.Duration) {
	next := map[uint64]bucket{}
	if len(g.young) >= maxKeys && g.old != nil {
		next = g.old // so many keys need no new memory each time
		clear(next)
	}
	g.old, g.young, g.since = g.young, next, now
}

// noteHot notes that the key was held.
func (g *Guard[K]) noteHot(key K, now time.Duration) {
	if len(g.hot) >= maxHot {
		maps.DeleteFunc(g.hot, func(key K, _ struct{}) bool { return !g.Has(key, now) })
	}
	if len(g.hot) < maxHot {
		if g.hot == nil {
			g.hot = map[K]struct{}{}
		}
		g.hot[key] = struct{}{}
	}
}

// Keys returns some of the keys that were held, at most 100. Has reports of each whether it
// still is hot.
func (g *Guard[K]) Keys() iter.Seq[K] { return maps.Keys(g.hot) }

// Has reports whether a key was held and still lacks half of its tokens.
func (g *Guard[K]) Has(key K, now time.Duration) bool {
	if _, ok := g.hot[key]; !ok {
		return false
	}
	hash := maphash.Comparable(g.seed, key)
	b, young := g.young[hash]
	if !young {
		b = g.old[hash]
	}
	return b.full-now >= full/2
}
