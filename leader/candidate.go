package leader

import (
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	leaseDuration, renewDeadline, retryPeriod time.Duration
	startTimeout, drainTimeout, callTimeout   time.Duration

	metrics Metrics
	logger  klog.Logger
	ref     string        // namespace/name
	kick    chan struct{} // the watch brought news; read while campaigning

	mu       sync.Mutex // guards the fields below
	seen     view
	sent     []metav1.MicroTime // renewTime of the last write that succeeded and of all tried since
	leading  *term              // nil while campaigning
	watching bool               // a watch is established

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
	number  int64                 // the first term of a Lease created next
}

// mayAcquire decides "may I acquire": whether this candidate, whose own work
// has ended, may write itself into the Lease it has seen (nil: may create it),
// and if not, when that will be unless the Lease changes. It may if
//
//   - the Lease was released,
//   - or the record is one that this very Run wrote, in an earlier term or in an
//     attempt whose response was lost. An equal identity is not enough,
//   - or for the record's LeaseDuration this candidate has not seen it change,
//   - or there is no Lease, and none was ever seen, or that time has passed since
//     it was seen gone: its holder may have renewed it right before.
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

// durationOf is how long the record bars others, and the own one if it does not say.
func (c *candidate) durationOf(lease *coordinationv1.Lease) time.Duration {
	if s := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); s > 0 {
		return time.Duration(s) * time.Second
	}
	return c.leaseDuration
}

// wroteLocked reports whether the record is one that this Run wrote and that
// nobody has written over. The renewTime tells it from a record of client-go's
// elector with the same identity, which would keep the annotation.
func (c *candidate) wroteLocked(lease *coordinationv1.Lease) bool {
	return c.signedLocked(lease) && lease.Spec.RenewTime != nil &&
		slices.ContainsFunc(c.sent, func(t metav1.MicroTime) bool { return t.Equal(lease.Spec.RenewTime) })
}

// holds reports whether the Lease just read is still this Run's; nil is not.
func (c *candidate) holds(lease *coordinationv1.Lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return lease != nil && c.wroteLocked(lease)
}

// signedLocked reports whether this Run acquired the Lease last.
func (c *candidate) signedLocked(lease *coordinationv1.Lease) bool {
	return ptr.Deref(lease.Spec.HolderIdentity, "") == c.identity && lease.Annotations[runAnnotation] == c.run
}

// observeLocked takes in a version of the Lease; nil means that there is none. A
// change of metadata alone is none of the record, as for client-go's elector.
func (c *candidate) observeLocked(lease *coordinationv1.Lease) {
	v := &c.seen
	if lease == nil {
		if v.lease != nil {
			// Counted from now: the record's last renewal may not have been seen.
			if v.vacant = c.freeAtLocked(); !v.vacant.IsZero() {
				v.vacant = time.Now().Add(c.durationOf(v.lease))
			}
		}
		v.known, v.lease = true, nil
		return
	}
	if v.lease == nil || v.lease.UID != lease.UID || !apiequality.Semantic.DeepEqual(v.lease.Spec, lease.Spec) {
		v.changed = time.Now()
	}
	v.known, v.lease = true, lease
	v.number = int64(ptr.Deref(lease.Spec.LeaseTransitions, 0)) + 1
}

// guard says which term the watch has to guard; nil means none.
func (c *candidate) guard(t *term) {
	c.mu.Lock()
	c.leading = t
	c.mu.Unlock()
}
