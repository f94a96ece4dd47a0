package queue

import (
	"slices"
	"time"

	"github.com/controllerkit/controllerkit/queue/internal/heap"
)

const (
	// share is the number of calls of Get of which one serves the lower priorities, if
	// they have waited for longer than MaxWait.
	share = 4

	// precision is the part of MaxWait by which a wait may be too long.
	precision = 32
)

// readySet holds the ready keys in the order of Get.
type readySet struct {
	entries *entries // of the queue
	groups  groups
	n       int // the number of ready keys
	maxWait int64

	top    *level             // the highest level with keys, or nil
	lower  heap.Heap[*level]  // the other levels with keys, the highest first
	oldest heap.Heap[*level]  // the same levels, the one with the oldest key first
	levels table[int, *level] // by priority; some have no keys
	idle   idlers[*level]     // the levels without keys

	seq    int64 // the number of the last key that became ready
	served int   // calls of Get since a lower priority had its turn, up to share

	// The numbers of the keys show which keys have waited too long, so that keys need no
	// time. A Get that passes over lower priorities records the time and the last number.
	// When the record is older than maxWait, all keys up to its number have waited too long.
	marks   []mark
	overdue int64 // keys up to this number have waited longer than maxWait
}

type mark struct{ seq, at int64 }

// level is a priority with ready keys.
type level struct {
	priority int
	turn     *lane            // the next lane in the ring of the lanes with keys, or nil
	ages     heap.Heap[*lane] // the same lanes, the one with the oldest key first
	age      int64            // the order of the level in oldest
	places   [2]int32         // in lower and in oldest
	dropped  bool             // no longer in levels
	idler    idler[*level]
}

func newReadySet(entries *entries, maxWait time.Duration) readySet {
	return readySet{
		entries: entries,
		groups:  newGroups(),
		maxWait: int64(maxWait),
		lower: heap.Heap[*level]{
			Less:  func(a, b *level) bool { return a.priority > b.priority },
			Place: func(l *level) *int32 { return &l.places[0] },
		},
		oldest: heap.Heap[*level]{
			Less:  func(a, b *level) bool { return a.age < b.age },
			Place: func(l *level) *int32 { return &l.places[1] },
		},
	}
}

// push adds a key to the end of its lane.
func (r *readySet) push(key ref, e *entry) {
	ln := r.lane(e)
	r.n++
	r.seq++
	e.order = r.seq
	ln.keys.push(*r.entries, key, e)
	if ln.keys.n > 1 {
		return
	}
	l := ln.level
	first := l.turn == nil
	l.join(ln)
	ln.age = e.order
	l.ages.Push(ln)
	if first {
		r.idle.leave(&l.idler)
		r.rise(l)
	}
}

// rise adds a level that has its first key.
func (r *readySet) rise(l *level) {
	switch {
	case r.top == nil:
		r.top = l
		return
	case l.priority > r.top.priority:
		l, r.top = r.top, l
	}
	l.age = l.ages.First().age
	r.lower.Push(l)
	r.oldest.Push(l)
}

// fall removes a level that has lost its last key.
func (r *readySet) fall(l *level) {
	if l == r.top {
		r.top = nil
		if r.lower.Len() == 0 {
			return
		}
		l = r.lower.First()
		r.top = l
	}
	r.lower.Remove(l)
	r.oldest.Remove(l)
}

func (r *readySet) remove(e *entry) {
	r.removeFrom(r.lane(e), e)
}

func (r *readySet) removeFrom(ln *lane, e *entry) {
	r.n--
	ln.keys.remove(*r.entries, e)
	if ln.keys.n > 0 {
		return
	}
	l := ln.level
	l.leave(ln)
	l.ages.Remove(ln)
	if ln.extra {
		ln.group.extra.remove(ln.priority)
	}
	if l.turn == nil {
		r.fall(l)
		r.release(l)
	}
}

// next removes and returns the next key. It is the next group's key of the highest priority,
// or, in one call of four, of the lower priority with the oldest key, if that key has waited
// too long.
func (r *readySet) next(now int64) (key ref, e *entry) {
	l := r.top
	if r.served < share { // an int of 32 bits could overflow
		r.served++
	}
	if r.lower.Len() > 0 && r.maxWait > 0 {
		r.mark(now)
		if r.served >= share && r.overdue > 0 {
			if low := r.oldestLower(); low.age <= r.overdue {
				l, r.served = low, 0
			}
		}
	}
	ln := l.turn
	l.turn = ln.next
	key = ln.keys.head
	e = r.entries.At(key)
	r.removeFrom(ln, e)
	return key, e
}

// oldestLower returns the level with the oldest key, without the highest level. It corrects
// the ages of levels and lanes, which are not updated when a key leaves. An age is therefore
// too old at times, but never too young.
func (r *readySet) oldestLower() *level {
	for {
		l := r.oldest.First()
		age := r.oldestOf(l)
		if age == l.age {
			return l
		}
		l.age = age
		r.oldest.Fix(l)
	}
}

// oldestOf returns the number of a level's oldest key.
func (r *readySet) oldestOf(l *level) int64 {
	for {
		ln := l.ages.First()
		age := r.entries.At(ln.keys.head).order
		if age == ln.age {
			return age
		}
		ln.age = age
		l.ages.Fix(ln)
	}
}

// mark records that the present keys were passed over.
func (r *readySet) mark(now int64) {
	expired := 0
	for expired < len(r.marks) && now-r.marks[expired].at > r.maxWait {
		r.overdue = r.marks[expired].seq
		expired++
	}
	if expired > 0 {
		r.marks = slices.Delete(r.marks, 0, expired)
	}
	if n := len(r.marks); n == 0 || now-r.marks[n-1].at >= max(r.maxWait/precision, 1) {
		r.marks = append(r.marks, mark{seq: r.seq, at: now})
	}
}

// lane returns the lane of an entry's group and priority.
func (r *readySet) lane(e *entry) *lane {
	ln := r.groups.all[e.group].lane(e.priority)
	if ln != nil && !ln.level.dropped {
		return ln
	}
	return r.makeLane(e, ln)
}

// makeLane makes a lane, or a new level for ln if its level was dropped.
func (r *readySet) makeLane(e *entry, ln *lane) *lane {
	if ln == nil {
		g := r.groups.all[e.group]
		ln = &lane{priority: e.priority, group: g}
		g.add(ln)
	}
	ln.level = r.level(e.priority)
	return ln
}

// level returns the level of a priority. It makes the level if it does not exist.
func (r *readySet) level(priority int) *level {
	l := r.levels.all[priority]
	if l == nil {
		l = &level{priority: priority, ages: heap.Heap[*lane]{
			Less:  func(a, b *lane) bool { return a.age < b.age },
			Place: func(ln *lane) *int32 { return &ln.place },
		}}
		l.idler.is = l
		r.levels.put(priority, l)
		r.idle.enter(&l.idler)
	}
	return l
}

// release keeps a level that has lost its last key, and drops the oldest of too many.
func (r *readySet) release(l *level) {
	r.idle.enter(&l.idler)
	if r.idle.n <= maxIdleLevels {
		return
	}
	l = r.idle.oldest()
	l.dropped = true
	r.levels.remove(l.priority)
}

// join adds a lane to the end of the ring, just before the next lane.
func (l *level) join(ln *lane) {
	if l.turn == nil {
		l.turn, ln.next, ln.prev = ln, ln, ln
		return
	}
	ln.next, ln.prev = l.turn, l.turn.prev
	ln.prev.next, ln.next.prev = ln, ln
}

func (l *level) leave(ln *lane) {
	switch {
	case ln.next == ln:
		l.turn = nil
	case l.turn == ln:
		l.turn = ln.next
	}
	ln.prev.next, ln.next.prev = ln.next, ln.prev
	ln.next, ln.prev = nil, nil
}
