package queue

import "maps"

// Groups and levels without keys are kept, so that keys that come and go do not
// make them anew each time; no more than so many, so that those of a burst are
// not kept for ever.
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
	byName map[string]uint32
	peak   int // most groups since byName was made
	idle   int // groups without keys
}

type group struct {
	name  string
	keys  int   // how many keys of it the queue holds
	lanes *lane // as a list: the first maxLanes priorities that were used
	nLane int
	extra map[int]*lane // by priority: others, while they have keys
}

// lane holds the ready keys of one group and priority, first come first served.
type lane struct {
	priority   int
	group      *group
	level      *level
	sibling    *lane // next in the group's list
	extra      bool  // is in the group's extra
	keys       list
	next, prev *lane // in the level's ring, nil while it has no keys
	age        int64 // by which the lane stands in the level's ages
	place      int32 // in ages
}

func newGroups() groups {
	return groups{all: []*group{{}}, byName: map[string]uint32{}}
}

// enter counts a key of the named group and returns the group's number.
func (s *groups) enter(name string) uint32 {
	i, ok := s.byName[name]
	if ok {
		g := s.all[i]
		if g.keys == 0 {
			s.idle--
		}
		g.keys++
		return i
	}
	g := &group{name: name, keys: 1}
	if n := len(s.spare); n > 0 {
		i, s.spare = s.spare[n-1], s.spare[:n-1]
		s.all[i] = g
	} else {
		i = uint32(len(s.all))
		s.all = append(s.all, g)
	}
	s.byName[name] = i
	s.peak = max(s.peak, len(s.byName))
	return i
}

// leave is called when the queue forgets a key of a group.
func (s *groups) leave(i uint32) {
	g := s.all[i]
	if g.keys--; g.keys > 0 {
		return
	}
	if s.idle++; s.idle <= maxIdleGroups {
		return
	}
	s.idle--
	s.all[i] = nil
	s.spare = append(s.spare, i)
	delete(s.byName, g.name)
	if n := len(s.byName); s.peak > 4*n { // a map never gives back room
		kept := make(map[string]uint32, n)
		maps.Copy(kept, s.byName)
		s.byName, s.peak = kept, n
	}
}

func (g *group) lane(priority int) *lane {
	for ln := g.lanes; ln != nil; ln = ln.sibling {
		if ln.priority == priority {
			return ln
		}
	}
	return g.extra[priority]
}

func (g *group) add(ln *lane) {
	if g.nLane < maxLanes {
		g.nLane++
		ln.sibling, g.lanes = g.lanes, ln
		return
	}
	if g.extra == nil {
		g.extra = map[int]*lane{}
	}
	ln.extra = true
	g.extra[ln.priority] = ln
}

func (g *group) drop(ln *lane) {
	if delete(g.extra, ln.priority); len(g.extra) == 0 {
		g.extra = nil
	}
}
