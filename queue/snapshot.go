package queue

import (
	"fmt"
	"time"
)

// snapshotKeys is how many keys of each of the three kinds a State lists.
const snapshotKeys = 100

// State is what a queue held at one moment: how many keys of each kind, and the
// first of each.
type State struct {
	Name         string `json:"name,omitempty"`
	Ready        int    `json:"ready"`
	Running      int    `json:"running"`
	Delayed      int    `json:"delayed"` // without running keys that have a delay
	ShuttingDown bool   `json:"shuttingDown,omitempty"`

	// Keys are the 100 longest running keys, the next 100 ready ones, in the
	// order in which they would be handed out if no priority waited too long,
	// and the 100 that are delayed for the shortest time, in this order.
	Keys []KeyState `json:"keys,omitempty"`
}

// KeyState is what a queue knew of one key.
type KeyState struct {
	Key      string    `json:"key"`   // as fmt.Sprint prints it
	State    string    `json:"state"` // "running", "ready" or "delayed"
	Group    string    `json:"group,omitempty"`
	Priority int       `json:"priority"`
	Since    time.Time `json:"since,omitzero"`  // running, or ready in a queue with metrics: since when; without metrics up to 1 s late
	Until    time.Time `json:"until,omitzero"`  // when its delay ends, if it has one
	Again    bool      `json:"again,omitempty"` // running, and ready right after Done
	Attempts int       `json:"attempts"`        // NumRequeues
}

// Snapshot returns the state of the queue, for logs and debug pages. Everything
// but Attempts is of one moment; Attempts is asked of the rate limiter right
// after. It lists at most 300 keys, so its time and size do not grow with the
// number of keys.
func (q *Queue[K]) Snapshot() State {
	s, keys := q.snapshot()
	for i, key := range keys {
		s.Keys[i].Key = fmt.Sprint(key)
		s.Keys[i].Attempts = q.limiter.NumRequeues(key)
	}
	return s
}

// snapshot copies what needs the lock; printing keys and asking the limiter does
// not, and is the caller's code.
func (q *Queue[K]) snapshot() (s State, keys []K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s = State{
		Name:         q.name,
		Ready:        q.ready.n,
		Running:      q.running.n,
		Delayed:      q.delays.Len(),
		ShuttingDown: q.stopping,
	}
	q.stampRunningLocked()
	now, wall := q.now(), time.Now()
	at := func(t int64) time.Time { return wall.Add(time.Duration(t - now)) }
	list := func(r ref, e *entry, k KeyState) {
		k.Group, k.Priority = q.ready.groups.all[e.group].name, e.priority
		s.Keys = append(s.Keys, k)
		keys = append(keys, q.held.Key(r))
	}
	for r := q.running.head; r != 0 && len(keys) < snapshotKeys; {
		e := q.held.At(r)
		k := KeyState{State: "running", Since: at(e.order), Again: e.then == thenReady}
		if e.then == thenDelayed {
			k.Until = at(e.at)
		}
		list(r, e, k)
		r = e.next
	}
	for _, r := range q.ready.first(snapshotKeys) {
		e, k := q.held.At(r), KeyState{State: "ready"}
		if q.metrics != nil {
			k.Since = at(e.at)
		}
		list(r, e, k)
	}
	for _, d := range q.delays.Least(snapshotKeys) {
		list(d.ref, q.held.At(d.ref), KeyState{State: "delayed", Until: at(d.at)})
	}
	return s, keys
}

// first returns the first n keys as they would be handed out, starvation apart:
// by priority, the groups of one taking turns.
func (r *readySet) first(n int) (first []ref) {
	if r.top == nil {
		return nil
	}
	for _, l := range append([]*level{r.top}, r.lower.Least(n)...) {
		// One cursor for each lane, as far as there is room for its first key.
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
