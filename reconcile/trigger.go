package reconcile

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxTriggers is how many kinds of events there are, the bits of a mask; the last one
	// stands for all that come after the others.
	maxTriggers = 64

	// maxTriggered bounds the keys of which the events are remembered. A queue with
	// more keys than that has other things to tell.
	maxTriggered = 1 << 16
)

// The triggers that are not of a Source.
const (
	resyncTrigger  = "resync"
	retryTrigger   = "retry"
	requeueTrigger = "requeue"
	otherTriggers  = "other"
)

// Source is where the events of a Controller come from: what event handlers add keys
// to instead of the queue, so that calls can be told what led to them. See
// [Controller.Source]. It may be used by several goroutines at once.
type Source[K comparable] struct {
	c    *Controller[K]
	name string
}

// Source returns something to add keys to in the place of the Queue, which it passes
// them on to. It remembers for each key, until its next call, that an event of this
// source came: see [Triggers]. The name is for people, such as the resource that an
// informer watches:
//
//	pods.AddEventHandler(enqueue.Handler(c.Source("pods"), ownerOf))
//
// The Queue must be set before keys are added. Sources can be made and used before,
// while and after Run runs. Up to 63 kinds of events are told apart, by the name of the
// source and what [Source.AddEvent] is told; what more there is counts as "other". A
// controller that has one Source should get all its keys by Sources: a call for which
// none has told anything counts as a retry or a requeue, for the guard against hot loops
// too.
func (c *Controller[K]) Source(name string) *Source[K] {
	c.triggers.sourced.Store(true)
	return &Source[K]{c: c, name: name}
}

// Add adds the key to the controller's queue.
func (s *Source[K]) Add(key K) {
	s.c.triggers.note(trigger{source: s.name}, key)
	s.c.Queue.Add(key)
}

// AddEvent is AddWith for an event of a kind, which is a word such as "update". "" means
// that it is not known.
func (s *Source[K]) AddEvent(kind string, opts struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}, keys ...K,
) {
	s.c.triggers.note(trigger{s.name, kind}, keys...)
	adder, _ := s.c.Queue.(optionAdder[K])
	addTo(s.c.Queue, adder, opts, keys...)
}

// Triggers tells what led to the call that ctx belongs to, for logs: the names of the
// sources that reported an event of its key since its last call, with the kind of
// event, such as "pods update"; "resync" if it is a turn of Controller.Resync, or one
// comes within a 64th of that time; and if there was neither, "retry" after a call that
// did not succeed, else "requeue" (for a RequeueAfter, or for a key that was added to
// the queue directly). There are at most 64 of them. It is nil for other contexts, and
// where the controller has no Source and no Resync: then nobody can tell.
func Triggers(ctx context.Context) []string {
	names, _ := ctx.Value(triggersKey{}).([]string)
	return names
}

// triggersKey is the key of the context value that Triggers returns.
type triggersKey struct{}

// triggers remembers why keys are in the queue. The zero value remembers nothing yet.
type triggers[K comparable] struct {
	used    atomic.Bool // something was noted
	sourced atomic.Bool // there is a Source

	mu    sync.Mutex
	kinds []trigger    // by bit
	keys  map[K]uint64 // what was noted since the last call of the key
}

// trigger is what is told apart: an event of a source, "" as the kind means that it is
// not known.
type trigger struct{ source, kind string }

func (t trigger) String() string {
	if t.kind == "" {
		return t.source
	}
	return t.source + " " + t.kind
}

// note remembers that something happened to the keys.
func (t *triggers[K]) note(what trigger, keys ...K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.putLocked(t.bitLocked(what), keys...)
}

// bitLocked returns the mask of a trigger.
func (t *triggers[K]) bitLocked(what trigger) uint64 {
	for n, have := range t.kinds {
		if have == what {
			return 1 << n
		}
	}
	if n := len(t.kinds); n < maxTriggers {
		if n == maxTriggers-1 {
			what = trigger{source: otherTriggers}
		}
		t.kinds = append(t.kinds, what)
	}
	return 1 << (len(t.kinds) - 1)
}

func (t *triggers[K]) putLocked(mask uint64, keys ...K) {
	t.used.Store(true)
	if t.keys == nil {
		t.keys = map[K]uint64{}
	}
	for _, key := range keys {
		if have, ok := t.keys[key]; ok || len(t.keys) < maxTriggered {
			t.keys[key] = have | mask
		}
	}
}

// take returns what was noted for the key, and forgets it.
func (t *triggers[K]) take(key K) uint64 {
	if !t.used.Load() {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	mask := t.keys[key]
	if mask != 0 {
		delete(t.keys, key)
	}
	return mask
}

// restore takes back a take: the key does not run yet.
func (t *triggers[K]) restore(mask uint64, key K) {
	if mask == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.putLocked(mask, key)
}

// text returns the names of a mask. If it is empty, retried decides what it was.
func (t *triggers[K]) text(mask uint64, retried bool) []string {
	switch {
	case !t.used.Load() && !t.sourced.Load():
		return nil
	case mask == 0 && retried:
		return []string{retryTrigger}
	case mask == 0:
		return []string{requeueTrigger}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for n, what := range t.kinds {
		if mask&(1<<n) != 0 {
			names = append(names, what.String())
		}
	}
	return names
}
