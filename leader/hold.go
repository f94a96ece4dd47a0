package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// renew keeps the Lease renewed until ctx is done, which is at the end of the term.
// Attempts are RetryPeriod apart from send to send, and up to a tenth more after a
// success, so that leaders that started together do not stay in step.
func (c *candidate) renew(ctx context.Context, t *term) {
	defer c.setLeading(nil)
	next := t.LastRenewal().Add(c.RetryPeriod)
	for {
		timer := time.NewTimer(max(1, time.Until(next)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.doubt:
			timer.Stop()
			if !c.doubted() {
				continue // a later renewal has settled it
			}
		case <-timer.C:
		}
		if !t.Valid() {
			return // after a suspend the term's own timer may be late
		}
		next = time.Now().Add(c.RetryPeriod)
		if err := c.renewOnce(ctx, t); err == nil {
			t.failed(nil)
			// Without jitter after a failure: more attempts fit before RenewDeadline.
			next = next.Add(rand.N(c.RetryPeriod/10 + 1))
		} else if ctx.Err() == nil {
			t.failed(err)
			c.logger.V(2).Info("Could not renew the Lease", "term", t.Number, "err", tenure.Printable(err))
		}
	}
}

var (
	errTaken  = errors.New("the Lease is another's")
	errEdited = errors.New("the Lease has a record of this replica that is not its last one: it was edited, or etcd was restored")
)

// notHeld returns why the record is not this Run's.
func (c *candidate) notHeld(lease *coordinationv1.Lease) error {
	if lease != nil && lease.Annotations[runAnnotation] == c.run && ptr.Deref(lease.Spec.HolderIdentity, "") == c.identity {
		return errEdited
	}
	return errTaken
}

// renewOnce writes one renewal. A conflict has three causes: an own attempt whose
// response was lost, a change of the metadata, or another holder. Another holder ends
// the term.
func (c *candidate) renewOnce(ctx context.Context, t *term) error {
	c.mu.Lock()
	lease := c.seen.lease
	c.mu.Unlock()
	for tries := 1; ; tries++ {
		if c.holds(lease) && lease.UID == t.LeaseUID {
			sent := tenure.At(time.Now(), c.wall)
			now := tenure.Micro(sent.Mono)
			spec := *lease.Spec.DeepCopy()
			spec.RenewTime = &now
			got, err := c.write(ctx, lease, spec)
			if err == nil {
				slow := time.Since(t.LastRenewal()) >= c.RenewDeadline/2
				t.Extend(sent, c.validFor(got))
				c.metrics.LeaderRenewal(c.ref, time.Since(sent.Mono), slow)
				return nil
			}
			if !tenure.IsConflict(err) || tries == 3 {
				return err // the next attempt is a RetryPeriod away
			}
		}
		var err error
		if lease, err = c.read(ctx); err != nil {
			return err
		}
		if !c.holds(lease) || lease.UID != t.LeaseUID {
			err := c.notHeld(lease)
			t.failed(err)
			t.End()
			return err
		}
	}
}

// release gives up the Lease if the record just read is still this Run's. It retries
// for RenewDeadline, in which one call may hang, unless the API server forbids it. Then
// the Lease expires.
func (c *candidate) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.RenewDeadline)
	defer cancel()
	var last error // of an attempt that ctx did not end
	for tries := 1; ; tries++ {
		err := c.releaseOnce(ctx)
		switch {
		case err == nil:
			return
		case ctx.Err() == nil:
			last = err
		case last != nil:
			err = last
		}
		if ctx.Err() != nil || apierrors.IsForbidden(err) && c.isRefusal(err) {
			c.logger.Error(tenure.Printable(err), "Could not release the Lease, it expires")
			return
		}
		if tenure.IsConflict(err) && tries == 1 {
			continue // with a renewal that was in flight, or with the next leader
		}
		c.sleep(ctx, time.Now().Add(c.RetryPeriod/4))
	}
}

// releaseOnce is one attempt, with client-go's record of a released Lease. If the Lease
// is another's, it returns nil: there is no Lease to release.
func (c *candidate) releaseOnce(ctx context.Context) error {
	lease, err := c.read(ctx)
	if err != nil || !c.holds(lease) {
		return err
	}
	now := tenure.Micro(time.Now())
	_, err = c.write(ctx, lease, coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To(""),
		LeaseDurationSeconds: ptr.To(int32(1)),
		AcquireTime:          &now,
		RenewTime:            &now,
		LeaseTransitions:     lease.Spec.LeaseTransitions,
	})
	if err == nil {
		c.logger.Info("Released the Lease")
	}
	return err
}
