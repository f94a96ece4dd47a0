package queue

import (
	"maps"
	"strings"
)

// Groups, levels and lanes without keys are kept, so that keys that come and go
// do not make them anew each time; no more than so many, so that those of a burst
// are not kept for ever. Those that are known for longest go first.
const (
	maxIdleGroups = 2048
	maxIdleLevels = 64
	maxLanes      = 8
)

// groups are the groups of all keys that the queue holds, and some without keys.
// Number 0 is the one of all keys when Config.Group is nil.
type groups struct {
	all    []*group // nil where one was dropped
	spare  []uint32 // the numbers of those
	byName table[string, uint32]
	idle   idlers[*group] // those without keys
}

type group struct {
	name  string
	keys  uint32 // how many keys of it the queue holds
	nLane uint32
	lanes *lane              // as a list: up to maxLanes priorities, the last one that was made first
	extra *table[int, *lane] // by priority: others, while they have keys. nil until there is one
	idler idler[*group]
}

// lane holds the ready keys of one group and priority, first come first served.
type lane struct {
	priority   int
	group      *group
	level      *level
	sibling    *lane // next in the group's list
	keys       list
	next, prev *lane // in the level's ring, nil while it has no keys
	age        int64 // by which the lane stands in the level's ages
	place      int32 // in ages
	extra      bool  // is in the group's extra
}

func newGroups() groups {
	return groups{all: []*group{{}}}
}

// enter counts a key of the named group and returns the group's number.
func (s *groups) enter(name string) uint32 {
	i, ok := s.byName.all[name]
	if ok {
		g := s.all[i]
		if g.keys == 0 {
			s.idle.leave(&g.idler)
		}
		g.keys++
		return i
	}
	// A part of the key, as names often are, would hold on to all of it.
	g := &group{name: strings.Clone(name), keys: 1}
	g.idler.is = g
	if n := len(s.spare); n > 0 {
		i, s.spare = s.spare[n-1], s.spare[:n-1]
		s.all[i] = g
	} else {
		i = uint32(len(s.all))
		s.all = append(s.all, g)
	}
	s.byName.put(g.name, i)
	return i
}

// leave is called when the queue forgets a key of a group.
func (s *groups) leave(i uint32) {
	g := s.all[i]
	if g.keys--; g.keys > 0 {
		return
	}
	s.idle.enter(&g.idler)
	if s.idle.n <= maxIdleGroups {
		return
	}
	g = s.idle.oldest()
	i = s.byName.all[g.name]
	s.all[i] = nil
	s.spare = append(s.spare, i)
	s.byName.remove(g.name)
}

func (g *group) lane(priority int) *lane {
	for ln := g.lanes; ln != nil; ln = ln.sibling {
		if ln.priority == priority {
			return ln
		}
	}
	if g.extra == nil {
		return nil
	}
	return g.extra.all[priority]
}

func (g *group) add(ln *lane) {
	if g.nLane == maxLanes {
		g.makeRoom()
	}
	if g.nLane < maxLanes {
		g.nLane++
		ln.sibling, g.lanes = g.lanes, ln
		return
	}
	if g.extra == nil {
		g.extra = &table[int, *lane]{}
	}
	ln.extra = true
	g.extra.put(ln.priority, ln)
}

// makeRoom drops the oldest lane without keys from the list, if there is one.
func (g *group) makeRoom() {
	var idle **lane
	for at := &g.lanes; *at != nil; at = &(*at).sibling {
		if (*at).keys.n == 0 {
			idle = at
		}
	}
	if idle != nil {
		*idle = (*idle).sibling
		g.nLane--
	}
}

// idlers are groups, or levels, without keys, in the order in which they were listed.
// Most have a key again soon: who does stays in the list, and leaves it when it comes
// up, as a list that is always right took 4 % of a cycle.
type idlers[T any] struct {
	head, tail *idler[T]
	n          int // how many are idle
}

// idler is the place of one of them, which is part of it.
type idler[T any] struct {
	is     T
	next   *idler[T]
	idle   bool
	listed bool
}

func (l *idlers[T]) enter(i *idler[T]) {
	l.n++
	i.idle = true
	if i.listed {
		return
	}
	i.listed = true
	if l.tail == nil {
		l.head = i
	} else {
		l.tail.next = i
	}
	l.tail = i
}

func (l *idlers[T]) leave(i *idler[T]) {
	l.n--
	i.idle = false
}

// oldest takes out the first one; there must be one.
func (l *idlers[T]) oldest() T {
	for {
		i := l.head
		if l.head = i.next; l.head == nil {
			l.tail = nil
		}
		i.next, i.listed = nil, false
		if i.idle {
			l.leave(i)
			return i.is
		}
	}
}

// table is a map that gives back the room of a burst, which a map never does.
type table[K comparable, V any] struct {
	all  map[K]V // nil while it is empty
	peak int     // most entries since all was made
}

func (t *table[K, V]) put(key K, v V) {
	if t.all == nil {
		t.all = map[K]V{}
	}
	t.all[key] = v
	t.peak = max(t.peak, len(t.all))
}

func (t *table[K, V]) remove(key K) {
	delete(t.all, key)
	switch n := len(t.all); {
	case n == 0:
		*t = table[K, V]{}
	case t.peak > 4*n:
		kept := make(map[K]V, n)
		maps.Copy(kept, t.all)
		t.all, t.peak = kept, n
	}
}
