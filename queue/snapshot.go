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
	Since    time.Time `json:"since,omitzero"`  // running or ready: since when
	Until    time.Time `json:"until,omitzero"`  // when its delay ends, if it has one
	Again    bool      `json:"again,omitempty"` // running, and ready right after Done
	Attempts int       `json:"attempts"`        // NumRequeues
}

// Snapshot returns the state of the queue, for logs and debug pages. Everything but Attempts is of one
// moment; Attempts is asked of the rate limiter right after. It lists at most
// 300 keys, so its time and size do not grow with the number of keys.
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
		Ready:        q.ready,
		Running:      q.running.n,
		Delayed:      len(q.delays),
		ShuttingDown: q.stopping,
	}
	list := func(e *entry[K], k KeyState) {
		k.Group, k.Priority = e.name, e.priority
		s.Keys = append(s.Keys, k)
		keys = append(keys, e.key)
	}
	for e := q.running.head; e != nil && len(keys) < snapshotKeys; e = e.links[1].next {
		k := KeyState{State: "running", Since: e.started, Again: e.again}
		if e.later {
			k.Until = e.at
		}
		list(e, k)
	}
	for _, e := range q.firstReadyLocked(snapshotKeys) {
		list(e, KeyState{State: "ready", Since: e.added})
	}
	for _, e := range q.delays.first(snapshotKeys) {
		list(e, KeyState{State: "delayed", Until: e.at})
	}
	return s, keys
}

// firstReadyLocked returns the first n ready keys as they would be handed out,
// starvation apart: by priority, the groups of one taking turns.
func (q *Queue[K]) firstReadyLocked(n int) (first []*entry[K]) {
	for _, l := range q.levels {
		// One cursor for each group, as far as there is room for its first key.
		var cursors []*entry[K]
		for g := l.turn; len(first)+len(cursors) < n; g = g.next {
			cursors = append(cursors, g.keys.head)
			if g.next == l.turn {
				break
			}
		}
		for len(cursors) > 0 && len(first) < n {
			left := cursors[:0]
			for _, e := range cursors {
				if len(first) < n {
					first = append(first, e)
				}
				if e = e.links[0].next; e != nil {
					left = append(left, e)
				}
			}
			cursors = left
		}
	}
	return first
}

// first returns the n earliest entries in order. In a heap the next one is
// always a child of one already taken.
func (h timeHeap[K]) first(n int) (first []*entry[K]) {
	if len(h) == 0 {
		return nil
	}
	edge := timeHeap[K]{h[0]}
	for len(edge) > 0 && len(first) < n {
		next := 0
		for i := range edge {
			if edge.less(i, next) {
				next = i
			}
		}
		e := edge[next]
		first = append(first, e)
		edge[next] = edge[len(edge)-1]
		edge = edge[:len(edge)-1]
		for child := 2*e.index + 1; child <= 2*e.index+2 && child < len(h); child++ {
			edge = append(edge, h[child])
		}
	}
	return first
}
