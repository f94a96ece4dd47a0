package queue

import (
	"fmt"
	"strings"
	"time"

	"github.com/controllerkit/controllerkit"
)

const (
	// snapshotKeys is the number of keys of each state that a snapshot lists.
	snapshotKeys = 100

	// snapshotText is the length of a key and of a group in a snapshot, in bytes.
	snapshotText = 512
)

// Snapshot returns the state of the queue, for logs and debug pages. All but Attempts is
// from one moment. A snapshot lists at most 300 keys and cuts long texts, so its time and
// size are bounded.
func (q *Queue[K]) Snapshot() controllerkit.QueueState { return q.text(q.snapshot(nil)) }

// SnapshotOf is like Snapshot, but lists those of the given keys that the queue has, in
// the given order, and no others. It holds the lock while it looks them up.
func (q *Queue[K]) SnapshotOf(keys ...K) controllerkit.QueueState {
	return q.text(q.snapshot(append([]K{}, keys...)))
}

// text adds the part of the state that needs code of the caller, without the lock.
func (q *Queue[K]) text(s controllerkit.QueueState, keys []K) controllerkit.QueueState {
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
func (q *Queue[K]) snapshot(only []K) (s controllerkit.QueueState, keys []K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s = controllerkit.QueueState{
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
		s.Keys, keys = make([]controllerkit.QueueKey, 0, room), make([]K, 0, room)
	}
	q.stampRunningLocked()
	now, wall := q.now(), time.Now()
	at := func(t int64) time.Time { return wall.Add(time.Duration(t - now)) }
	list := func(r ref, e *entry, k controllerkit.QueueKey) {
		k.Group, k.Priority = q.ready.groups.all[e.group].name, e.priority
		s.Keys = append(s.Keys, k)
		keys = append(keys, q.held.Key(r))
	}
	running := func(r ref, e *entry) {
		k := controllerkit.QueueKey{State: "running", Since: at(e.order), Again: e.then == thenReady}
		if e.then == thenDelayed {
			k.Until = at(e.at)
		}
		list(r, e, k)
	}
	ready := func(r ref, e *entry) {
		k := controllerkit.QueueKey{State: "ready"}
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
				list(r, e, controllerkit.QueueKey{State: "delayed", Until: at(e.at)})
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
		list(d.ref, q.held.At(d.ref), controllerkit.QueueKey{State: "delayed", Until: at(d.at)})
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
