package queue

import (
	"context"
	"errors"
	"fmt"
)

// ErrShutDown is wrapped by the error of a Drain that ShutDown ended.
var ErrShutDown = errors.New("queue: shut down")

// ShutDown stops the queue: nothing is added any more, no delay ends, no timer
// runs. Keys that are ready are still handed out, then every Get returns. It
// does not wait, and ends every ShutDownWithDrain and Drain that waits. It may
// be called any number of times.
func (q *Queue[K]) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopLocked()
	if q.abort != nil {
		close(q.abort)
		q.abort = nil
	}
}

// ShutDownWithDrain stops the queue like ShutDown and waits until every ready
// key was handed out and every running key is done. It has no deadline: it
// needs workers that go on calling Get, and never returns if one of them does
// not call Done, unless ShutDown is called. Any number of callers may wait.
func (q *Queue[K]) ShutDownWithDrain() {
	_, _ = q.Drain(context.Background())
}

// ShuttingDown says whether ShutDown, ShutDownWithDrain or Drain was called.
func (q *Queue[K]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopping
}

// Drain is ShutDownWithDrain with a deadline: it stops the queue and waits until
// no key is ready or running, or ctx is done. Workers go on calling Get
// meanwhile. Delayed keys are not waited for.
//
// left holds every key that was not finished when Drain returned, each once, in
// no order: ready, running and delayed ones, and those that were added again
// while they ran, after the queue was stopped. err is nil if no key was ready or
// running, and otherwise wraps context.Cause(ctx) if ctx was done before, or
// ErrShutDown if ShutDown was called. The keys in left stay in the queue: workers
// that still call Get get the ready ones.
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

// stop stops the queue for a Drain; a ShutDown closes the channel.
func (q *Queue[K]) stop() (abort <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopLocked()
	if q.abort == nil {
		q.abort = make(chan struct{})
	}
	return q.abort
}

// left is what a Drain returns that has ended for the reason of err, nil if the
// queue was idle. Keys may have finished since: both results must agree.
func (q *Queue[K]) left(err error) ([]K, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.pendingLocked()
	if q.settled || err == nil {
		return left, nil
	}
	return left, fmt.Errorf("queue: drain: %d keys left: %w", len(left), err)
}

// Pending returns every ready, running and delayed key once, in no order. It
// copies all of them with the queue locked.
func (q *Queue[K]) Pending() []K {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pendingLocked()
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

// settleLocked tells the drains when there is nothing to wait for. Once that is
// so it stays so, because a stopped queue takes no keys.
func (q *Queue[K]) settleLocked() {
	if q.stopping && !q.settled && q.ready.n == 0 && q.running.n == 0 {
		q.settled = true
		close(q.idle)
	}
}
