package reconcile

import (
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	// snapshotKeys is the number of keys of each state that a State lists.
	snapshotKeys = 100

	// snapshotText bounds the texts in a State, in bytes.
	snapshotText = 512
)

// State is the state of a Controller at one moment: the number of keys in each state, and
// some of the keys. The type is an alias of an unnamed struct, so that other packages can
// declare an interface with Snapshot without an import of this package.
type State = struct {
	Name    string `json:"name"`
	Running bool   `json:"running"` // Run runs; without it there are no keys
	Workers int    `json:"workers"` // of Run
	Busy    int    `json:"busy"`    // workers with a call
	Gated   int    `json:"gated"`   // keys that wait for the Gate
	Parked  int    `json:"parked"`  // keys that MaxAttempts parked
	Hot     int    `json:"hot"`     // keys that ran too often in the last seconds; 100 means 100 or more
	Failing int    `json:"failing"` // keys whose last call did not succeed, without parked and terminal ones

	// Keys lists at most 100 keys of each state, in no order.
	Keys []KeyState `json:"keys,omitempty"`
}

// KeyState is the state of one key.
type KeyState = struct {
	Key      string    `json:"key"`                // as fmt.Sprint formats it, cut to 512 bytes
	State    string    `json:"state,omitempty"`    // "gated", "parked", "hot", "failing" or ""; the first that is true
	Since    time.Time `json:"since,omitzero"`     // of a gated key: when the wait began
	Reason   string    `json:"reason,omitempty"`   // of a gated key: the error of the Gate's EnsureReady
	Attempts int       `json:"attempts,omitempty"` // calls since the last success
	Class    string    `json:"class,omitempty"`    // of the last call, if it did not succeed
	Triggers []string  `json:"triggers,omitempty"` // events since the last call
}

// Snapshot returns the state of the loop, for debug pages. It lists at most 400 keys and
// cuts long texts, so its size is bounded.
func (c *Controller[K]) Snapshot() State { return c.snapshot(nil) }

// SnapshotOf is like Snapshot, but lists the given keys, in their order, and no others. If
// a key is unknown, only Key is set.
func (c *Controller[K]) SnapshotOf(keys ...K) State { return c.snapshot(append([]K{}, keys...)) }

func (c *Controller[K]) snapshot(only []K) State {
	s := State{Name: c.Name}
	r := c.current.Load()
	if r == nil {
		return s
	}
	keys := r.look(&s, only)
	reasons, _ := r.gate.(interface{ EnsureReady(key K) error })
	for i, key := range keys {
		k := &s.Keys[i]
		k.Key = kube.Printable(fmt.Sprint(key), snapshotText)
		k.Triggers = c.triggers.Pending(key)
		if k.State == "gated" && reasons != nil {
			if err := reasons.EnsureReady(key); err != nil {
				k.Reason = kube.Printable(err.Error(), snapshotText)
			}
		}
	}
	return s
}

// look returns the part of the state that needs the lock, with all but the texts. It calls
// no code of the caller.
func (r *run[K]) look(s *State, only []K) (keys []K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.began)
	s.Running, s.Workers, s.Busy = true, len(r.slots), r.busy
	s.Gated, s.Parked, s.Failing = r.waiting, len(r.spent), len(r.streaks)
	for key := range r.guard.Keys() {
		if r.guard.Has(key, now) {
			s.Hot++
		}
	}
	list := func(key K) {
		st := r.streaks[key]
		k := KeyState{Attempts: st.attempts, Class: string(st.class)}
		w, gated := r.parked[key]
		_, parked := r.spent[key]
		switch {
		case gated && w.counted:
			k.State, k.Since = "gated", r.began.Add(w.since)
		case parked:
			k.State = "parked"
		case r.guard.Has(key, now):
			k.State = "hot"
		case st.attempts > 0:
			k.State = "failing"
		}
		s.Keys = append(s.Keys, k)
		keys = append(keys, key)
	}
	if only != nil {
		for _, key := range only {
			list(key)
		}
		return keys
	}
	// A key in two states is listed in the first.
	n := 0
	for key, w := range r.parked {
		if n == snapshotKeys {
			break
		}
		if w.counted {
			list(key)
			n++
		}
	}
	n = 0
	for key := range r.spent {
		if n == snapshotKeys {
			break
		}
		list(key)
		n++
	}
	for key := range r.guard.Keys() {
		if _, gated := r.parked[key]; !gated && r.guard.Has(key, now) {
			list(key)
		}
	}
	n = 0
	for key := range r.streaks {
		if n == snapshotKeys {
			break
		}
		n++
		if _, gated := r.parked[key]; !gated && !r.guard.Has(key, now) {
			list(key)
		}
	}
	return keys
}
