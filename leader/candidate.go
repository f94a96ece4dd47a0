package leader

import (
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// runAnnotation holds a UUID of the Run that last acquired the Lease. It distinguishes
// two processes with the same identity. client-go's elector keeps it and ignores it.
const runAnnotation = "controllerkit.github.io/leader-run"

// sentLimit bounds how many writes without a response are remembered.
const sentLimit = 64

// A candidate is one Run: its resolved configuration and its knowledge of the Lease.
type candidate struct {
	elector  *Elector
	client   LeaseClient
	identity string
	run      string // goes into runAnnotation
	began    time.Time

	tenure.Times
	wall func(time.Time) time.Time

	metrics Metrics
	notes   chan note // pending calls of Event
	logger  klog.Logger
	ref     string        // namespace/name
	wake    chan struct{} // the watch has an event; read while campaigning

	mu      sync.Mutex // guards the fields below
	seen    view
	sent    []coordinationv1.LeaseSpec // the last record that is known to be stored, and all later attempts
	stored  *coordinationv1.Lease      // the last response to a write; nil before the first
	foreign *coordinationv1.Lease      // the last version of the watch that is not this Run's, or was deleted
	leading *term                      // nil while campaigning
	delay   delay                      // of the watch
	late    bool                       // the last event was

	reached bool // a read or a conflict has reached the API server; only the goroutine of Run uses it
	sees    bool // the last value of Metrics.LeaderSeen; only the goroutine of Run uses it
}

// see reports whether there is a leader, if that has changed.
func (c *candidate) see(seen bool) {
	if seen != c.sees {
		c.sees = seen
		c.metrics.LeaderSeen(c.ref, seen)
	}
}

// A view is the Lease as this process knows it. It may be out of date, and may go back
// in time if etcd is restored or a read is overtaken. Both are safe: each write is
// conditional on the version in the view, and a step back counts as a change, so the
// candidate only waits longer.
type view struct {
	known   bool                  // a read or an event has arrived
	lease   *coordinationv1.Lease // never modified; nil means absent
	changed time.Time             // the last change of the record, by this process's clock
	vacant  time.Time             // if absent: the end of the last record's validity
	number  int64                 // above every term seen: the first term of the next Lease
}

// mayAcquire decides "may I acquire": whether this candidate, whose own work has ended,
// may write itself into the Lease it has seen, or create it if that is nil. If not, at
// is the time when it may unless the Lease changes. It may if
//
//   - the Lease was released,
//   - or this Run wrote the record, in an earlier term or in an attempt whose response
//     was lost; an equal identity is not enough,
//   - or it has not seen the record change for the record's LeaseDuration,
//   - or the Lease is absent, and the time of the last Lease it saw is over.
func (c *candidate) mayAcquire() (lease *coordinationv1.Lease, may bool, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.seen
	switch {
	case !v.known:
		return nil, false, time.Time{}
	case v.lease == nil:
		at = v.vacant
	default:
		at = c.freeAtLocked()
	}
	return v.lease, !time.Now().Before(at), at
}

// freeAtLocked returns the time when other candidates may replace the record in view.
func (c *candidate) freeAtLocked() time.Time {
	v := c.seen
	if ptr.Deref(v.lease.Spec.HolderIdentity, "") == "" || c.wroteLocked(v.lease) {
		return time.Time{}
	}
	return v.changed.Add(c.durationOf(v.lease))
}

// numberOf returns the number of the record's term.
func numberOf(lease *coordinationv1.Lease) int64 {
	return int64(ptr.Deref(lease.Spec.LeaseTransitions, 0))
}

// durationOf returns the record's duration, or by default the own one.
func (c *candidate) durationOf(lease *coordinationv1.Lease) time.Duration {
	if s := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); s > 0 {
		return time.Duration(s) * time.Second
	}
	return c.LeaseDuration
}

// wroteLocked reports whether this Run wrote the record and it was not changed after
// that. Every field counts: client-go's elector with the same identity would keep the
// annotation, and candidates obey an edited record.
//
// Without the annotation, which an admission plugin may remove, only the version of the
// last response is this Run's.
func (c *candidate) wroteLocked(lease *coordinationv1.Lease) bool {
	answered := c.stored != nil && lease.ResourceVersion != "" &&
		lease.UID == c.stored.UID && lease.ResourceVersion == c.stored.ResourceVersion
	return (answered || lease.Annotations[runAnnotation] == c.run) &&
		slices.ContainsFunc(c.sent, func(spec coordinationv1.LeaseSpec) bool {
			return apiequality.Semantic.DeepEqual(spec, lease.Spec)
		})
}

// holds reports whether the Lease just read is still this Run's; an absent one is not.
func (c *candidate) holds(lease *coordinationv1.Lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return lease != nil && c.wroteLocked(lease)
}

// observeLocked records a version of the Lease. A change of metadata alone is no change
// of the record, as in client-go's elector.
func (c *candidate) observeLocked(lease *coordinationv1.Lease) {
	v := &c.seen
	if v.lease == nil || v.lease.UID != lease.UID || !apiequality.Semantic.DeepEqual(v.lease.Spec, lease.Spec) {
		v.changed = time.Now()
	}
	v.known, v.lease = true, lease
	v.number = max(v.number, numberOf(lease)+1) // old events must not lower it
}

// observeNoneLocked records that the Lease is absent. If it existed, another replica
// may have acquired or renewed it, unseen, just before the deletion. So the candidate
// waits for its duration from now on, whichever record it saw last. The leader need not
// wait: no other replica led while its own term is valid. (A wider exception is a
// counter-example of the model in the tests.)
func (c *candidate) observeNoneLocked() {
	v := &c.seen
	if v.lease != nil {
		v.vacant = time.Time{}
		if c.leading == nil || !c.leading.Valid() {
			v.vacant = time.Now().Add(max(c.durationOf(v.lease), c.LeaseDuration))
		}
	}
	v.known, v.lease = true, nil
}

// observeDeletedLocked records a deletion and the last version. Unlike a read of an
// absent Lease, it leaves no unseen version.
func (c *candidate) observeDeletedLocked(last *coordinationv1.Lease) {
	c.observeLocked(last)
	c.seen.vacant = c.freeAtLocked()
	c.seen.lease = nil
}

// setLeading sets the term that the watch guards; nil disables that. An event that arrived
// while the claim was in flight counts too.
func (c *candidate) setLeading(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = t
	if t != nil && c.doubtedLocked() {
		t.renewAtOnce()
	}
}

// doubtedLocked reports whether the watch has a version that is not this Run's and that
// its last write did not replace.
func (c *candidate) doubtedLocked() bool {
	order, ok := compare(c.foreign, c.stored)
	return c.foreign != nil && (!ok || order > 0)
}

// doubted is doubtedLocked without the lock held.
func (c *candidate) doubted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubtedLocked()
}
