package leader

import (
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// runAnnotation holds a UUID of the Run that last acquired the Lease. It tells
// apart two processes with the same identity. client-go's elector keeps it and
// does not look at it.
const runAnnotation = "controllerkit.github.io/leader-run"

// sentLimit bounds how many writes without a response are remembered.
const sentLimit = 64

// A candidate is one Run: its resolved configuration and what it knows.
type candidate struct {
	elector  *Elector
	client   LeaseClient
	identity string
	run      string // goes into runAnnotation

	leaseDuration, renewDeadline, retryPeriod            time.Duration
	startTimeout, drainTimeout, stopTimeout, callTimeout time.Duration

	wall func(time.Time) time.Time

	metrics Metrics
	notes   chan note // what Event has not been called with yet
	logger  klog.Logger
	ref     string        // namespace/name
	kick    chan struct{} // the watch brought news; read while campaigning

	mu      sync.Mutex // guards the fields below
	seen    view
	sent    []coordinationv1.LeaseSpec // the record last stored, as far as is known, and all tried since
	stored  *coordinationv1.Lease      // the last answer to a write; nil means none yet
	strange *coordinationv1.Lease      // the last version the watch told of that is not this Run's, or was deleted
	leading *term                      // nil while campaigning

	reached bool // a read or a conflict showed that the Lease can be reached; only acquire uses it
}

// A view is what this process knows of the Lease. What it knows may be out of
// date, or even go back in time where the watch lags behind a read. That is
// safe: each write is conditional on the version in the view, and going back
// counts as a change, so it only makes the candidate wait longer.
type view struct {
	known   bool                  // whether anything was seen yet
	lease   *coordinationv1.Lease // never modified; nil means there is none
	changed time.Time             // when the record was last seen to change, by this process's clock
	vacant  time.Time             // if there is none: until when the last record may be valid
	number  int64                 // above every term seen: the first term of a Lease created next
}

// mayAcquire decides "may I acquire": whether this candidate, whose own work
// has ended, may write itself into the Lease it has seen (nil: may create it),
// and if not, when that will be unless the Lease changes. It may if
//
//   - the Lease was released,
//   - or the record is one that this very Run wrote, in an earlier term or in an
//     attempt whose response was lost. An equal identity is not enough,
//   - or for the record's LeaseDuration this candidate has not seen it change,
//   - or there is no Lease, and none was ever seen, or its time is over too.
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

// freeAtLocked is when the record in view ceases to bar others.
func (c *candidate) freeAtLocked() time.Time {
	v := c.seen
	if ptr.Deref(v.lease.Spec.HolderIdentity, "") == "" || c.wroteLocked(v.lease) {
		return time.Time{}
	}
	return v.changed.Add(c.durationOf(v.lease))
}

// numberOf is the number of the record's term.
func numberOf(lease *coordinationv1.Lease) int64 {
	return int64(ptr.Deref(lease.Spec.LeaseTransitions, 0))
}

// durationOf is how long the record bars others, and the own one if it does not say.
func (c *candidate) durationOf(lease *coordinationv1.Lease) time.Duration {
	if s := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); s > 0 {
		return time.Duration(s) * time.Second
	}
	return c.leaseDuration
}

// wroteLocked reports whether the record is one that this Run wrote and that
// nobody has written over. Every field counts: client-go's elector with the same
// identity would keep the annotation, and others go by a record that was edited.
//
// Without the annotation, which an admission plugin may remove, only the very
// version that the API server answered with is this Run's.
func (c *candidate) wroteLocked(lease *coordinationv1.Lease) bool {
	answered := c.stored != nil && lease.ResourceVersion != "" &&
		lease.UID == c.stored.UID && lease.ResourceVersion == c.stored.ResourceVersion
	return (answered || lease.Annotations[runAnnotation] == c.run) &&
		slices.ContainsFunc(c.sent, func(spec coordinationv1.LeaseSpec) bool {
			return apiequality.Semantic.DeepEqual(spec, lease.Spec)
		})
}

// holds reports whether the Lease just read is still this Run's; nil is not.
func (c *candidate) holds(lease *coordinationv1.Lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return lease != nil && c.wroteLocked(lease)
}

// observeLocked takes in a version of the Lease. A change of metadata alone is
// none of the record, as for client-go's elector.
func (c *candidate) observeLocked(lease *coordinationv1.Lease) {
	v := &c.seen
	if v.lease == nil || v.lease.UID != lease.UID || !apiequality.Semantic.DeepEqual(v.lease.Spec, lease.Spec) {
		v.changed = time.Now()
	}
	v.known, v.lease = true, lease
	v.number = max(v.number, numberOf(lease)+1) // old events must not lower it
}

// observeNoneLocked takes in that there is no Lease. If there was one, another
// replica may have acquired or renewed it, unseen, right before it was deleted.
// So its time is waited out from now on, whatever was in the record seen last,
// except by the leader itself: as long as its own term is valid nobody has. (That
// the exception may be no wider is a counter-example of the model in the tests.)
func (c *candidate) observeNoneLocked() {
	v := &c.seen
	if v.lease != nil {
		v.vacant = time.Time{}
		if c.leading == nil || !c.leading.valid() {
			v.vacant = time.Now().Add(max(c.durationOf(v.lease), c.leaseDuration))
		}
	}
	v.known, v.lease = true, nil
}

// observeDeletedLocked takes in that the Lease was deleted, and its last version.
// Unlike a read that finds none, it leaves nothing unseen.
func (c *candidate) observeDeletedLocked(last *coordinationv1.Lease) {
	c.observeLocked(last)
	c.seen.vacant = c.freeAtLocked()
	c.seen.lease = nil
}

// guard says which term the watch has to guard; nil means none. What the watch
// told before, while the claim was under way, counts too.
func (c *candidate) guard(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = t
	if t != nil && c.doubtedLocked() {
		t.renewAtOnce()
	}
}

// doubtedLocked reports whether the watch told of something that is not this
// Run's, and that its last write did not replace.
func (c *candidate) doubtedLocked() bool {
	order, ok := compare(c.strange, c.stored)
	return c.strange != nil && (!ok || order > 0)
}

// doubted is doubtedLocked without the lock.
func (c *candidate) doubted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubtedLocked()
}
