package queue

import (
	"maps"
	"strings"
)

// A bounded number of groups, levels and lanes without keys is kept, so that adding and
// removing a key in turn does not allocate. The oldest are dropped first.
const (
	maxIdleGroups = 2048
	maxIdleName   = 512 // bytes; a group with a longer name is not kept
	maxIdleLevels = 64
	maxLanes      = 8
)

// groups holds the groups of all keys, and some without keys. Number 0 is the group of all
// keys if Config.Group is nil.
type groups struct {
	all    []*group // by number; nil if the group was dropped
	spare  []uint32 // the numbers of dropped groups
	byName table[string, uint32]
	idle   idlers[*group] // the groups without keys
}

type group struct {
	name  string
	keys  uint32 // the number of its keys in the queue
	nLane uint32
	lanes *lane              // a list of up to maxLanes lanes, the newest first
	extra *table[int, *lane] // more lanes by priority, while they have keys; nil until the first
	idler idler[*group]
}

// lane holds the ready keys of one group and priority, the oldest first.
type lane struct {
	priority   int
	group      *group
	level      *level
	sibling    *lane // next in the group's list
	keys       list
	next, prev *lane // in the level's ring; nil without keys
	age        int64 // the order of the lane in the level's ages
	place      int32 // in ages
	extra      bool  // it is in the group's extra
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
	// The name is often a part of the key, and would keep the whole key in memory.
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

// leave counts a key that leaves the queue.
func (s *groups) leave(i uint32) {
	g := s.all[i]
	if g.keys--; g.keys > 0 {
		return
	}
	if len(g.name) > maxIdleName {
		s.drop(g)
		return
	}
	s.idle.enter(&g.idler)
	if s.idle.n > maxIdleGroups {
		s.drop(s.idle.oldest())
	}
}

// drop forgets a group without keys.
func (s *groups) drop(g *group) {
	i := s.byName.all[g.name]
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

// makeRoom drops the oldest lane without keys from the list.
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

// idlers lists the groups or levels without keys, the oldest first. Most of them get a key
// again soon. They stay in the list until oldest reaches them, because their removal at once
// took 4 % of the time of a key in the queue.
type idlers[T any] struct {
	head, tail *idler[T]
	n          int // the number of idle groups or levels
}

// idler is a part of a group or level.
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

// oldest removes and returns the oldest idle group or level. The list must have one.
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

// table is a map that frees its memory after a burst, which a Go map does not.
type table[K comparable, V any] struct {
	all  map[K]V // nil if it is empty
	peak int     // the most entries since all was made
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
