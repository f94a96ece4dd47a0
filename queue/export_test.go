package queue

import (
	"fmt"
	"strings"
	"time"
)

// TestOrders runs the lock sections of the methods in every order. These methods are the
// sections of the methods that have more than one.

type Waiter = waiter

// TryGet is the first section of GetContext. If w is not nil, the caller must wait.
func (q *Queue[K]) TryGet(ended bool) (key K, ok bool, w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tryOrEnterLocked(ended)
}

// Arrive is the section of GetContext after a wait.
func (q *Queue[K]) Arrive(w *Waiter, ended bool) (key K, ok bool, again *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arriveLocked(w)
	return q.tryOrEnterLocked(ended)
}

func (q *Queue[K]) tryOrEnterLocked(ended bool) (key K, ok bool, w *Waiter) {
	k, e, wait := q.tryLocked(ended)
	switch {
	case e != nil:
		return q.held.Key(k), true, nil
	case wait:
		return key, false, q.enterLocked()
	}
	return key, false, nil
}

// Woken reports whether w has been woken.
func (w *waiter) Woken() bool { return len(w.wake) > 0 }

// Stop, Idle and Left are the sections of Drain.
func (q *Queue[K]) Stop()              { q.stop() }
func (q *Queue[K]) Idle() bool         { q.mu.Lock(); defer q.mu.Unlock(); return q.settled }
func (q *Queue[K]) Left() ([]K, error) { return q.left(nil) }

// Armed reports whether the timer of the delays is set.
func (q *Queue[K]) Armed() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.delays.armed != never }

// SetServed sets the number of calls of Get since a lower priority had its turn.
func (q *Queue[K]) SetServed(n int) { q.mu.Lock(); defer q.mu.Unlock(); q.ready.served = n }

// Inside describes the state of the queue. If two queues have the same description, except
// for numbers, they behave in the same way from now on. The map has the names of waiters.
func (q *Queue[K]) Inside(waits map[*Waiter]string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var s strings.Builder
	list := func(name string, l list) {
		fmt.Fprintf(&s, "%s", name)
		for k := l.head; k != 0; k = q.held.At(k).next {
			e := q.held.At(k)
			fmt.Fprintf(&s, " %v/%d/%d/%d/%v/%v/%v/%d", q.held.Key(k), e.state, e.priority, e.then, e.asks, e.keeps, e.forgot, e.asked)
		}
		s.WriteByte(';')
	}
	levels := append([]*level{}, q.ready.lower.Least(1<<30)...)
	if q.ready.top != nil {
		levels = append(levels, q.ready.top)
	}
	for _, l := range levels {
		for ln := l.turn; ln != nil; {
			list(fmt.Sprintf("%d:%s", l.priority, ln.group.name), ln.keys)
			if ln = ln.next; ln == l.turn {
				break
			}
		}
	}
	list("running", q.running)
	for _, d := range q.delays.Least(1 << 30) {
		fmt.Fprintf(&s, "delayed %v/%d;", q.held.Key(d.ref), q.held.At(d.ref).priority)
	}
	for w := q.waiters.head; w != nil; w = w.next {
		fmt.Fprintf(&s, "waits %s;", waits[w])
	}
	fmt.Fprintf(&s, "%d %d %d %v %v %v", q.held.Len(), q.ready.n, q.waiters.woken, q.stopping, q.settled, q.delays.armed != never)
	return s.String()
}

// StopTimers stops all timers, and reports whether one was set.
func (q *Queue[K]) StopTimers() (set bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, timer := range []*time.Timer{q.delays.timer, q.stamp, q.gauges} {
		set = timer != nil && timer.Stop() || set
	}
	return set
}
