// Package triggers remembers why keys are in the queue of a loop: the events that have come
// since the last call of each.
package triggers

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxKinds is the number of kinds of events, which are the bits of a mask. The last
	// bit means every later kind.
	maxKinds = 64

	// maxKeys bounds the number of keys whose events are remembered.
	maxKeys = 1 << 16

	// minKeys is the number of keys whose memory is kept.
	minKeys = 1 << 10
)

// Resync is the source of a key that no event has added.
const Resync = "resync"

// The texts of triggers that no source reports.
const (
	retry   = "retry"
	requeue = "requeue"
	others  = "other"
)

// A Memory remembers the events of the keys that are in a queue. The zero value is empty. It
// is safe for concurrent use.
type Memory[K comparable] struct {
	used     atomic.Bool // Note was called
	expected atomic.Bool // Expect was called

	mu    sync.Mutex   // guards the fields below
	began time.Time    // where the times of events start
	kinds []Trigger    // by bit
	keys  map[K]Reason // of each key since its last call
	most  int          // keys that there were since the map was made
	first int          // keys with Reason.first whose next call has not ended
}

// A Reason is why a key is in the queue.
type Reason struct {
	Mask  uint64        // the triggers, for Text and Changed
	Event time.Duration // when the first that is not Undated came, for Age and Earlier; 0 without one
	Anew  bool          // one showed a new generation of the key's object
	first bool          // one came before Begin
}

// Earlier returns the earlier of two times of events. 0 means no event.
func Earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// A Trigger is a kind of event of a source. If Kind is "", the kind is unknown.
type Trigger struct {
	Source, Kind string
	Same         bool // it reports no change
	Undated      bool // it reports no change, or one of an unknown time, so it is no Event of a Reason
}

// String returns the source and the kind.
func (t Trigger) String() string {
	if t.Kind == "" {
		return t.Source
	}
	return t.Source + " " + t.Kind
}

// Expect makes Text name a key without an event, although no event was noted yet.
func (m *Memory[K]) Expect() { m.expected.Store(true) }

// Note remembers an event of the keys.
func (m *Memory[K]) Note(what Trigger, keys ...K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(m.reasonLocked(what), keys...)
}

// Reason returns the reason of an event of this moment, for Put.
func (m *Memory[K]) Reason(what Trigger) Reason {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reasonLocked(what)
}

// Put remembers an event of the key.
func (m *Memory[K]) Put(why Reason, key K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(why, key)
}

// reasonLocked returns the reason of an event of this moment.
func (m *Memory[K]) reasonLocked(what Trigger) Reason {
	why := Reason{Mask: m.bitLocked(what)}
	m.beginLocked()
	if !what.Undated {
		why.Event = time.Since(m.began)
	}
	return why
}

func (m *Memory[K]) beginLocked() {
	if m.began.IsZero() {
		m.began = time.Now().Add(-1) // no event has the time 0
	}
}

// Begin marks the keys that sources have reported so far, which are those of the first list.
func (m *Memory[K]) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var resyncs uint64
	for n, what := range m.kinds {
		if what.Source == Resync {
			resyncs |= 1 << n
		}
	}
	m.first = 0
	for key, why := range m.keys {
		if why.first = why.Mask&^resyncs != 0; why.first {
			m.first++
		}
		m.keys[key] = why
	}
}

// Called counts a call that has ended.
func (m *Memory[K]) Called(why Reason) {
	if !why.first {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first--
}

// Uncalled returns the number of marked keys without a call.
func (m *Memory[K]) Uncalled() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first
}

// Age returns how long ago an event was.
func (m *Memory[K]) Age(event time.Duration, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.began) - event
}

// bitLocked returns the mask of a trigger.
func (m *Memory[K]) bitLocked(what Trigger) uint64 {
	for n, have := range m.kinds {
		if have == what {
			return 1 << n
		}
	}
	if n := len(m.kinds); n < maxKinds {
		if n == maxKinds-1 {
			what = Trigger{Source: others}
		}
		m.kinds = append(m.kinds, what)
	}
	return 1 << (len(m.kinds) - 1)
}

func (m *Memory[K]) putLocked(why Reason, keys ...K) {
	m.used.Store(true)
	if m.keys == nil {
		m.keys = map[K]Reason{}
	}
	for _, key := range keys {
		if have, ok := m.keys[key]; ok || len(m.keys) < maxKeys {
			m.keys[key] = Reason{have.Mask | why.Mask, Earlier(have.Event, why.Event), have.Anew || why.Anew, have.first || why.first}
		}
	}
	m.most = max(m.most, len(m.keys))
}

// shrinkLocked gives the memory of a burst back, such as that of the first list, because a
// map keeps it.
func (m *Memory[K]) shrinkLocked() {
	if n := len(m.keys); m.most > minKeys && n <= m.most/8 {
		keys := make(map[K]Reason, n)
		maps.Copy(keys, m.keys)
		m.keys, m.most = keys, n
	}
}

// Take returns the reason of the key, and forgets it. The Reason of a key without events is zero.
func (m *Memory[K]) Take(key K) Reason {
	if !m.used.Load() {
		return Reason{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	why, ok := m.keys[key]
	if ok {
		delete(m.keys, key)
		m.shrinkLocked()
	}
	return why
}

// Restore undoes a Take, because the key does not run yet.
func (m *Memory[K]) Restore(why Reason, key K) {
	if why.Mask == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(why, key)
	if _, ok := m.keys[key]; !ok && why.first {
		m.first-- // there was no space for it
	}
}

// Changed reports whether an event of a mask can report a change.
func (m *Memory[K]) Changed(mask uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, what := range m.kinds {
		if mask&(1<<n) != 0 && !what.Same {
			return true
		}
	}
	return false
}

// Text returns the names of a mask. An empty mask is "retry" if retried, or else "requeue". Text
// is nil if neither Note nor Expect was called.
func (m *Memory[K]) Text(mask uint64, retried bool) []string {
	switch {
	case !m.used.Load() && !m.expected.Load():
		return nil
	case mask == 0 && retried:
		return []string{retry}
	case mask == 0:
		return []string{requeue}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for n, what := range m.kinds {
		if mask&(1<<n) != 0 {
			names = append(names, what.String())
		}
	}
	return names
}

// Pending returns the names of the events since the key's last call.
func (m *Memory[K]) Pending(key K) []string {
	if !m.used.Load() {
		return nil
	}
	m.mu.Lock()
	mask := m.keys[key].Mask
	m.mu.Unlock()
	if mask == 0 {
		return nil
	}
	return m.Text(mask, false)
}
