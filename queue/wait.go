package queue

// waiter is a Get that waits for a ready key.
type waiter struct {
	wake       chan struct{} // holds the wake-up; room for one
	next, prev *waiter       // in waiters.head, or free
	woken      bool          // has left waiters.head, its wake-up was sent
}

// waiters are the Gets that wait. One at a time is woken: while it is on its way
// to look for a key no other need be, and when it takes one it wakes the next if
// there are more. So producers do not spend their time waking workers that find
// nothing, because busy ones were there before: with 64 workers that was a third
// of the time. A key is not promised to whom it wakes; who comes first takes it.
type waiters struct {
	head  *waiter // last come, first woken: it is the one with warm caches
	woken int     // how many were woken and have not arrived
	free  *waiter
	nFree int
}

const maxFreeWaiters = 64

// enterLocked makes the caller a waiter. It then unlocks, waits for wake or
// whatever else, locks, and calls arriveLocked.
func (q *Queue[K]) enterLocked() *waiter {
	s := &q.waiters
	w := s.free
	if w == nil {
		w = &waiter{wake: make(chan struct{}, 1)}
	} else {
		s.free = w.next
		s.nFree--
	}
	w.next = s.head
	if w.next != nil {
		w.next.prev = w
	}
	s.head = w
	return w
}

// arriveLocked ends the wait of w, be it woken or not. If it was, the caller must
// take a key, or call wakeLocked: the wake-up may have been meant for one.
func (q *Queue[K]) arriveLocked(w *waiter) {
	s := &q.waiters
	if w.woken {
		s.woken--
		select { // empty if this is why the caller arrives
		case <-w.wake:
		default:
		}
	} else {
		s.leave(w)
	}
	*w = waiter{wake: w.wake}
	if s.nFree < maxFreeWaiters {
		w.next, s.free = s.free, w
		s.nFree++
	}
}

// wakeLocked wakes a waiter if a key is ready and none is on its way.
func (q *Queue[K]) wakeLocked() {
	if q.waiters.head != nil && q.ready.n > 0 && q.waiters.woken == 0 {
		q.waiters.wake()
	}
}

func (s *waiters) wake() {
	w := s.head
	s.leave(w)
	w.woken = true
	s.woken++
	w.wake <- struct{}{}
}

func (s *waiters) leave(w *waiter) {
	if w.prev == nil {
		s.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.next, w.prev = nil, nil
}

// wait waits for the wake-up of w or the end of a context.
func (w *waiter) wait(done <-chan struct{}) {
	if done == nil {
		<-w.wake
		return
	}
	select {
	case <-w.wake:
	case <-done:
	}
}
