package queue

// waiter is a call of Get that waits for a ready key.
type waiter struct {
	wake       chan struct{} // has room for one wake-up
	next, prev *waiter       // in waiters.head, or free
	woken      bool          // it has left waiters.head, and its wake-up was sent
}

// waiters holds the waiting calls of Get. Only one waiter at a time is woken. When it takes
// a key and more keys are ready, it wakes the next one. Otherwise adds would wake workers
// whose key a busy worker takes first, which took a third of the time with 64 workers. A
// woken waiter has no claim on a key: the first caller takes it.
type waiters struct {
	head  *waiter // the last waiter is woken first, because its caches are warm
	woken int     // the number of woken waiters that have not arrived
	free  *waiter
	nFree int
}

const maxFreeWaiters = 64

// enterLocked makes the caller a waiter. The caller then unlocks the queue, waits, locks the
// queue, and calls arriveLocked.
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

// arriveLocked ends the wait of w. If w was woken, the caller must take a key or call
// wakeLocked.
func (q *Queue[K]) arriveLocked(w *waiter) {
	s := &q.waiters
	if w.woken {
		s.woken--
		select { // empty if the caller received the wake-up
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

// wakeLocked wakes a waiter if a key is ready and no woken waiter is about to take it.
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

// wait waits until w is woken or done is closed.
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
