package controllertest

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// lateness measures how long the observer has been behind: from the answer to a
// write until the event of it. A controller has Options.Settle to come to rest. It
// sees the cluster by watches as the observer does, so where not even the observer
// saw what was written the machine was busy, and that time is not the controller's.
type lateness struct {
	awaited map[types.UID]uint64 // the version that a write was answered with
	seen    map[types.UID]uint64 // the last one that was observed; MaxUint64 if the object is gone
	since   time.Time            // when there began to be awaited ones
	total   time.Duration        // before since
}

func newLateness() lateness {
	return lateness{awaited: map[types.UID]uint64{}, seen: map[types.UID]uint64{}}
}

// answered takes in that a write of the object was answered with a version.
func (l *lateness) answered(uid types.UID, version uint64, now time.Time) {
	if uid == "" || version <= max(l.seen[uid], l.awaited[uid]) {
		return
	}
	if len(l.awaited) == 0 {
		l.since = now
	}
	l.awaited[uid] = version
}

// observed takes in an event. The answer to an update that removes the last
// finalizer has a version that no event has: the deletion stands for all.
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

// reset begins to measure anew.
func (l *lateness) reset(now time.Time) { l.since, l.total = now, 0 }

// sum is how long the observer has been behind since reset.
func (l *lateness) sum(now time.Time) time.Duration {
	if len(l.awaited) > 0 {
		return l.total + now.Sub(l.since)
	}
	return l.total
}
