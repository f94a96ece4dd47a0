package queue

import (
	"math"
	"time"
)

// Times are nanoseconds since the queue was made.
const (
	unknown = 0
	never   = math.MaxInt64 // later than any other
)

// stampPeriod is how late a running key may learn when it started.
const stampPeriod = time.Second

// now reads the clock. It takes half as long as time.Now, which reads the wall
// clock too, and still longer than a lock: see stampSoonLocked.
func (q *Queue[K]) now() int64 { return int64(time.Since(q.made)) }

// after returns the time that is d after now; never if that is out of range.
func after(now int64, d time.Duration) int64 {
	if int64(d) > never-now {
		return never
	}
	return now + int64(d)
}

// stampSoonLocked is called instead of now when a key starts to run and no one
// else wants to know the time: reading the clock for Snapshot alone would be a
// sixth of a cycle. Nearly all keys are done before the timer fires; the others
// it tells that they have started now. It fires once for all, at most once in a
// period, and not while no key starts. It must not be set already.
func (q *Queue[K]) stampSoonLocked() {
	q.stamping = true
	if q.stamp == nil {
		q.stamp = time.AfterFunc(stampPeriod, q.stampRunning)
	} else {
		q.stamp.Reset(stampPeriod)
	}
}

// stampRunning is called by the timer.
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
