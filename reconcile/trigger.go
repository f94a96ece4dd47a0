package reconcile

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/controllerkit/controllerkit/internal/calls"
)

const (
	// maxTriggers is the number of kinds of events, which are the bits of a mask. The last
	// bit means every later kind.
	maxTriggers = 64

	// maxTriggered bounds the number of keys whose events are remembered.
	maxTriggered = 1 << 16

	// minTriggered is the number of keys whose memory is kept.
	minTriggered = 1 << 10
)

// The triggers that no Source reports.
const (
	resyncTrigger  = "resync"
	retryTrigger   = "retry"
	requeueTrigger = "requeue"
	otherTriggers  = "other"
)

// Source adds keys to the queue of a Controller and remembers why, for [Triggers]. See
// [Controller.Source]. Its methods may be called concurrently.
type Source[K comparable] struct {
	c    *Controller[K]
	name string
}

// Source returns a Source. Event handlers add keys to it instead of the Queue. The name is a
// word for logs, such as the resource that an informer watches:
//
//	pods.AddEventHandler(enqueue.Handler(c.Source("pods"), ownerOf))
//
// The Queue must be set before keys are added. Sources can be made and used before, while
// and after Run runs. A controller that has a Source should get all its keys from Sources,
// because a call without a reported event counts as a retry or a requeue. Triggers
// distinguishes 63 kinds of events, by the name and the kind; further ones are "other".
func (c *Controller[K]) Source(name string) *Source[K] {
	c.triggers.sourced.Store(true)
	return &Source[K]{c: c, name: name}
}

// Add adds the key to the controller's queue.
func (s *Source[K]) Add(key K) {
	s.c.triggers.note(trigger{source: s.name}, key)
	s.c.Queue.Add(key)
}

// AddEvent adds the keys for an event of the kind, which is a word such as "update". ""
// means unknown. If the queue has no AddWith, only the delay of opts is used.
func (s *Source[K]) AddEvent(kind string, opts struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}, keys ...K,
) {
	same := kind == calls.Resync || kind == calls.Unchanged
	s.c.triggers.note(trigger{source: s.name, kind: kind, same: same}, keys...)
	adder, _ := s.c.Queue.(optionAdder[K])
	addTo(s.c.Queue, adder, opts, keys...)
}

// Triggers returns the reasons of the call that ctx belongs to, for logs: the name and kind
// of each event that a Source reported for the key since its last call, such as "pods
// update", and "resync" if a Resync added the key. Without an event it is "retry" after a
// call that failed, or else "requeue". There are at most 64. It is nil for other contexts,
// and for a controller with neither a Source nor a Resync.
func Triggers(ctx context.Context) []string {
	names, _ := ctx.Value(calls.Triggers{}).([]string)
	return names
}

// triggers remembers why keys are in the queue. The zero value is empty.
type triggers[K comparable] struct {
	used    atomic.Bool // note was called
	sourced atomic.Bool // there is a Source

	mu    sync.Mutex
	began time.Time    // where the times of events start
	kinds []trigger    // by bit
	keys  map[K]reason // of each key since its last call
	most  int          // keys that there were since the map was made
	first int          // keys with reason.first whose next call has not ended
}

// reason is why a key is in the queue.
type reason struct {
	mask  uint64        // the triggers
	event time.Duration // when a Source reported the first, in time since began; 0 without one
	first bool          // a Source reported one before the caches were synced
}

// earlier returns the earlier of two times of events. 0 means no event.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// trigger is a kind of event of a source. If kind is "", the kind is unknown.
type trigger struct {
	source, kind string
	same         bool // it reports no change
}

func (t trigger) String() string {
	if t.kind == "" {
		return t.source
	}
	return t.source + " " + t.kind
}

// note remembers an event of the keys.
func (t *triggers[K]) note(what trigger, keys ...K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	why := reason{mask: t.bitLocked(what)}
	if t.began.IsZero() {
		t.began = time.Now().Add(-1) // no event has the time 0
	}
	if what.source != resyncTrigger {
		why.event = time.Since(t.began)
	}
	t.putLocked(why, keys...)
}

// begin marks the keys that Sources have reported so far, which are those of the first list.
func (t *triggers[K]) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first = 0
	for key, why := range t.keys {
		if why.first = why.event != 0; why.first {
			t.first++
		}
		t.keys[key] = why
	}
}

// called counts a call that has ended.
func (t *triggers[K]) called(why reason) {
	if !why.first {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first--
}

// uncalled returns the number of marked keys without a call.
func (t *triggers[K]) uncalled() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

// age returns how long ago an event was.
func (t *triggers[K]) age(event time.Duration, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.began) - event
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

func (t *triggers[K]) putLocked(why reason, keys ...K) {
	t.used.Store(true)
	if t.keys == nil {
		t.keys = map[K]reason{}
	}
	for _, key := range keys {
		if have, ok := t.keys[key]; ok || len(t.keys) < maxTriggered {
			t.keys[key] = reason{have.mask | why.mask, earlier(have.event, why.event), have.first || why.first}
		}
	}
	t.most = max(t.most, len(t.keys))
}

// shrinkLocked gives the memory of a burst back, such as that of the first list, because a
// map keeps it.
func (t *triggers[K]) shrinkLocked() {
	if n := len(t.keys); t.most > minTriggered && n <= t.most/8 {
		keys := make(map[K]reason, n)
		maps.Copy(keys, t.keys)
		t.keys, t.most = keys, n
	}
}

// take returns the reason of the key, and forgets it.
func (t *triggers[K]) take(key K) reason {
	if !t.used.Load() {
		return reason{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	why := t.keys[key]
	if why.mask != 0 {
		delete(t.keys, key)
		t.shrinkLocked()
	}
	return why
}

// restore undoes a take, because the key does not run yet.
func (t *triggers[K]) restore(why reason, key K) {
	if why.mask == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.putLocked(why, key)
	if _, ok := t.keys[key]; !ok && why.first {
		t.first-- // there was no space for it
	}
}

// changed reports whether an event of a mask can report a change.
func (t *triggers[K]) changed(mask uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, what := range t.kinds {
		if mask&(1<<n) != 0 && !what.same {
			return true
		}
	}
	return false
}

// text returns the names of a mask. The name of an empty mask depends on retried.
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
