package queue

import (
	"math"
	"time"
)

// Times are in nanoseconds since New.
const (
	unknown = 0
	never   = math.MaxInt64
)

// stampPeriod is the greatest error of the start of a running key.
const stampPeriod = time.Second

// now returns the time. It reads only the monotonic clock, which takes half as long as
// time.Now, but still longer than a lock.
func (q *Queue[K]) now() int64 { return int64(time.Since(q.made)) }

// after returns now+d, or never if the sum overflows.
func after(now int64, d time.Duration) int64 {
	if int64(d) > never-now {
		return never
	}
	return now + int64(d)
}

// stampSoonLocked sets a timer that sets the start of all running keys. A call of now in
// each Get, for Snapshot alone, would take a sixth of the time of a key in the queue. Nearly
// all keys are done before the timer fires. The timer must not be set already.
func (q *Queue[K]) stampSoonLocked() {
	q.stamping = true
	if q.stamp == nil {
		q.stamp = time.AfterFunc(stampPeriod, q.stampRunning)
	} else {
		q.stamp.Reset(stampPeriod)
	}
}

// stampRunning runs when the timer fires.
func (q *Queue[K]) stampRunning() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stampRunningLocked()
}

func (q *Queue[K]) stampRunningLocked() {
	if !q.stamping {
		return
	}
	q.stamp.Stop()
	q.stamping = false
	now := q.now()
	for k := q.running.head; k != 0; {
		e := q.held.At(k)
		if e.order == unknown {
			e.order = now
		}
		k = e.next
	}
}
