package reconcile

import (
	"fmt"
	"iter"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	// snapshotKeys is the number of keys of each state that a snapshot lists.
	snapshotKeys = 100

	// snapshotText bounds the texts in a snapshot, in bytes.
	snapshotText = 512
)

// Snapshot returns the state of the loop, for debug pages. It lists at most 400 keys and
// cuts long texts, so its size is bounded.
func (c *Controller[K]) Snapshot() controllerkit.LoopState { return c.snapshot(nil) }

// SnapshotOf is like Snapshot, but lists the given keys, in their order, and no others. If
// a key is unknown, only Key is set.
func (c *Controller[K]) SnapshotOf(keys ...K) controllerkit.LoopState {
	return c.snapshot(append([]K{}, keys...))
}

func (c *Controller[K]) snapshot(only []K) controllerkit.LoopState {
	s := controllerkit.LoopState{Name: c.Name}
	r := c.current.Load()
	if r == nil {
		return s
	}
	keys := r.look(&s, only)
	reasons, _ := r.gate.(controllerkit.ReadyEnsurer[K])
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
func (r *run[K]) look(s *controllerkit.LoopState, only []K) (keys []K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.began)
	s.Running, s.Workers, s.Busy = true, len(r.slots), r.busy
	s.Gated, s.Parked, s.Failing = r.waiting, len(r.parked), len(r.streaks)-len(r.parked)
	for key := range r.guard.Keys() {
		if r.guard.Has(key, now) {
			s.Hot++
		}
	}
	list := func(key K) {
		st := r.streaks[key]
		k := controllerkit.LoopKey{Attempts: st.Attempts, Class: st.Result}
		w, gated := r.gated[key]
		_, parked := r.parked[key]
		switch {
		case gated && w.counted:
			k.State, k.Since = "gated", r.began.Add(w.since)
		case parked:
			k.State = "parked"
		case r.guard.Has(key, now):
			k.State = "hot"
		case st.Attempts > 0:
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
	listed := map[K]bool{}
	once := func(key K) { // a key in two states is listed in the first
		if !listed[key] {
			listed[key] = true
			list(key)
		}
	}
	for key := range first(r.gated, func(key K) bool { return r.gated[key].counted }) {
		once(key)
	}
	for key := range first(r.parked, func(K) bool { return true }) {
		once(key)
	}
	for key := range r.guard.Keys() {
		if r.guard.Has(key, now) {
			once(key)
		}
	}
	for key := range first(r.streaks, func(key K) bool { _, parked := r.parked[key]; return !parked }) {
		once(key)
	}
	return keys
}

// first returns the first snapshotKeys keys of a map that fit.
func first[K comparable, V any](m map[K]V, fits func(K) bool) iter.Seq[K] {
	return func(yield func(K) bool) {
		room := snapshotKeys
		for key := range m {
			if !fits(key) {
				continue
			}
			if room--; room < 0 || !yield(key) {
				return
			}
		}
	}
}
