package consistency

import (
	"container/heap"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// wakes orders the waiting keys by the events that can affect them. An event checks a key
// that waits for a version only when the store has reached the version; it checks all
// other keys every time. An entry of a key that no longer waits is dropped when an event
// reaches it, or by refileLocked.
type wakes struct {
	versions map[part]*versions // without empty ones
	any      []types.NamespacedName
}

// versions is a heap with the lowest version first.
type versions []awaited

type awaited struct {
	rv  string
	key types.NamespacedName
}

func (v versions) Len() int           { return len(v) }
func (v versions) Less(i, j int) bool { return !reached(v[i].rv, v[j].rv) }
func (v versions) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *versions) Push(x any)        { *v = append(*v, x.(awaited)) }
func (v *versions) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	*v = slices.Delete(*v, last, last+1)
	return x
}

func (w *wakes) entries() int {
	n := len(w.any)
	for _, of := range w.versions {
		n += len(*of)
	}
	return n
}

// fileLocked adds an entry for a key that lacks what lag describes.
func (s *Store) fileLocked(key types.NamespacedName, lag staleError) {
	if lag.WroteRV == "" {
		s.wakes.any = append(s.wakes.any, key)
		return
	}
	p := part{lag.GroupResource, lag.Namespace}
	of := s.wakes.versions[p]
	if of == nil {
		of = &versions{}
		s.wakes.versions[p] = of
	}
	heap.Push(of, awaited{rv: lag.WroteRV, key: key})
}

// refileLocked rebuilds the entries once most belong to keys that no longer wait.
func (s *Store) refileLocked() {
	if s.wakes.entries() <= 2*len(s.waiters)+sweepMin {
		return
	}
	s.wakes.any = nil
	clear(s.wakes.versions)
	for key := range s.waiters {
		lag, _ := s.lagLocked(key)
		s.fileLocked(key, lag)
	}
}

// takeReachedLocked removes and returns the waiters whose wait an event has ended. The
// caller calls them without the lock. No other caller can take them again.
func (s *Store) takeReachedLocked(now time.Time) (taken []*waiter) {
	n := len(s.wakes.any)
	for i := range n { // keys that still wait are appended behind n
		taken = s.takeLocked(taken, s.wakes.any[i], now)
	}
	s.wakes.any = slices.Delete(s.wakes.any, 0, n)
	for p, of := range s.wakes.versions {
		store := s.cachedLocked(p)
		if store == nil {
			continue // AddInformer failed in the meantime
		}
		read := store.version()
		for len(*of) > 0 && reached(read, (*of)[0].rv) {
			taken = s.takeLocked(taken, heap.Pop(of).(awaited).key, now)
		}
		if len(*of) == 0 {
			delete(s.wakes.versions, p)
		}
	}
	s.refileLocked()
	s.stopIdleTimerLocked()
	return taken
}

// takeAllLocked is takeReachedLocked for all keys, whose bounds can also have passed.
func (s *Store) takeAllLocked(now time.Time) (taken []*waiter) {
	s.wakes.any = s.wakes.any[:0]
	clear(s.wakes.versions)
	for key := range s.waiters {
		taken = s.takeLocked(taken, key, now)
	}
	s.stopIdleTimerLocked()
	return taken
}

// takeLocked moves the key's waiters whose wait is over to taken. If others remain, it
// adds a new entry for the key.
func (s *Store) takeLocked(taken []*waiter, key types.NamespacedName, now time.Time) []*waiter {
	list := s.waiters[key]
	if len(list) == 0 {
		return taken // an old entry
	}
	var lag staleError
	left := list[:0]
	for _, w := range list {
		ok, missing, next := s.mayGoLocked(key, w, now)
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
		delete(s.waiters, key)
		return taken
	}
	s.waiters[key] = left
	s.fileLocked(key, lag)
	return taken
}
