package consistency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/calls"
)

// LiveRead reports whether a run must read from the API server, because the cache could
// not be trusted for its key at Begin: a recorded write was not visible or ambiguous, a
// write ended in a conflict that the cache cannot show, or the cache was older than the
// writes of the last leader. Pass the versions of the live read to WroteAt, so that the
// next runs wait for the cache to show as much. finalizer.Ensure needs no care: it looks
// at LiveRead itself.
//
// After such a conflict LiveRead is true for one run. If that run fails before it has
// read, read live again. In a new leader it is true until each store has had an event or a
// bookmark: usually for less than a minute, and not at all for caches that began after the
// last leader had released its Lease. If Leases have an etcd of their own, with higher versions, it
// is true until each store has moved twice, ten minutes after the begin. It is true again while the version of a store is unknown,
// because a scope.Informer has selected a namespace whose cache is older. An Informer that selects no
// namespace has no old cache. LiveRead is false for a context that is not from Begin.
func LiveRead(ctx context.Context) bool {
	live, _ := ctx.Value(calls.LiveRead{}).(bool)
	return live
}

// Begin returns a context for a reconcile of the key. A transport from Wrap records the
// writes that are made with it, and LiveRead reports whether it requires live reads.
func (s *Store) Begin(ctx context.Context, key types.NamespacedName) context.Context {
	ctx = context.WithValue(ctx, runKey{s}, key)
	var apart []schema.GroupResource
	defer func() { logApart(ctx, apart) }() // without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.lagLocked(key)
	rec := s.records[key]
	if rec != nil {
		rec.live = time.Time{} // for one run
		if now := time.Now(); s.maxWait >= 0 && now.Sub(rec.last) >= s.maxWait {
			rec.endWaits(now)
		}
	}
	since, begun := calls.Since(ctx)
	shown, apart := s.showsLocked(since, begun, time.Now())
	if live := rec != nil || !shown; live != LiveRead(ctx) { // that value is another Store's
		ctx = context.WithValue(ctx, calls.LiveRead{}, live)
	}
	return ctx
}

// showsLocked reports whether all stores have reached the version of work that has begun then. If it
// is none, they have. It also returns the resources that are now known to be in another etcd.
func (s *Store) showsLocked(version string, begun, now time.Time) (shown bool, apart []schema.GroupResource) {
	shown = true
	if !reached(version, version) {
		return shown, nil
	}
	for resource, c := range s.stores { // all, so that each notes its moves
		shows, exempt := c.shows(version, begun, now)
		shown = shown && (shows || exempt)
		if exempt && !c.apart {
			c.apart = true
			apart = append(apart, resource)
		}
	}
	return shown, apart
}

// logApart logs that the resources are in another etcd than the Lease.
func logApart(ctx context.Context, resources []schema.GroupResource) {
	for _, r := range resources {
		klog.FromContext(ctx).Info("The cache is still at an earlier version than the Lease ten minutes after the start of the leader: they seem to be in different etcds, so LiveRead ignores this cache", "resource", r.String())
	}
}

// Ready reports whether the key may run. It is true if the cache shows all records of
// the key, and no record became ambiguous in the last AmbiguousWait. It is also true if
// MaxWait has passed since the last record, and then LiveRead is true in the run.
//
// If Ready returns false, it calls wake exactly once when the key may run: from an
// informer's handler, a timer or Clear. So wake must not block; it usually adds the key
// to a queue. Every call that returns false has its own wake. nil means no call.
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

// End ends the reconcile of the key and drops the records that the cache shows. Writes
// that finish later with the context of Begin are still recorded.
func (s *Store) End(key types.NamespacedName) { _ = s.EnsureReady(key) }

// Wait blocks until the cache shows all records of the key and returns nil. If ctx ends
// first, its error wraps the context's cause and an error whose Stale returns true. If a
// resource has no store that can be compared, Wait returns an error at once. It does not wait
// for ambiguous writes.
func (s *Store) Wait(ctx context.Context, key types.NamespacedName) error {
	done := make(chan struct{})
	w := &waiter{wake: func() { close(done) }}
	s.mu.Lock()
	missing := s.readyLocked(key)
	lag, stale := errors.AsType[*staleError](missing)
	if !stale {
		s.mu.Unlock()
		return missing
	}
	s.waitLocked(key, w, *lag, time.Now(), time.Time{})
	s.mu.Unlock()

	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forgetLocked(key, w) {
		return nil // the key became ready, and the wake is on its way
	}
	if err := s.readyLocked(key); err != nil {
		missing = err
	}
	cause := context.Cause(ctx)
	return &waitError{
		text: fmt.Sprintf("consistency: wait for %s: %v: %s", key, cause, strings.TrimPrefix(missing.Error(), "consistency: ")),
		errs: []error{cause, missing},
	}
}

// waitError wraps errors that have the prefix of the package, and has it once.
type waitError struct {
	text string
	errs []error
}

func (e *waitError) Error() string   { return e.text }
func (e *waitError) Unwrap() []error { return e.errs }

// waiter is a call of Ready or Wait that waits for a key.
type waiter struct {
	wake     func()
	gate     bool // a call of Ready, which has bounds; Wait is unbounded
	since    time.Time
	timedOut bool // MaxWait ended the wait
}

// mayGoLocked reports whether the wait is over. If not, it returns what the key lacks
// and the time of the next bound, which is zero if it is unbounded.
func (s *Store) mayGoLocked(key types.NamespacedName, w *waiter, now time.Time) (ok bool, lag staleError, next time.Time) {
	lag, verdict := s.lagLocked(key)
	rec := s.records[key]
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
	held := verdict != ready && verdict != overdue
	if held {
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
	w.timedOut = held
	return true, lag, time.Time{}
}

// waitLocked adds a waiter. The check that found the key not ready held the same lock,
// so no event is missed in between.
func (s *Store) waitLocked(key types.NamespacedName, w *waiter, lag staleError, now, next time.Time) {
	list := s.waiters[key]
	s.waiters[key] = append(list, w)
	if len(list) == 0 {
		s.fileLocked(key, lag)
		s.refileLocked()
	}
	s.armLocked(now, next)
}

// armLocked sets the timer for the next check: after RecheckInterval, or at the time
// next if that is earlier and not zero. It keeps a timer that fires before that.
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
func (s *Store) forgetLocked(key types.NamespacedName, w *waiter) bool {
	list := s.waiters[key]
	i := slices.Index(list, w)
	if i < 0 {
		return false
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		s.waiters[key] = list
	} else {
		delete(s.waiters, key)
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

// wakeReady wakes the keys that an event made ready.
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

// recheck checks all keys when the timer fires. A callback that lost a race with Stop
// finds no timer, or a newer one, which it postpones by at most one interval.
func (s *Store) recheck() {
	s.mu.Lock()
	now := time.Now()
	if s.timer != nil {
		s.due = now.Add(s.recheckEvery)
		s.timer.Reset(s.recheckEvery)
	}
	taken := s.takeAllLocked(now) // can set the timer to an earlier time
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
