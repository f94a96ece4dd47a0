package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrLost is the cause of the end of lead's context after leadership is lost, and the
// error of Term.Check from then on. Its type has the method LeadershipLost() bool,
// which returns true, so that packages can distinguish it from a requested stop without
// importing this one.
var ErrLost error = &lostError{}

type lostError struct{}

func (*lostError) Error() string        { return "leader: no longer the leader" }
func (*lostError) LeadershipLost() bool { return true }

// A Term is one uninterrupted leadership, and its fencing token. While the Lease is not
// deleted and etcd is not restored from a backup, every later Term has the same
// LeaseUID and a higher Number.
type Term struct {
	// LeaseUID is the UID of the Lease.
	LeaseUID types.UID
	// Number is the Lease's leaseTransitions. The first term of a Lease has 0.
	Number int64
}

// TermFrom returns the term of lead's context, or of a context derived from it, and
// false for any other context. The term may be over: see [Term.Check].
func TermFrom(ctx context.Context) (Term, bool) {
	if t, ok := ctx.Value(termKey{}).(*term); ok {
		return t.Term, true
	}
	return Term{}, false
}

// Check returns nil if this process is the leader in term t at this moment, and ErrLost
// otherwise. It reads only the clock: a late timer or a call that hangs does not make
// it return nil too late. ctx must be lead's context or one derived from it. It may be
// done, because the Lease is held while lead drains. Call Check just before an effect
// that the next leader must not repeat. A receiver outside of the cluster can reject a
// Number below the highest that it has seen.
func (t Term) Check(ctx context.Context) error {
	current, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return errNoTerm
	}
	if current.Term != t || !current.valid() {
		return ErrLost
	}
	return nil
}

var errNoTerm = errors.New("leader: the context has no term: use the context of lead")

type termKey struct{}

// An instant is one moment by two clocks.
type instant struct {
	mono time.Time // with the reading of the monotonic clock
	wall time.Time // without
}

func instantOf(now time.Time, wall func(time.Time) time.Time) instant {
	return instant{mono: now, wall: wall(now)}
}

// wallClock returns the wall clock's part of a time that time.Now returned.
func wallClock(t time.Time) time.Time { return t.Round(0) }

// validityKey is the key of the context that ends only with leadership. It is an alias
// of an unnamed type so that other packages can declare the same key.
type validityKey = struct{ LeaseValidity struct{} }

// A term is the state of a running Term: the end of its validity.
type term struct {
	Term
	wall           func(time.Time) time.Time
	unhealthyAfter time.Duration
	took           time.Duration // from when the Lease was seen to be free

	validity context.Context // done when the term is over
	cancel   context.CancelCauseFunc
	doubt    chan struct{} // requests a renewal at once: the Lease may be another's

	mu       sync.Mutex // guards the fields below
	renewed  time.Time  // the last successful renewal was sent
	deadline time.Time  // the end of validity by the monotonic clock
	wallEnd  time.Time  // the end of validity by the wall clock
	timer    *time.Timer
	over     bool
}

// newTerm returns the term of a Lease that was acquired by a request sent at the given
// time. It keeps the values of ctx and ignores its end.
func newTerm(ctx context.Context, id Term, sent instant, validFor, unhealthyAfter time.Duration, wall func(time.Time) time.Time) *term {
	t := &term{
		Term:           id,
		wall:           wall,
		unhealthyAfter: unhealthyAfter,
		doubt:          make(chan struct{}, 1),
	}
	ctx = context.WithValue(context.WithoutCancel(ctx), termKey{}, t)
	t.validity, t.cancel = context.WithCancelCause(ctx)
	t.mu.Lock()
	t.extendLocked(sent, validFor)
	t.timer = time.AfterFunc(t.remainingLocked(), func() { t.valid() })
	t.mu.Unlock()
	return t
}

// valid decides "am I still the leader": the term was not ended, and by both clocks the
// last successful renewal was sent less than RenewDeadline ago. The monotonic clock
// (CLOCK_MONOTONIC on Linux) stops during a suspend, and the wall clock may be set
// back, so the earlier end counts. The first false ends the term.
func (t *term) valid() bool {
	t.mu.Lock()
	ok := t.validLocked()
	t.mu.Unlock()
	if !ok {
		t.end()
	}
	return ok
}

func (t *term) validLocked() bool {
	now := instantOf(time.Now(), t.wall)
	return !t.over && now.mono.Before(t.deadline) && now.wall.Before(t.wallEnd)
}

// extend makes the term valid for the given time after a successful renewal was sent. A
// term that is over stays over, even if that was not noticed yet.
func (t *term) extend(sent instant, validFor time.Duration) {
	t.mu.Lock()
	ok := t.validLocked()
	if ok {
		t.extendLocked(sent, validFor)
		t.timer.Reset(t.remainingLocked())
	}
	t.mu.Unlock()
	if !ok {
		t.end()
	}
}

func (t *term) extendLocked(sent instant, validFor time.Duration) {
	t.renewed = sent.mono
	t.deadline = sent.mono.Add(validFor)
	t.wallEnd = sent.wall.Add(validFor)
}

// remainingLocked returns the time until the deadline. It is positive, because timers
// without a delay crash the race detector in bubbles (docs/synctest-race.md).
func (t *term) remainingLocked() time.Duration {
	return max(1, time.Until(t.deadline))
}

// end ends the term and the contexts of its work. It may be called more than once.
func (t *term) end() {
	t.mu.Lock()
	t.over = true
	t.timer.Stop()
	t.mu.Unlock()
	t.cancel(ErrLost)
}

func (t *term) lastRenewal() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewed
}

// renewAtOnce requests a renewal before the next RetryPeriod.
func (t *term) renewAtOnce() {
	select {
	case t.doubt <- struct{}{}:
	default:
	}
}
