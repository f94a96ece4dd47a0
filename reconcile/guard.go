package reconcile

import (
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
// In profiles, the time of a guard is the cache misses of its searches. The values of the
// maps are pointers, so that a key that runs again takes one search, in a smaller map, and
// no write.
type guard[K comparable] struct {
	young, old map[K]*bucket
	since      time.Duration // when young was made
	nextName   time.Duration // when the next key can be named
	hot        map[K]*bucket // some of the keys that were held, for Snapshot
}

// take takes a token of the key, or returns how long the key has to wait for one. held
// reports that this wait is a new one, name that the key is to be logged.
func (g *guard[K]) take(key K, now time.Duration) (wait time.Duration, held, name bool) {
	b := g.young[key]
	if b == nil {
		if b = g.old[key]; b == nil {
			b = &bucket{}
		}
		if n := len(g.young); g.young == nil || n >= guardKeys || now-g.since >= guardFull {
			next := map[K]*bucket{}
			if n >= guardKeys && g.old != nil {
				next = g.old // so many keys need no new memory each time
				clear(next)
			}
			g.old, g.young, g.since = g.young, next, now
		}
		g.young[key] = b
	}
	if b.full <= now {
		*b = bucket{full: now}
	}
	if wait = b.full + guardInterval - now - guardFull; wait > 0 {
		held, name = !b.held, !b.named && now >= g.nextName
		b.held, b.named = true, b.named || name
		if held {
			g.noteHot(key, b, now)
		}
		if name {
			g.nextName = now + nameAtMost
		}
	} else {
		wait = 0
		b.full, b.held = b.full+guardInterval, false
	}
	return wait, held, name
}

// noteHot notes that the key was held.
func (g *guard[K]) noteHot(key K, b *bucket, now time.Duration) {
	if len(g.hot) >= guardHot {
		maps.DeleteFunc(g.hot, func(_ K, b *bucket) bool { return b.cold(now) })
	}
	if g.hot[key] != nil || len(g.hot) < guardHot {
		if g.hot == nil {
			g.hot = map[K]*bucket{}
		}
		g.hot[key] = b
	}
}

// cold reports whether a key that was held has half of its tokens again.
func (b *bucket) cold(now time.Duration) bool { return b.full-now < guardFull/2 }
