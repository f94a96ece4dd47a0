// Package streaks counts the calls of failing keys, and has the deadlines of their retries.
package streaks

import (
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// A Streak counts the calls of a key since it last succeeded or was terminal. No result resets the
// count of another: if it did, results by turns would never back off. The times are since the start
// of Run.
//
// A call that an event brings before the deadline, and that ends before it, counts neither in
// Failures nor in Refusals, nor in the rate limiter. Otherwise events would lengthen the backoff.
type Streak struct {
	Attempts  int
	Failures  int    // that MaxAttempts counts
	Result    string // of the last call
	Races     int    // conflicts and stale results
	Rejected  int
	Forbidden int
	Refusals  int // those of Rejected and Forbidden that count for the delay

	Deadline time.Duration // when the last failure that counts is to be retried
	Left     time.Duration // from the end of the last call to the deadline; 0 if it was over
	Event    time.Duration // the first event that no call has handled yet, as in triggers.Reason
}

// Keys has the streak of each key whose last call did not succeed. It is not safe for concurrent
// use.
type Keys[K comparable] map[K]Streak

// Note counts a call that ended with the result, for an event. A key has an entry while it fails,
// so there are at most as many entries as failing keys.
func (k Keys[K]) Note(key K, result string, event, ended time.Duration) Streak {
	ends := result == controllerkit.ResultSuccess || result == controllerkit.ResultRequeue || result == controllerkit.ResultTerminal
	if ends && len(k) == 0 {
		return Streak{Attempts: 1, Event: event} // the caller needs no more of it; without a search
	}
	s := k[key]
	s.Event = triggers.Earlier(s.Event, event)
	s.Attempts++
	s.Result = result
	s.Left = max(s.Deadline-ended, 0)
	switch result {
	case controllerkit.ResultConflict, controllerkit.ResultStale:
		s.Races++
	case controllerkit.ResultRejected:
		s.Rejected++
	case controllerkit.ResultForbidden:
		s.Forbidden++
	}
	if s.Left == 0 && (result == controllerkit.ResultRejected || result == controllerkit.ResultForbidden) {
		s.Refusals++
	}
	if ends {
		delete(k, key)
	} else {
		k[key] = s
	}
	return s
}

// Anew begins the counts of a failing key anew, but for those of its calls. It reports whether the
// key fails.
func (k Keys[K]) Anew(key K) bool {
	s, ok := k[key]
	if ok {
		k[key] = Streak{Attempts: s.Attempts, Result: s.Result, Event: s.Event}
	}
	return ok
}

// Fail counts a failure of the last call, and returns their number.
func (k Keys[K]) Fail(key K) int {
	s := k[key]
	s.Failures++
	k[key] = s
	return s.Failures
}

// Park settles the events of a key that is not retried, and removes its deadline.
func (k Keys[K]) Park(key K) {
	s := k[key]
	s.Deadline, s.Event = 0, 0
	k[key] = s
}

// Retry sets the deadline of a key.
func (k Keys[K]) Retry(key K, deadline time.Duration) {
	s := k[key]
	s.Deadline = deadline
	k[key] = s
}
