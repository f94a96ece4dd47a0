package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile/internal/waits"
)

// ignoredAfter is how long after their context was cancelled calls are logged
// as ignoring it.
const ignoredAfter = 5 * time.Second

// maxKeysLogged bounds the keys in one line of log.
const maxKeysLogged = 10

// stop has the contexts of one Run. Each derives from the context that must end first.
type stop struct {
	ctx context.Context // the context of Run; when it is done, no call starts

	// lease is the context that ends when leadership is over, or nil.
	lease context.Context

	// intake is ctx, ended early when lease is, or when a call ended its worker. Workers
	// wait for keys with it.
	intake       context.Context
	cancelIntake context.CancelCauseFunc

	// calls carries the values of ctx but not its end. Every call derives from it.
	calls       context.Context
	cancelCalls context.CancelCauseFunc

	// drain has the contexts with which workers wait for keys after intake has ended. They
	// end when a worker finds no ready key, and the workers check again whether there is one.
	drain waits.Waits
}

func newStop(ctx context.Context) *stop {
	s := &stop{ctx: ctx}
	s.lease, _ = ctx.Value(calls.Validity{}).(context.Context)
	s.intake, s.cancelIntake = context.WithCancelCause(ctx)
	s.calls, s.cancelCalls = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// ended reports whether calls must no longer start. It checks the contexts that intake is
// derived from, because intake ends a moment after them.
func (s *stop) ended() bool {
	if s.lease != nil && s.lease.Err() != nil {
		s.cancelIntake(context.Cause(s.lease))
	}
	return s.ctx.Err() != nil || s.intake.Err() != nil
}

// leadershipOver returns the reason why leadership is over, or nil if it is not, or if Run
// does not depend on leadership.
func (s *stop) leadershipOver() error {
	if s.lease != nil && s.lease.Err() != nil {
		return context.Cause(s.lease)
	}
	cause := context.Cause(s.ctx)
	var lost controllerkit.LostError
	if errors.As(cause, &lost) && lost.LeadershipLost() {
		return cause
	}
	return nil
}

// cancel cancels the running calls. The cause is always context.Canceled by errors.Is,
// because net/http returns the cause instead of the error of the context.
func (s *stop) cancel(why string, cause error) {
	if !errors.Is(cause, context.Canceled) {
		cause = fmt.Errorf("%w: %w", context.Canceled, cause)
	}
	s.cancelCalls(fmt.Errorf("reconcile: %s: %w", why, cause))
}

// supervise ends the intake, then the calls. It returns when finished is closed, or after
// it has logged the calls that ignore their context.
func (r *run[K]) supervise(s *stop, finished <-chan struct{}) {
	var over <-chan struct{}
	if s.lease != nil {
		over = s.lease.Done()
	}
	select {
	case <-finished:
		return
	case <-s.intake.Done():
	case <-over:
	}
	s.ended() // ends the intake if the lease has ended
	r.shutDownQueue()

	why, cause := "leadership is over", s.leadershipOver()
	if cause == nil {
		grace := cmp.Or(r.GracePeriod, defaultGracePeriod)
		count, _ := r.runningKeys()
		r.logger.Info("Stopping controller", "cause", kube.PrintableError(context.Cause(s.intake), maxText), "running", count, "gracePeriod", grace)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-finished:
			return
		case <-timer.C:
			why, cause = fmt.Sprintf("grace period of %v is over", grace), context.Cause(s.intake)
		case <-over:
			cause = s.leadershipOver()
		}
	}
	count, keys := r.runningKeys() // before the cancellation, which ends some at once
	s.cancel(why, cause)
	s.drain.End()
	if count > 0 {
		r.logger.Info("Cancelled running calls", "cause", kube.PrintableError(context.Cause(s.calls), maxText), "running", count, "keys", keys)
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

// shutDownQueue wakes the workers of a queue without GetContext. A queue with it can be used
// by another Run, so its owner shuts it down.
func (r *run[K]) shutDownQueue() {
	if r.restartable == nil && !r.Queue.ShuttingDown() {
		r.Queue.ShutDown()
	}
}

// runningKeys returns the number of running calls, and the keys of some of them with the
// duration of the call.
func (r *run[K]) runningKeys() (count int, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
		if !s.busy {
			continue
		}
		count++
		if len(keys) < maxKeysLogged {
			keys = append(keys, fmt.Sprintf("%s (%v)", kube.Printable(fmt.Sprint(s.key), snapshotText), time.Since(s.since).Round(time.Millisecond)))
		}
	}
	return count, keys
}

// report logs the keys that Run leaves behind.
func (r *run[K]) report() {
	// No lock: all workers have ended, and a wake of the gate does not use left.
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
		keys = append(keys, kube.Printable(fmt.Sprint(key), snapshotText))
	}
	r.logger.Info("Stopped controller", "left", len(r.left), "keys", keys)
}
