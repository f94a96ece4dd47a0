package queue

import (
	"time"

	"github.com/controllerkit/controllerkit/queue/internal/heap"
)

// expireAtOnce is how many delays end before the queue is unlocked for others.
const expireAtOnce = 256

// AddAfter adds key once duration has passed; at once if it is not positive. A
// key that is ready already is left as it is, a delayed key takes the earlier
// of the two times. The time of a running key counts from this call as well;
// it takes effect at Done, and a plain Add before or after it wins. The key
// keeps the priority that it has; a new key has 0.
func (q *Queue[K]) AddAfter(key K, duration time.Duration) {
	q.add(key, &request{after: duration})
}

// AddRateLimited is AddAfter with the delay that the rate limiter says, and is
// what workqueue_retries_total counts.
func (q *Queue[K]) AddRateLimited(key K) {
	q.add(key, &request{after: q.limiter.When(key), retry: true}) // When is the caller's code: not under the lock
}

// delays are the keys that wait for their time and do not run.
type delays struct {
	heap.Heap[delay]
	seq   int64       // numbers them: equal times end in the order asked
	timer *time.Timer // ends the earliest delay; nil until the first one
	armed int64       // when timer fires; never while it is stopped
}

// delay is a delayed key. Its due time stands here too, so that the heap need not
// look at the entries that it compares.
type delay struct {
	at  int64
	ref ref
}

func newDelays(s *entries) delays {
	return delays{
		armed: never,
		Heap: heap.Heap[delay]{
			Less: func(a, b delay) bool {
				return a.at < b.at || a.at == b.at && s.At(a.ref).order < s.At(b.ref).order
			},
			Place: func(d delay) *int32 { return &s.At(d.ref).place },
		},
	}
}

// delayLocked delays a key that is in no other state until e.at.
func (q *Queue[K]) delayLocked(k ref, e *entry, now int64) {
	e.state = stateDelayed
	q.delays.seq++
	e.order = q.delays.seq
	q.delays.Push(delay{at: e.at, ref: k})
	q.armLocked(now)
}

// hastenLocked ends a key's delay earlier.
func (q *Queue[K]) hastenLocked(k ref, e *entry, now, due int64) {
	q.delays.Remove(delay{ref: k})
	e.at = due
	q.delayLocked(k, e, now)
}

// armLocked sees to it that the timer fires no later than the earliest delay
// ends. It may fire too early, when that delay was cancelled or hastened:
// expire then sets it anew, which is cheaper than to do it at each change.
func (q *Queue[K]) armLocked(now int64) {
	d := &q.delays
	if d.Len() == 0 || q.stopping {
		if d.armed != never {
			d.timer.Stop()
			d.armed = never
		}
		return
	}
	due := d.First().at
	if due >= d.armed {
		return
	}
	d.armed = due
	if wait := time.Duration(due - now); d.timer == nil {
		d.timer = time.AfterFunc(wait, q.expire)
	} else {
		d.timer.Reset(wait)
	}
}

// expire is called by the timer. A call that was under way when the timer was
// stopped or set anew finds nothing due.
func (q *Queue[K]) expire() {
	for q.expireSome() {
	}
}

// expireSome ends some of the delays that are due and says whether there may be
// more.
func (q *Queue[K]) expireSome() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopping {
		return false
	}
	now := q.now()
	for range expireAtOnce {
		if q.delays.Len() == 0 || q.delays.First().at > now {
			q.delays.armed = never // the timer fired, or fires for nothing
			q.armLocked(now)
			return false
		}
		due := q.delays.First()
		q.delays.Remove(due)
		q.addReadyLocked(due.ref, q.held.At(due.ref))
	}
	return true
}
