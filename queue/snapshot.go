package queue

import (
	"fmt"
	"strings"
	"time"
)

const (
	// snapshotKeys is the number of keys of each state that a State lists.
	snapshotKeys = 100

	// snapshotText is the length of a key and of a group in a State, in bytes.
	snapshotText = 512
)

// State is the state of a queue at one moment: the number of keys in each state, and the
// first keys. The type is an alias of an unnamed struct, so that other packages can declare
// an interface with Snapshot without an import of this package.
type State = struct {
	Name         string `json:"name,omitempty"`
	Ready        int    `json:"ready"`
	Running      int    `json:"running"`
	Delayed      int    `json:"delayed"` // without running keys
	ShuttingDown bool   `json:"shuttingDown,omitempty"`

	// Keys lists at most 100 keys of each state. First come the keys that run longest.
	// Ready keys follow in the order of Get, with MaxWait ignored. Delayed keys come last,
	// the shortest delay first.
	Keys []KeyState `json:"keys,omitempty"`
}

// KeyState is the state of one key.
type KeyState = struct {
	Key      string    `json:"key"`             // as fmt.Sprint formats it, cut to 512 bytes
	State    string    `json:"state"`           // "running", "ready" or "delayed"
	Group    string    `json:"group,omitempty"` // cut to 512 bytes
	Priority int       `json:"priority"`
	Since    time.Time `json:"since,omitzero"`  // when it started, or with metrics became ready; without metrics up to 1 s late
	Until    time.Time `json:"until,omitzero"`  // when its delay ends; zero without a delay
	Again    bool      `json:"again,omitempty"` // it runs, and becomes ready at Done
	Attempts int       `json:"attempts"`        // NumRequeues
}

// Snapshot returns the state of the queue, for logs and debug pages. All but Attempts is
// from one moment. A snapshot lists at most 300 keys and cuts long texts, so its time and
// size are bounded.
func (q *Queue[K]) Snapshot() State { return q.text(q.snapshot(nil)) }

// SnapshotOf is like Snapshot, but lists those of the given keys that the queue has, in
// the given order, and no others. It holds the lock while it looks them up.
func (q *Queue[K]) SnapshotOf(keys ...K) State {
	return q.text(q.snapshot(append([]K{}, keys...)))
}

// text adds the part of the state that needs code of the caller, without the lock.
func (q *Queue[K]) text(s State, keys []K) State {
	for i, key := range keys {
		s.Keys[i].Key = cut(fmt.Sprint(key))
		s.Keys[i].Group = cut(s.Keys[i].Group)
		s.Keys[i].Attempts = q.limiter.NumRequeues(key)
	}
	return s
}

// cut returns text as valid UTF-8 of at most snapshotText bytes.
func cut(text string) string {
	const ellipsis = "…"
	if len(text) <= snapshotText {
		return strings.ToValidUTF8(text, "?")
	}
	// At most one byte replaces another: the text does not grow. An incomplete rune at
	// the end is replaced too.
	return strings.ToValidUTF8(text[:snapshotText-len(ellipsis)], "?") + ellipsis
}

// snapshot returns the part of the state that needs the lock, with the first keys if only
// is nil. It does not call code of the caller, which formats keys and counts failures.
func (q *Queue[K]) snapshot(only []K) (s State, keys []K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s = State{
		Name:         q.name,
		Ready:        q.ready.n,
		Running:      q.running.n,
		Delayed:      q.delays.Len(),
		ShuttingDown: q.stopping,
	}
	room := min(s.Running, snapshotKeys) + min(s.Ready, snapshotKeys) + min(s.Delayed, snapshotKeys)
	if only != nil {
		room = len(only)
	}
	if room > 0 { // at once, because workers wait
		s.Keys, keys = make([]KeyState, 0, room), make([]K, 0, room)
	}
	q.stampRunningLocked()
	now, wall := q.now(), time.Now()
	at := func(t int64) time.Time { return wall.Add(time.Duration(t - now)) }
	list := func(r ref, e *entry, k KeyState) {
		k.Group, k.Priority = q.ready.groups.all[e.group].name, e.priority
		s.Keys = append(s.Keys, k)
		keys = append(keys, q.held.Key(r))
	}
	running := func(r ref, e *entry) {
		k := KeyState{State: "running", Since: at(e.order), Again: e.then == thenReady}
		if e.then == thenDelayed {
			k.Until = at(e.at)
		}
		list(r, e, k)
	}
	ready := func(r ref, e *entry) {
		k := KeyState{State: "ready"}
		if q.metrics != nil {
			k.Since = at(e.at)
		}
		list(r, e, k)
	}
	if only != nil {
		for _, key := range only {
			r, _ := q.held.Find(key, q.held.Hash(key))
			if r == 0 {
				continue
			}
			switch e := q.held.At(r); e.state {
			case stateRunning:
				running(r, e)
			case stateReady:
				ready(r, e)
			case stateDelayed:
				list(r, e, KeyState{State: "delayed", Until: at(e.at)})
			}
		}
		return s, keys
	}
	for r := q.running.head; r != 0 && len(keys) < snapshotKeys; {
		e := q.held.At(r)
		running(r, e)
		r = e.next
	}
	for _, r := range q.ready.first(snapshotKeys) {
		ready(r, q.held.At(r))
	}
	for _, d := range q.delays.Least(snapshotKeys) {
		list(d.ref, q.held.At(d.ref), KeyState{State: "delayed", Until: at(d.at)})
	}
	return s, keys
}

// first returns the first n keys in the order of Get, with MaxWait ignored.
func (r *readySet) first(n int) (first []ref) {
	if r.top == nil {
		return nil
	}
	for _, l := range append([]*level{r.top}, r.lower.Least(n)...) {
		// The next key of each lane, for as many lanes as n has room for.
		var cursors []ref
		for ln := l.turn; len(first)+len(cursors) < n; ln = ln.next {
			cursors = append(cursors, ln.keys.head)
			if ln.next == l.turn {
				break
			}
		}
		for len(cursors) > 0 && len(first) < n {
			left := cursors[:0]
			for _, key := range cursors {
				if len(first) < n {
					first = append(first, key)
				}
				if key = r.entries.At(key).next; key != 0 {
					left = append(left, key)
				}
			}
			cursors = left
		}
	}
	return first
}
