package tenure

import (
	"context"
	"sync"
	"time"
)

// An Instant is one moment by two clocks.
type Instant struct {
	Mono time.Time // with the reading of the monotonic clock
	Wall time.Time // without
}

// At returns the instant of a time that time.Now returned.
func At(now time.Time, wall func(time.Time) time.Time) Instant {
	return Instant{Mono: now, Wall: wall(now)}
}

// WallClock returns the wall clock's part of a time that time.Now returned.
func WallClock(t time.Time) time.Time { return t.Round(0) }

// A Period is the time for which a holder may act on a lease.
type Period struct {
	ctx    context.Context // done when the period is over
	cancel context.CancelCauseFunc
	cause  error
	wall   func(time.Time) time.Time

	mu       sync.Mutex // guards the fields below
	renewed  time.Time  // the last successful renewal was sent
	deadline time.Time  // the end of validity by the monotonic clock
	wallEnd  time.Time  // the end of validity by the wall clock
	timer    *time.Timer
	over     bool
}

// Begin begins the period of a lease that was acquired by a request sent at the given
// time. Its context has the values of ctx, ignores its end, and ends with the cause.
func (p *Period) Begin(ctx context.Context, cause error, sent Instant, validFor time.Duration, wall func(time.Time) time.Time) {
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.cause, p.wall = cause, wall
	p.mu.Lock()
	p.extendLocked(sent, validFor)
	p.timer = time.AfterFunc(p.remainingLocked(), func() { p.Valid() })
	p.mu.Unlock()
}

// Context returns the context that ends with the period.
func (p *Period) Context() context.Context { return p.ctx }

// Valid reports whether the period was not ended and, by both clocks, the last successful
// renewal was sent less than the given time ago. The monotonic clock (CLOCK_MONOTONIC on
// Linux) stops during a suspend, and the wall clock may be set back, so the earlier end
// counts. The first false ends the period.
func (p *Period) Valid() bool {
	p.mu.Lock()
	ok := p.validLocked()
	p.mu.Unlock()
	if !ok {
		p.End()
	}
	return ok
}

func (p *Period) validLocked() bool {
	now := At(time.Now(), p.wall)
	return !p.over && now.Mono.Before(p.deadline) && now.Wall.Before(p.wallEnd)
}

// Extend makes the period valid for the given time after a successful renewal was sent. A
// period that is over stays over, even if that was not noticed yet.
func (p *Period) Extend(sent Instant, validFor time.Duration) {
	p.mu.Lock()
	ok := p.validLocked()
	if ok {
		p.extendLocked(sent, validFor)
		p.timer.Reset(p.remainingLocked())
	}
	p.mu.Unlock()
	if !ok {
		p.End()
	}
}

func (p *Period) extendLocked(sent Instant, validFor time.Duration) {
	p.renewed = sent.Mono
	p.deadline = sent.Mono.Add(validFor)
	p.wallEnd = sent.Wall.Add(validFor)
}

// remainingLocked returns the time until the deadline. It is positive, because timers
// without a delay crash the race detector in bubbles (docs/synctest-race.md).
func (p *Period) remainingLocked() time.Duration {
	return max(1, time.Until(p.deadline))
}

// End ends the period and its context. It may be called more than once.
func (p *Period) End() {
	p.mu.Lock()
	p.over = true
	p.timer.Stop()
	p.mu.Unlock()
	p.cancel(p.cause)
}

// LastRenewal returns the time when the last successful renewal was sent.
func (p *Period) LastRenewal() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renewed
}
