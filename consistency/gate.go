package consistency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// liveKey is the key of the context value that says that reads must be live.
type liveKey struct{}

// LiveRead reports whether the context came from a Begin at which the cache could not
// be trusted for its key: a recorded write or deletion was not visible, a write was
// ambiguous, or one was refused (see Refused). Such a run must read from the server
// what it decides on, and should pass the version of that read to WroteAt, so that the
// runs after it wait for the cache to show as much. After a refused write it is true
// for one run only: one that fails before it has read should read live again. It is
// false for any other context.
func LiveRead(ctx context.Context) bool {
	live, _ := ctx.Value(liveKey{}).(bool)
	return live
}

// Begin returns a context for a reconcile of the key: writes made with it through a
// transport from Wrap are recorded for the key, and LiveRead tells from it whether the
// cache may be used.
func (s *Store) Begin(ctx context.Context, key types.NamespacedName) context.Context {
	ctx = context.WithValue(ctx, ownerKey{s}, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.lagLocked(key)
	if rec := s.owners[key]; rec != nil { // it has something left
		rec.live = time.Time{} // for one run
		ctx = context.WithValue(ctx, liveKey{}, true)
	} else if LiveRead(ctx) {
		ctx = context.WithValue(ctx, liveKey{}, false) // that is another Store's
	}
	return ctx
}

// Ready reports whether the key may run: the cache shows every recorded write and
// deletion of it and what refused its writes, and no write of it became ambiguous in
// the last AmbiguousWait; or MaxWait has passed since the last of them, and then
// LiveRead is true in the run. If not, wake is called exactly once when it may: from an
// informer's handler, a timer, or Clear, so it must not block; adding the key to a
// queue is what it is for. Every call
// that returns false has its own wake. A nil wake wakes nobody.
func (s *Store) Ready(key types.NamespacedName, wake func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	w := &waiter{wake: wake, gate: true, since: now}
	ok, lag, next := s.mayGoLocked(key, w, now)
	if !ok {
		s.waitLocked(key, w, lag, now, next)
	}
	return ok
}

// End says that the reconcile of the key is over. What the cache shows already is
// forgotten; the rest stays until it does. Writes that still arrive with the context
// of Begin are recorded all the same.
func (s *Store) End(key types.NamespacedName) { _ = s.EnsureReady(key) }

// Wait blocks until the cache shows every recorded write and deletion of the owner and
// returns nil, or until ctx is done and returns an error that wraps both the cause and
// what was missing. What no cache can ever show is returned at once: a write of a
// resource without a store that can answer. Ambiguous writes are not waited for.
func (s *Store) Wait(ctx context.Context, owner types.NamespacedName) error {
	done := make(chan struct{})
	w := &waiter{wake: func() { close(done) }}
	s.mu.Lock()
	missing := s.readyLocked(owner)
	lag, stale := errors.AsType[*StaleError](missing)
	if !stale {
		s.mu.Unlock()
		return missing
	}
	s.waitLocked(owner, w, *lag, time.Now(), time.Time{})
	s.mu.Unlock()

	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forgetLocked(owner, w) {
		return nil // it was taken to be woken meanwhile: the owner was ready
	}
	if err := s.readyLocked(owner); err != nil {
		missing = err
	}
	return fmt.Errorf("consistency: wait for %s: %w: %w", owner, context.Cause(ctx), missing)
}

// waiter is somebody who waits for an owner.
type waiter struct {
	wake     func()
	gate     bool // it waits in Ready, which has bounds; Wait has none
	since    time.Time
	timedOut bool // set when it is taken because a bound was reached
}

// mayGoLocked reports whether the waiter need not wait any more, and if it must, what
// for, and when a bound ends that; zero means never.
func (s *Store) mayGoLocked(owner types.NamespacedName, w *waiter, now time.Time) (ok bool, lag StaleError, next time.Time) {
	lag, verdict := s.lagLocked(owner)
	rec := s.owners[owner]
	if rec == nil {
		return true, lag, time.Time{}
	}
	if !w.gate {
		return verdict == ready, lag, time.Time{}
	}
	for _, m := range rec.ambiguous {
		if end := m.at.Add(max(s.ambiguousWait, 0)); end.After(next) {
			next = end
		}
	}
	if verdict != ready {
		if s.maxWait < 0 {
			return false, lag, time.Time{}
		}
		if end := rec.last.Add(s.maxWait); end.After(next) {
			next = end
		}
	}
	if now.Before(next) {
		return false, lag, next
	}
	w.timedOut = verdict != ready || len(rec.ambiguous) > 0
	return true, lag, time.Time{}
}

// waitLocked adds a waiter. Because it happens under the same lock as the check that
// found the owner not ready, an event in between cannot be missed.
func (s *Store) waitLocked(owner types.NamespacedName, w *waiter, lag StaleError, now, next time.Time) {
	list := s.waiters[owner]
	s.waiters[owner] = append(list, w)
	if len(list) == 0 {
		s.fileLocked(owner, lag)
		s.refileLocked()
	}
	s.armLocked(now, next)
}

// armLocked sets the timer for the next check: after RecheckInterval, or at the time
// next if that is earlier and not zero. A timer that fires before that stays.
func (s *Store) armLocked(now, next time.Time) {
	due := now.Add(s.recheckEvery)
	if !next.IsZero() && next.Before(due) {
		due = next
	}
	switch {
	case s.timer == nil:
		s.timer = time.AfterFunc(due.Sub(now), s.recheck)
	case due.Before(s.due):
		s.timer.Reset(due.Sub(now))
	default:
		return
	}
	s.due = due
}

// forgetLocked removes a waiter and reports whether it was still there.
func (s *Store) forgetLocked(owner types.NamespacedName, w *waiter) bool {
	list := s.waiters[owner]
	i := slices.Index(list, w)
	if i < 0 {
		return false
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		s.waiters[owner] = list
	} else {
		delete(s.waiters, owner)
		s.stopIdleTimerLocked()
	}
	return true
}

func (s *Store) stopIdleTimerLocked() {
	if len(s.waiters) == 0 && s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

func (s *Store) wakeReady() {
	s.mu.Lock()
	if len(s.waiters) == 0 {
		s.mu.Unlock()
		return
	}
	taken := s.takeReachedLocked(time.Now())
	s.mu.Unlock()
	s.call(taken)
}

// recheck is wakeReady at the end of the timer. A callback that lost a race with Stop
// finds either no timer or a newer one, which it postpones by one interval at most.
func (s *Store) recheck() {
	s.mu.Lock()
	now := time.Now()
	if s.timer != nil {
		s.due = now.Add(s.recheckEvery)
		s.timer.Reset(s.recheckEvery)
	}
	taken := s.takeAllLocked(now) // may set the timer earlier
	s.mu.Unlock()
	s.call(taken)
}

func (s *Store) call(taken []*waiter) {
	for _, w := range taken {
		if w.gate && s.metrics != nil {
			s.metrics.ConsistencyWaited(time.Since(w.since), w.timedOut)
		}
		if w.wake != nil {
			w.wake()
		}
	}
}
