package consistency

import (
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// wakes says which waiting owners an event can concern: with 10,000 of them, to look
// at each took 2.9 ms an event. An owner that waits for a version is looked at when
// that is reached, any other at each event. Entries of owners that wait no longer are
// dropped when they come up, or by refileLocked.
type wakes struct {
	versions map[schema.GroupResource]*versions
	any      []types.NamespacedName
}

// versions is a heap, the lowest first.
type versions []awaited

type awaited struct {
	rv    string
	owner types.NamespacedName
}

func (v versions) Len() int           { return len(v) }
func (v versions) Less(i, j int) bool { return !reached(v[i].rv, v[j].rv) }
func (v versions) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *versions) Push(x any)        { *v = append(*v, x.(awaited)) }
func (v *versions) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	(*v)[last] = awaited{}
	*v = (*v)[:last]
	return x
}

// reached reports whether read is known to be at least wrote.
func reached(read, wrote string) bool {
	order, err := resourceversion.CompareResourceVersion(read, wrote)
	return err == nil && order >= 0
}

func (w *wakes) entries() int {
	n := len(w.any)
	for _, of := range w.versions {
		n += len(*of)
	}
	return n
}

// fileLocked makes sure that an owner is looked at when it may be ready. lag is what it
// waits for.
func (s *Store) fileLocked(owner types.NamespacedName, lag StaleError) {
	if lag.WroteRV == "" {
		s.wakes.any = append(s.wakes.any, owner)
		return
	}
	of := s.wakes.versions[lag.GroupResource]
	if of == nil {
		of = &versions{}
		s.wakes.versions[lag.GroupResource] = of
	}
	heap.Push(of, awaited{rv: lag.WroteRV, owner: owner})
}

// refileLocked drops the entries of owners that wait no longer, once they are many.
func (s *Store) refileLocked() {
	if s.wakes.entries() <= 2*len(s.waiters)+sweepMin {
		return
	}
	s.wakes.any = nil
	clear(s.wakes.versions)
	for owner := range s.waiters {
		lag, _ := s.lagLocked(owner)
		s.fileLocked(owner, lag)
	}
}

// takeReachedLocked removes the waiters that an event lets go, to be called without
// the lock: once taken nobody else can call them.
func (s *Store) takeReachedLocked(now time.Time) (taken []*waiter) {
	n := len(s.wakes.any)
	for i := range n { // who still waits is added behind
		taken = s.takeLocked(taken, s.wakes.any[i], now)
	}
	s.wakes.any = slices.Delete(s.wakes.any, 0, n)
	for resource, of := range s.wakes.versions {
		store := s.stores[resource]
		if store == nil {
			continue // AddInformer has failed since
		}
		read := store.version()
		for len(*of) > 0 && reached(read, (*of)[0].rv) {
			taken = s.takeLocked(taken, heap.Pop(of).(awaited).owner, now)
		}
	}
	s.refileLocked()
	s.stopIdleTimerLocked()
	return taken
}

// takeAllLocked looks at all waiters, for whom time can be up too.
func (s *Store) takeAllLocked(now time.Time) (taken []*waiter) {
	s.wakes.any = s.wakes.any[:0]
	clear(s.wakes.versions)
	for owner := range s.waiters {
		taken = s.takeLocked(taken, owner, now)
	}
	s.stopIdleTimerLocked()
	return taken
}

// takeLocked adds the owner's waiters that need not wait any more to taken. It files
// the owner anew if there are others.
func (s *Store) takeLocked(taken []*waiter, owner types.NamespacedName, now time.Time) []*waiter {
	list := s.waiters[owner]
	if len(list) == 0 {
		return taken // an entry that is left from before
	}
	var lag StaleError
	left := list[:0]
	for _, w := range list {
		ok, missing, next := s.mayGoLocked(owner, w, now)
		if ok {
			taken = append(taken, w)
			continue
		}
		lag, left = missing, append(left, w)
		if !next.IsZero() && next.Before(s.due) {
			s.armLocked(now, next)
		}
	}
	clear(list[len(left):])
	if len(left) == 0 {
		delete(s.waiters, owner)
		return taken
	}
	s.waiters[owner] = left
	s.fileLocked(owner, lag)
	return taken
}
