package queue

import (
	"time"

	"github.com/controllerkit/controllerkit/queue/internal/heap"
)

// expireAtOnce is the number of delays that end before the queue is unlocked.
const expireAtOnce = 256

// AddAfter adds key after a delay, or at once if duration is not positive. If the key is
// ready, AddAfter is a no-op. If the key is delayed, the earlier time wins. If the key is
// running, the delay starts now and takes effect at Done, unless an Add makes the key ready.
// The key keeps its priority, except as described at Forget. A new key has priority 0.
func (q *Queue[K]) AddAfter(key K, duration time.Duration) {
	q.add(key, &request{after: duration})
}

// AddRateLimited is AddAfter with the delay of the rate limiter.
func (q *Queue[K]) AddRateLimited(key K) {
	q.add(key, &request{after: q.When(key)})
}

// When returns the delay of the rate limiter for the key's next retry, which counts as a failure
// of the key and in workqueue_retries_total, unless the queue is shut down. AddRateLimited is
// AddAfter with it. A caller that has to know the delay calls When, and adds the key with AddAfter
// or AddWith.
func (q *Queue[K]) When(key K) time.Duration {
	delay := q.limiter.When(key) // not under the lock, because it is the caller's code
	if q.metrics != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopping {
			q.metrics.retries.Inc()
		}
	}
	return delay
}

// delays holds the delayed keys.
type delays struct {
	heap.Heap[delay]
	seq   int64       // numbers the delays, so that equal times end in order
	timer *time.Timer // ends the earliest delay; nil until the first delay
	armed int64       // when timer fires; never if it is stopped
}

// delay is a delayed key. It repeats the time of the entry, so that the heap compares delays
// without a cache miss.
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

// delayLocked delays a key until e.at. The key must be in no other state.
func (q *Queue[K]) delayLocked(k ref, e *entry, now int64) {
	e.state = stateDelayed
	q.delays.seq++
	e.order = q.delays.seq
	q.delays.Push(delay{at: e.at, ref: k})
	q.armLocked(now)
}

// hastenLocked shortens the delay of a key.
func (q *Queue[K]) hastenLocked(k ref, e *entry, now, due int64) {
	q.delays.Remove(delay{ref: k})
	e.at = due
	q.delayLocked(k, e, now)
}

// armLocked sets the timer to the earliest delay. If that delay ends by an add, the timer
// fires too early, and expire sets it again. This is cheaper than a change of the timer at
// each add.
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

// expire runs when the timer fires. If the timer was stopped or set again just before, no
// delay may be due.
func (q *Queue[K]) expire() {
	for q.expireSome() {
	}
}

// expireSome ends some of the due delays, and reports whether there may be more.
func (q *Queue[K]) expireSome() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopping {
		return false
	}
	now := q.now()
	for range expireAtOnce {
		if q.delays.Len() == 0 || q.delays.First().at > now {
			q.delays.armed = never // the timer has fired
			q.armLocked(now)
			return false
		}
		due := q.delays.First()
		q.delays.Remove(due)
		q.addReadyLocked(due.ref, q.held.At(due.ref))
	}
	return true
}
