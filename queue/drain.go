package queue

import (
	"context"
	"errors"
	"fmt"
)

// ErrShutDown is in the error of Drain if ShutDown ended it.
var ErrShutDown = errors.New("queue: shut down")

// ShutDown stops the queue: adds are dropped, delays do not end, and timers stop. Get still
// returns the ready keys, and then returns without a key. ShutDown does not wait. It ends
// all waiting calls of ShutDownWithDrain and Drain. It can be called more than once.
func (q *Queue[K]) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopLocked()
	if q.abort != nil {
		close(q.abort)
		q.abort = nil
	}
}

// ShutDownWithDrain stops the queue as ShutDown does, and waits until no key is ready or
// running. The workers must continue to call Get and Done. Without them it waits until
// ShutDown is called. Any number of callers can wait.
func (q *Queue[K]) ShutDownWithDrain() {
	_, _ = q.Drain(context.Background())
}

// ShuttingDown reports whether ShutDown, ShutDownWithDrain or Drain was called.
func (q *Queue[K]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopping
}

// Drain stops the queue, and waits until no key is ready or running, or until ctx is done.
// The workers must continue to call Get and Done. Drain does not wait for delayed keys.
//
// Drain returns the unfinished keys, each once, in no particular order: the ready, running
// and delayed keys, and the keys that were added again while they ran. These keys stay in
// the queue, so workers may still get the ready keys.
//
// If no key is ready or running, err is nil. Otherwise it wraps context.Cause(ctx) if ctx is
// done, or ErrShutDown if ShutDown was called.
func (q *Queue[K]) Drain(ctx context.Context) (left []K, err error) {
	abort := q.stop()
	select {
	case <-q.idle:
	case <-abort:
		err = ErrShutDown
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return q.left(err)
}

// stop stops the queue for Drain. ShutDown closes the channel.
func (q *Queue[K]) stop() (abort <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopLocked()
	if q.abort == nil {
		q.abort = make(chan struct{})
	}
	return q.abort
}

// left returns the results of Drain. err is the reason why Drain ended, nil if the queue was
// idle. The last keys may have finished since: then the error is nil.
func (q *Queue[K]) left(err error) ([]K, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.pendingLocked()
	if q.settled || err == nil {
		return left, nil
	}
	return left, fmt.Errorf("queue: drain: %d keys left: %w", len(left), err)
}

// Pending returns each ready, running and delayed key once, in no particular order. It
// copies all keys under the lock.
func (q *Queue[K]) Pending() []K {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pendingLocked()
}

// Clear removes the ready and delayed keys and returns them, in no particular order. Running
// keys stay. The rate limiter still has the failures of the removed keys, until Forget.
func (q *Queue[K]) Clear() []K {
	q.mu.Lock()
	defer q.mu.Unlock()
	var cleared []K
	for _, key := range q.pendingLocked() {
		k, at := q.held.Find(key, q.held.Hash(key))
		if k == 0 {
			continue // a key that is not equal to itself, such as NaN
		}
		e := q.held.At(k)
		switch e.state {
		case stateRunning:
			continue
		case stateReady:
			q.ready.remove(e)
			if q.metrics != nil {
				q.metrics.depth.Dec()
			}
		case stateDelayed:
			q.delays.Remove(delay{ref: k})
		}
		if q.groupOf != nil {
			q.ready.groups.leave(e.group)
		}
		q.held.Delete(k, at)
		cleared = append(cleared, key)
	}
	if q.delays.Len() == 0 {
		q.armLocked(0) // stops the timer
	}
	q.settleLocked()
	return cleared
}

func (q *Queue[K]) pendingLocked() []K {
	if q.held.Len() == 0 {
		return nil
	}
	keys := make([]K, 0, q.held.Len())
	for k := range q.held.All {
		keys = append(keys, q.held.Key(k))
	}
	return keys
}

func (q *Queue[K]) stopLocked() {
	if q.stopping {
		return
	}
	q.stopping = true
	q.armLocked(0) // stops the timer
	q.stampRunningLocked()
	q.stopGaugesLocked()
	for q.waiters.head != nil {
		q.waiters.wake()
	}
	q.settleLocked()
}

// settleLocked ends the waiting drains if no key is ready or running. A stopped queue takes
// no keys, so this state is final.
func (q *Queue[K]) settleLocked() {
	if q.stopping && !q.settled && q.ready.n == 0 && q.running.n == 0 {
		q.settled = true
		close(q.idle)
	}
}
