package queue

import "time"

// AddAfter adds key once duration has passed; at once if it is not positive. A
// key that is ready already is left as it is, a delayed key takes the earlier
// of the two times. The time of a running key counts from this call as well;
// it takes effect at Done, and a plain Add before or after it wins. The key
// keeps the priority that it has; a new key has 0.
func (q *Queue[K]) AddAfter(key K, duration time.Duration) {
	q.add(key, request{after: duration})
}

// AddRateLimited is AddAfter with the delay that the rate limiter says, and is
// what workqueue_retries_total counts.
func (q *Queue[K]) AddRateLimited(key K) {
	q.add(key, request{after: q.limiter.When(key), retry: true}) // When is the caller's code: not under the lock
}

// delayLocked delays a key that is in no other state.
func (q *Queue[K]) delayLocked(e *entry[K], now time.Time, after time.Duration) {
	e.at = now.Add(after)
	q.pushDelayLocked(e, now)
}

func (q *Queue[K]) pushDelayLocked(e *entry[K], now time.Time) {
	e.state = stateDelayed
	q.seq++
	e.seq = q.seq
	q.delays.push(e)
	q.armLocked(now)
}

// hastenLocked ends a key's delay earlier if after says so.
func (q *Queue[K]) hastenLocked(e *entry[K], now time.Time, after time.Duration) {
	if due := now.Add(after); due.Before(e.at) {
		q.seq++
		e.at, e.seq = due, q.seq
		q.delays.fix(e)
		q.armLocked(now)
	}
}

// armLocked sees to it that the timer fires no later than the earliest delay
// ends. It may fire too early, when that delay was cancelled or hastened:
// expire then sets it anew, which is cheaper than to do it at each change.
func (q *Queue[K]) armLocked(now time.Time) {
	if len(q.delays) == 0 || q.stopping {
		if !q.armed.IsZero() {
			q.timer.Stop()
			q.armed = time.Time{}
		}
		return
	}
	due := q.delays[0].at
	if !q.armed.IsZero() && !due.Before(q.armed) {
		return
	}
	q.armed = due
	if q.timer == nil {
		q.timer = time.AfterFunc(due.Sub(now), q.expire)
	} else {
		q.timer.Reset(due.Sub(now))
	}
}

// expire is called by the timer. A call that was under way when the timer was
// stopped or set anew finds nothing due.
func (q *Queue[K]) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopping {
		return
	}
	now := time.Now()
	for len(q.delays) > 0 && !q.delays[0].at.After(now) {
		e := q.delays[0]
		q.delays.remove(e)
		q.readyLocked(e, now)
	}
	q.armed = time.Time{}
	q.armLocked(now)
}

// timeHeap is a binary heap of entries by their time; the earliest is first.
// Each entry knows its position, so that it can be removed from the middle.
type timeHeap[K comparable] []*entry[K]

func (h timeHeap[K]) less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}

func (h timeHeap[K]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h timeHeap[K]) up(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timeHeap[K]) down(i int) {
	for {
		first := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h.less(child, first) {
				first = child
			}
		}
		if first == i {
			return
		}
		h.swap(i, first)
		i = first
	}
}

func (h *timeHeap[K]) push(e *entry[K]) {
	e.index = len(*h)
	*h = append(*h, e)
	h.up(e.index)
}

func (h *timeHeap[K]) remove(e *entry[K]) {
	i, last := e.index, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	e.index = -1
	if i < last {
		h.fix((*h)[i])
	}
}

// fix puts an entry whose time changed in its place.
func (h timeHeap[K]) fix(e *entry[K]) {
	h.up(e.index)
	h.down(e.index)
}
