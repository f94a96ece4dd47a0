package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrLost is the cause of the end of lead's context when this process is no
// longer the leader, and what Term.Check returns from then on. Its type has the
// method LeadershipLost() bool, which returns true, so that packages that do not
// import this one can tell it from a stop that was asked for.
var ErrLost error = &lostError{}

type lostError struct{}

func (*lostError) Error() string        { return "leader: no longer the leader" }
func (*lostError) LeadershipLost() bool { return true }

// A Term is one unbroken time of leadership, and its fencing token. As long as
// the Lease is not deleted, every later Term has the same LeaseUID and a higher
// Number.
type Term struct {
	// LeaseUID is the UID of the Lease.
	LeaseUID types.UID
	// Number is the Lease's leaseTransitions. The first term of a Lease has 0.
	Number int64
}

// TermFrom returns the term of the context that was given to lead, or of one
// derived from it. It returns false for any other context. The term may be over:
// see [Term.Check].
func TermFrom(ctx context.Context) (Term, bool) {
	if t, ok := ctx.Value(termKey{}).(*term); ok {
		return t.Term, true
	}
	return Term{}, false
}

// Check returns nil if this process is the leader in term t at this moment, by
// the clock alone: neither a timer that is late nor a network call that hangs
// makes it return nil too late. Otherwise it returns ErrLost. ctx must be the
// context that was given to lead or one derived from it; that it is done does
// not matter, because the Lease is held while lead drains. Call it right before
// an effect that must not be repeated by the next leader.
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

var errNoTerm = errors.New("leader: the context is not that of a leader: use the one given to lead")

type termKey struct{}

// An instant is one moment by two clocks.
type instant struct {
	mono time.Time // with the reading of the monotonic clock
	wall time.Time // without
}

func instantOf(now time.Time, wall func(time.Time) time.Time) instant {
	return instant{mono: now, wall: wall(now)}
}

// wallClock is what the wall clock said at a moment that time.Now returned.
func wallClock(t time.Time) time.Time { return t.Round(0) }

// validityKey finds the context that ends only when leadership is over. It is
// an alias of an unnamed type so that other packages can declare the same key.
type validityKey = struct{ LeaseValidity struct{} }

// A term is the running side of a Term: until when it is valid.
type term struct {
	Term
	wall           func(time.Time) time.Time
	unhealthyAfter time.Duration
	took           time.Duration // from when the Lease was seen to be free

	validity context.Context // done when the term is over
	cancel   context.CancelCauseFunc
	doubt    chan struct{} // asks for a renewal at once: the Lease may be another's

	mu       sync.Mutex // guards the fields below
	renewed  time.Time  // when the last successful renewal was sent
	deadline time.Time  // until when it is valid, by the monotonic clock
	wallEnd  time.Time  // the same by the wall clock
	timer    *time.Timer
	over     bool
}

// newTerm is the term of a Lease that was acquired by a request sent at the
// given time, valid for that long. It keeps the values of ctx, not its end.
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
	t.timer = time.AfterFunc(time.Until(t.deadline), func() { t.valid() })
	t.mu.Unlock()
	return t
}

// valid decides "am I still the leader": nobody ended the term, and the last
// successful renewal was sent less than RenewDeadline ago by both clocks. The
// monotonic one does not count while the machine is suspended (on Linux it is
// CLOCK_MONOTONIC), the wall clock may be set back: whichever says that the time
// is up is believed. What arrives late, or not at all, does not count. The first
// false ends the term.
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

// extend counts a renewal that succeeded and was sent at the given time: the
// term is valid for that long from then on. One that is over stays over, even
// if nobody has noticed yet.
func (t *term) extend(sent instant, validFor time.Duration) {
	t.mu.Lock()
	ok := t.validLocked()
	if ok {
		t.extendLocked(sent, validFor)
		t.timer.Reset(time.Until(t.deadline))
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

// end ends the term, and with it every context of the work. It may be called
// more than once.
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

// renewAtOnce asks the term's renewals not to wait for the next RetryPeriod.
func (t *term) renewAtOnce() {
	select {
	case t.doubt <- struct{}{}:
	default:
	}
}
