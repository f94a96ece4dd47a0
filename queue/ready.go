package queue

import (
	"cmp"
	"slices"
	"time"
)

// share: of so many Gets one serves the lower priorities when they have waited
// longer than MaxWait.
const share = 4

// level holds the ready keys of one priority.
type level[K comparable] struct {
	priority int
	turn     *group[K]            // a ring of the groups with ready keys; this one is next
	only     group[K]             // the one group when Config.Group is nil
	groups   map[string]*group[K] // the groups otherwise

	// Both together hold every key of the level, for the age of the oldest.
	// Keys that became ready at this priority are in ages, which is in order by
	// itself; keys raised to it come in any order.
	ages   list[K]
	raised timeHeap[K]
}

// group holds the ready keys of one group and priority, first come first served.
type group[K comparable] struct {
	level      *level[K]
	name       string
	keys       list[K]
	next, prev *group[K]
}

// readyLocked makes ready a key that counts as newly added.
func (q *Queue[K]) readyLocked(e *entry[K], now time.Time) {
	e.added = now
	q.metrics.add()
	q.enqueueLocked(e, now)
}

// enqueueLocked puts a key at the end of its group and wakes one Get.
func (q *Queue[K]) enqueueLocked(e *entry[K], now time.Time) {
	e.state, e.at = stateReady, now
	g := q.groupLocked(e.priority, e.name)
	g.keys.push(e)
	g.level.ages.push(e)
	e.group = g
	q.ready++
	q.work.Signal()
}

// raiseLocked moves a ready key to the end of a higher priority. How long it has
// been waiting stays with it.
func (q *Queue[K]) raiseLocked(e *entry[K], priority int) {
	q.removeReadyLocked(e)
	e.priority = priority
	g := q.groupLocked(priority, e.name)
	g.keys.push(e)
	g.level.raised.push(e)
	e.group = g
	q.ready++
}

func (q *Queue[K]) removeReadyLocked(e *entry[K]) {
	g := e.group
	l := g.level
	g.keys.remove(e)
	if e.index >= 0 {
		l.raised.remove(e)
	} else {
		l.ages.remove(e)
	}
	e.group = nil
	q.ready--
	if g.keys.n > 0 {
		return
	}
	l.leave(g)
	if g != &l.only {
		delete(l.groups, g.name)
		*g = group[K]{}
		q.freeGroups.put(g)
	}
	if l.turn == nil {
		i, _ := q.findLevelLocked(l.priority)
		q.levels = slices.Delete(q.levels, i, i+1)
		q.freeLevels.put(l)
	}
}

// nextLocked chooses the key to hand out: the one whose group has its turn at
// the highest priority, or, for one Get in four, at the lower priority that
// holds the oldest key if that waited longer than MaxWait. The turn then goes
// to the next group.
func (q *Queue[K]) nextLocked(now time.Time) *entry[K] {
	l := q.levels[0]
	q.served++
	if q.served >= share && q.maxWait > 0 {
		if low := q.oldestLowerLocked(); low != nil && now.Sub(low.oldest()) > q.maxWait {
			l, q.served = low, 0
		}
	}
	g := l.turn
	l.turn = g.next
	return g.keys.head
}

// oldestLowerLocked returns the level below the highest that holds the key that
// has been ready for longest, nil if there is one level only.
func (q *Queue[K]) oldestLowerLocked() (low *level[K]) {
	for _, l := range q.levels[1:] {
		if low == nil || l.oldest().Before(low.oldest()) {
			low = l
		}
	}
	return low
}

// oldest returns since when the level's oldest key is ready.
func (l *level[K]) oldest() time.Time {
	switch {
	case l.ages.head == nil:
		return l.raised[0].at
	case len(l.raised) > 0 && l.raised[0].at.Before(l.ages.head.at):
		return l.raised[0].at
	}
	return l.ages.head.at
}

// findLevelLocked returns where the level of priority is, or belongs.
func (q *Queue[K]) findLevelLocked(priority int) (int, bool) {
	return slices.BinarySearchFunc(q.levels, priority, func(l *level[K], p int) int {
		return cmp.Compare(p, l.priority) // highest first
	})
}

// groupLocked returns the group of a priority and name, made if need be. A new
// group waits until all others of the level had their turn.
func (q *Queue[K]) groupLocked(priority int, name string) *group[K] {
	i, found := q.findLevelLocked(priority)
	if !found {
		l := q.freeLevels.get()
		l.priority, l.ages.link, l.only.level = priority, 1, l
		q.levels = slices.Insert(q.levels, i, l)
	}
	l := q.levels[i]
	g := &l.only
	if q.groupOf != nil {
		if g = l.groups[name]; g == nil {
			if l.groups == nil {
				l.groups = map[string]*group[K]{}
			}
			g = q.freeGroups.get()
			g.level, g.name = l, name
			l.groups[name] = g
		}
	}
	if g.next == nil {
		l.join(g)
	}
	return g
}

// join puts a group at the end of the ring: right before the one whose turn it is.
func (l *level[K]) join(g *group[K]) {
	if l.turn == nil {
		l.turn, g.next, g.prev = g, g, g
		return
	}
	g.next, g.prev = l.turn, l.turn.prev
	g.prev.next, g.next.prev = g, g
}

func (l *level[K]) leave(g *group[K]) {
	if l.turn == g {
		l.turn = g.next
	}
	if g.next == g {
		l.turn = nil
	}
	g.prev.next, g.next.prev = g.next, g.prev
	g.next, g.prev = nil, nil
}

// list is an intrusive list: the links are in the entries, so that adding and
// removing a key anywhere takes constant time and no memory.
type list[K comparable] struct {
	head, tail *entry[K]
	n          int
	link       int // which of an entry's links this list uses
}

type links[K comparable] struct{ next, prev *entry[K] }

func (l *list[K]) push(e *entry[K]) {
	e.links[l.link] = links[K]{prev: l.tail}
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.links[l.link].next = e
	}
	l.tail = e
	l.n++
}

func (l *list[K]) remove(e *entry[K]) {
	at := e.links[l.link]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[l.link].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[l.link].prev = at.prev
	}
	e.links[l.link] = links[K]{}
	l.n--
}

// pool keeps what was released for reuse, so that a queue in steady use does
// not allocate; no more than so many, so that a burst is not kept for ever.
type pool[T any] struct{ free []*T }

const poolSize = 1024

func (p *pool[T]) get() *T {
	n := len(p.free)
	if n == 0 {
		return new(T)
	}
	t := p.free[n-1]
	p.free[n-1] = nil
	p.free = p.free[:n-1]
	return t
}

func (p *pool[T]) put(t *T) {
	if len(p.free) < poolSize {
		p.free = append(p.free, t)
	}
}
