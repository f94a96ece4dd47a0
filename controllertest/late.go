package controllertest

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// lateness measures how long the observer is behind: from the response to a write until
// its event. Watches of the controller are as late as the observer's watches on a busy
// machine, so this time does not count for Options.ConvergeTimeout.
type lateness struct {
	awaited map[types.UID]uint64 // the version in the response to a write
	seen    map[types.UID]uint64 // the last observed version; MaxUint64 if the object is deleted
	since   time.Time            // when awaited was empty last
	total   time.Duration        // before since
}

func newLateness() lateness {
	return lateness{awaited: map[types.UID]uint64{}, seen: map[types.UID]uint64{}}
}

// responded stores the version in the response to a write of an object.
func (l *lateness) responded(uid types.UID, version uint64, now time.Time) {
	if uid == "" || version <= max(l.seen[uid], l.awaited[uid]) {
		return
	}
	if len(l.awaited) == 0 {
		l.since = now
	}
	l.awaited[uid] = version
}

// observed stores the version of an event. If an update removes the last finalizer, no
// event has the version of its response, so a deletion ends the wait for all versions.
func (l *lateness) observed(uid types.UID, version uint64, kind watch.EventType, now time.Time) {
	if kind == watch.Deleted {
		version = math.MaxUint64
	}
	l.seen[uid] = max(l.seen[uid], version)
	if awaited, ok := l.awaited[uid]; !ok || awaited > l.seen[uid] {
		return
	}
	delete(l.awaited, uid)
	if len(l.awaited) == 0 {
		l.total += now.Sub(l.since)
	}
}

// listed stores that a list has shown the objects at a version. Those that were created and deleted
// before it have no event.
func (l *lateness) listed(is func(types.UID) bool, version uint64, now time.Time) {
	for uid, awaited := range l.awaited {
		if awaited <= version && is(uid) {
			l.observed(uid, awaited, watch.Modified, now)
		}
	}
}

// reset restarts the measurement.
func (l *lateness) reset(now time.Time) { l.since, l.total = now, 0 }

// sum returns how long the observer was behind since reset.
func (l *lateness) sum(now time.Time) time.Duration {
	if len(l.awaited) > 0 {
		return l.total + now.Sub(l.since)
	}
	return l.total
}

// slowness measures how long requests of the controller waited for the API server, beyond
// slowAnswer. On a busy machine one request takes seconds, and a reconcile waits for it.
type slowness struct {
	sent  map[*fault.Op]time.Time // the requests without an answer
	until time.Time               // total counts until then
	total time.Duration
}

const slowAnswer = 250 * time.Millisecond

func newSlowness() slowness { return slowness{sent: map[*fault.Op]time.Time{}} }

// begin stores that a request is sent at a time.
func (s *slowness) begin(op *fault.Op, at time.Time) { s.sent[op] = at }

// end stores that a request was answered, or has failed.
func (s *slowness) end(op *fault.Op, now time.Time) {
	s.total, s.until = s.sum(now), now
	delete(s.sent, op)
}

// reset restarts the measurement.
func (s *slowness) reset(now time.Time) { s.total, s.until = 0, now }

// sum returns how long, since reset, at least one request waited.
func (s *slowness) sum(now time.Time) time.Duration {
	from := now
	for _, at := range s.sent {
		if slow := at.Add(slowAnswer); slow.Before(from) {
			from = slow
		}
	}
	if from.Before(s.until) {
		from = s.until
	}
	return s.total + max(0, now.Sub(from))
}
