package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// watch keeps a watch on the Lease until ctx is done. The watch only makes changes
// visible sooner, so a failure costs time and no correctness.
func (c *candidate) watch(ctx context.Context) {
	first, limit := c.RetryPeriod/4, 16*c.RetryPeriod
	forbidden := false
	for delay := first; ctx.Err() == nil; {
		lasted, err := c.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if lasted > 2*c.RetryPeriod {
			delay = first // it has replaced a read
		}
		if apierrors.IsForbidden(err) && !forbidden {
			forbidden = true
			c.logger.Info("Cannot watch the Lease, so reads notice a hand-over later: grant the verb watch on leases", "err", tenure.Printable(err))
		}
		c.logger.V(2).Info("The watch of the Lease ended, using reads until it is restarted", "err", tenure.Printable(err), "retryAfter", delay)
		timer := time.NewTimer(tenure.Jittered(delay))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		delay = min(2*delay, limit)
	}
}

// watchOnce follows one watch to its end and returns how long it was established.
func (c *candidate) watchOnce(ctx context.Context) (lasted time.Duration, err error) {
	// Renews the connection, because a dead one is not always noticed.
	lifetime := 5*time.Minute + rand.N(5*time.Minute)
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	defer cancel()
	establish := time.AfterFunc(c.CallTimeout, cancel)
	w, err := c.client.Watch(ctx, metav1.ListOptions{
		FieldSelector:  fields.OneTermEqualSelector(metav1.ObjectNameField, c.elector.Name).String(),
		TimeoutSeconds: ptr.To(int64(lifetime / time.Second)),
	})
	establish.Stop()
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	defer func() { lasted = time.Since(start) }()
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok {
				return 0, errors.New("closed by the server")
			}
			if event.Type == watch.Error {
				return 0, apierrors.FromObject(event.Object)
			}
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Name == c.elector.Name && !c.elsewhere(lease) {
				c.event(event.Type, lease)
			}
		}
	}
}

// event handles a watch event. It ignores an event that is older than the view. While
// leading, a newer event ends the term if the Lease was deleted or is in a later term.
// After any other record that is not this Run's the leader renews at once, which shows
// whether it still holds the Lease.
func (c *candidate) event(kind watch.EventType, lease *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := kind != watch.Deleted && c.wroteLocked(lease) && (c.leading == nil || lease.UID == c.leading.LeaseUID)
	if order, ok := compare(lease, c.foreign); !own && (!ok || order > 0) {
		c.foreign = lease
	}
	t := c.leading
	if order, ok := compare(lease, c.seen.lease); ok && order < 0 && (t == nil || lease.UID == t.LeaseUID) {
		return // without a wake: a standby whose watch lags goes on reading
	}
	if t != nil {
		same := lease.UID == t.LeaseUID
		switch {
		case same && kind == watch.Deleted:
			t.failed(errors.New("the Lease was deleted"))
			t.End()
		case same && numberOf(lease) > t.Number:
			t.failed(c.notHeld(lease))
			t.End()
		case !own:
			t.renewAtOnce()
			return
		}
	}
	c.late = c.lateLocked(lease)
	switch {
	case kind != watch.Deleted:
		c.observeLocked(lease)
	case c.seen.lease != nil && c.seen.lease.UID == lease.UID:
		c.observeDeletedLocked(lease)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// A delay is the shortest time from renewTime to an event in one term. It has the difference of
// the leader's clock in it, so only a longer time means something: the watch lags.
type delay struct {
	holder   string
	number   int64
	shortest time.Duration

	last *coordinationv1.Lease // of the last event
	took time.Duration         // by the last event
	at   time.Time             // of the last event
}

// lateLocked reports whether the event took a RetryPeriod longer than another one of its term. A watch
// that falls behind slowly brings an event in each RetryPeriod, and the view is too old.
func (c *candidate) lateLocked(lease *coordinationv1.Lease) bool {
	if lease.Spec.RenewTime == nil {
		return false
	}
	// By the monotonic clock, which a change of the time does not change.
	took := time.Since(c.began) - lease.Spec.RenewTime.Sub(c.began)
	d := delay{ptr.Deref(lease.Spec.HolderIdentity, ""), numberOf(lease), took, lease, took, time.Now()}
	if d.holder == c.delay.holder && d.number == c.delay.number {
		d.shortest = min(took, c.delay.shortest)
	}
	c.delay = d
	return took-d.shortest > c.RetryPeriod
}

// promptLocked corrects the shortest time, which is too short for the rest of a term if the leader's clock is
// set back: the watch would seem late, and the standby would read. A read that was sent some time after an event and has the
// version of that event bounds the lag, because the leader writes the next version within 1.1 RetryPeriods and the time of a request.
func (c *candidate) promptLocked(lease *coordinationv1.Lease, sent time.Time) {
	d := &c.delay
	lag := c.RetryPeriod/5*6 - sent.Sub(d.at)
	if order, ok := compare(lease, d.last); ok && order == 0 && lag >= 0 && !sent.Before(d.at) {
		d.shortest = max(d.shortest, d.took-lag)
		c.late = d.took-d.shortest > c.RetryPeriod
	}
}

// isLate is the last result of lateLocked, as corrected by promptLocked.
func (c *candidate) isLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// compare orders two versions of one Lease: a is later if order is positive. ok is
// false if they cannot be compared.
func compare(a, b *coordinationv1.Lease) (order int, ok bool) {
	if a == nil || b == nil || a.UID != b.UID {
		return 0, false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return order, err == nil
}
