package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// ignoredAfter is how long after their context was cancelled calls are logged
// as ignoring it.
const ignoredAfter = 5 * time.Second

// maxKeysLogged bounds the keys in one line of log.
const maxKeysLogged = 10

// stop holds the contexts of one Run: what they are derived from is the order in
// which a Run stops.
type stop struct {
	ctx context.Context // given to Run: when it is done, no key is started

	// lease is the context that ends when leadership is over, nil if Run was
	// given none.
	lease context.Context

	// intake is ctx, ended early when lease is. Workers wait for keys with it.
	intake       context.Context
	cancelIntake context.CancelCauseFunc

	// drain ends when the ready keys are no longer worked off, or never were.
	// Workers wait for keys with it once intake has ended.
	drain       context.Context
	cancelDrain context.CancelFunc

	// calls carries the values of ctx but not its end. Every call derives from it.
	calls       context.Context
	cancelCalls context.CancelCauseFunc
}

func newStop(ctx context.Context) *stop {
	s := &stop{ctx: ctx}
	s.lease, _ = ctx.Value(validityKey{}).(context.Context)
	s.intake, s.cancelIntake = context.WithCancelCause(ctx)
	s.drain, s.cancelDrain = context.WithCancel(context.WithoutCancel(ctx))
	s.calls, s.cancelCalls = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// ended reports whether no key may be started any more. It looks at the sources,
// since intake follows them a moment later only.
func (s *stop) ended() bool {
	if s.lease != nil && s.lease.Err() != nil {
		s.cancelIntake(context.Cause(s.lease))
	}
	return s.ctx.Err() != nil || s.intake.Err() != nil
}

// leadershipOver returns why leadership is over, or nil if it is not or if Run
// has nothing to do with leadership.
func (s *stop) leadershipOver() error {
	if s.lease != nil && s.lease.Err() != nil {
		return context.Cause(s.lease)
	}
	cause := context.Cause(s.ctx)
	var lost interface{ LeadershipLost() bool }
	if errors.As(cause, &lost) && lost.LeadershipLost() {
		return cause
	}
	return nil
}

// cancel cancels the running calls. The cause is always known as
// context.Canceled, because net/http returns the cause in place of it.
func (s *stop) cancel(why string, cause error) {
	if !errors.Is(cause, context.Canceled) {
		cause = fmt.Errorf("%w: %w", context.Canceled, cause)
	}
	s.cancelCalls(fmt.Errorf("reconcile: %s: %w", why, cause))
}

// supervise ends the intake, then the calls, and returns when finished is closed
// or there is nothing left to do.
func (r *run[K]) supervise(s *stop, finished <-chan struct{}) {
	var over <-chan struct{}
	if s.lease != nil {
		over = s.lease.Done()
	}
	select {
	case <-finished:
		return
	case <-s.ctx.Done():
	case <-over:
	}
	s.ended() // passes the end of the lease on to the intake
	r.shutDownQueue()

	why, cause := "leadership is over", s.leadershipOver()
	if cause == nil {
		grace := cmp.Or(r.GracePeriod, defaultGracePeriod)
		count, _ := r.runningKeys()
		r.logger.Info("Stopping controller", "cause", context.Cause(s.ctx), "running", count, "gracePeriod", grace)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-finished:
			return
		case <-timer.C:
			why, cause = fmt.Sprintf("grace period of %v is over", grace), context.Cause(s.ctx)
		case <-over:
			cause = s.leadershipOver()
		}
	}
	s.cancelDrain()
	count, keys := r.runningKeys() // before: some end as soon as they are cancelled
	s.cancel(why, cause)
	if count > 0 {
		r.logger.Info("Cancelled running calls", "cause", context.Cause(s.calls), "running", count, "keys", keys)
	}

	timer := time.NewTimer(ignoredAfter)
	defer timer.Stop()
	select {
	case <-finished:
	case <-timer.C:
		count, keys = r.runningKeys()
		r.logger.Info("Waiting for calls that ignore their cancelled context", "running", count, "keys", keys)
	}
}

// shutDownQueue wakes the workers of a queue that no context reaches. A queue
// that can be used by another Run is its owner's to shut down.
func (r *run[K]) shutDownQueue() {
	if r.restartable == nil && !r.Queue.ShuttingDown() {
		r.Queue.ShutDown()
	}
}

// runningKeys returns how many calls run, and the keys of some with the time that
// they have been running for.
func (r *run[K]) runningKeys() (count int, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
		if !s.busy {
			continue
		}
		count++
		if len(keys) < maxKeysLogged {
			keys = append(keys, fmt.Sprintf("%v (%v)", s.key, time.Since(s.since).Round(time.Millisecond)))
		}
	}
	return count, keys
}

// report logs what was not done.
func (r *run[K]) report() {
	// No lock: all workers have ended, and a wake of the gate does not come here.
	if r.pending != nil {
		for _, key := range r.pending.Pending() {
			r.left[key] = struct{}{}
		}
	}
	keys := []string{}
	for key := range r.left {
		if len(keys) == maxKeysLogged {
			break
		}
		keys = append(keys, fmt.Sprint(key))
	}
	r.logger.Info("Stopped controller", "left", len(r.left), "keys", keys)
}
