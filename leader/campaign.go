package leader

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// claimJitter bounds the random wait before a free Lease is claimed, so that of
// many standbys the first ones to try spare the others a conflict.
const claimJitter = 50 * time.Millisecond

// acquire campaigns until this process is the leader. It returns nil and nil
// once ctx is done, and an error if the Lease cannot be used.
//
// Each round does one of three things: it reads the Lease if nothing was heard of
// it for too long, or waits, or claims the Lease. News from the watch ends a wait.
func (c *candidate) acquire(ctx context.Context) (*term, error) {
	var (
		begun        = time.Now()
		refusedSince time.Time // the free Lease may not be written; zero: it may, as far as is known
		nextRead     time.Time // zero: at once
		nextClaim    time.Time
		wasFree      bool
		conflicts    int  // how many claims in a row came too late
		unsure       bool // a claim may have been stored although it is not held
	)
	for ctx.Err() == nil {
		if !time.Now().Before(nextRead) {
			nextRead = time.Now().Add(c.pollPeriod())
			_, err := c.read(ctx)
			switch {
			case err == nil:
				c.reached, unsure = true, false
			case ctx.Err() == nil:
				c.logger.V(2).Info("Could not read the Lease", "err", err)
				nextRead = time.Now().Add(jittered(c.retryPeriod))
				// An outage after the Lease was reached is waited out.
				if !c.reached && time.Since(begun) >= c.startTimeout {
					return nil, c.unusable("get", err)
				}
			}
			continue
		}

		lease, may, at := c.mayAcquire()
		if may && !wasFree {
			nextClaim = latest(nextClaim, time.Now().Add(rand.N(min(claimJitter, c.retryPeriod))))
		}
		if wasFree = may; !may {
			// Others use it well. What went wrong before is no longer of interest.
			conflicts, nextClaim, refusedSince = 0, time.Time{}, time.Time{}
		}
		if !may || time.Now().Before(nextClaim) {
			wake := nextRead
			switch {
			case may:
				wake = earliest(wake, nextClaim)
			case !at.IsZero():
				wake = earliest(wake, at)
			}
			if news := c.sleep(ctx, wake); news {
				nextRead = time.Now().Add(c.pollPeriod())
			}
			continue
		}

		// Not cut short by ctx: the answer says whether there is something to release.
		t, err := c.claim(context.WithoutCancel(ctx), lease)
		unsure = true
		switch {
		case err == nil && ctx.Err() == nil && t.valid():
			return t, nil
		case err == nil:
			// Not wanted any more, or this process was paused for RenewDeadline.
			// Then the record is its own and can be claimed again.
			t.end()
			c.guard(nil)
		case isConflict(err):
			// Somebody was faster, and may be done with it already. The more often in
			// a row, the more there are who try, or something is wrong.
			nextClaim = time.Now().Add(rand.N(min(claimJitter<<min(conflicts, 16), c.retryPeriod)))
			nextRead, refusedSince = nextClaim, time.Time{}
			conflicts++
			c.reached = true
		default:
			c.logger.V(2).Info("Could not acquire the Lease", "err", err)
			nextClaim = time.Now().Add(jittered(c.retryPeriod))
			nextRead = nextClaim
			if !isRefusal(err) {
				refusedSince = time.Time{}
				break
			}
			if refusedSince.IsZero() {
				refusedSince = time.Now()
			}
			if time.Since(refusedSince) >= c.startTimeout {
				return nil, c.unusable(verbOf(lease), err)
			}
		}
	}
	if unsure {
		c.release(ctx)
	}
	return nil, nil
}

// verbOf is the verb of a claim of the given Lease.
func verbOf(lease *coordinationv1.Lease) string {
	if lease == nil {
		return "create"
	}
	return "update"
}

// claim writes this candidate into the Lease it may acquire, on condition that
// the Lease is still the version it decided on.
func (c *candidate) claim(ctx context.Context, lease *coordinationv1.Lease) (*term, error) {
	c.mu.Lock()
	number := c.seen.number
	c.mu.Unlock()
	if lease != nil {
		number = int64(ptr.Deref(lease.Spec.LeaseTransitions, 0)) + 1
	}
	sent := time.Now()
	now := micro(sent)
	got, err := c.write(ctx, lease, coordinationv1.LeaseSpec{
		HolderIdentity:       &c.identity,
		LeaseDurationSeconds: ptr.To(int32(c.leaseDuration / time.Second)),
		AcquireTime:          &now,
		RenewTime:            &now,
		LeaseTransitions:     ptr.To(int32(number)),
	})
	if err != nil {
		return nil, err
	}
	t := newTerm(ctx, Term{LeaseUID: got.UID, Number: number}, sent, c.renewDeadline, c.leaseDuration+c.renewDeadline)
	c.guard(t)
	return t, nil
}

// unusable is the error of Run for a Lease that it cannot use.
func (c *candidate) unusable(verb string, err error) error {
	hint := ""
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		hint = fmt.Sprintf("; a Role in namespace %s must allow it: apiGroups [coordination.k8s.io], resources [leases], verbs [%s]", c.elector.Namespace, verb)
		if verb == "create" {
			hint += ", without resourceNames"
		}
	}
	return fmt.Errorf("leader: no success within StartTimeout, which is %v: %s leases.coordination.k8s.io %s: %w%s", c.startTimeout, verb, c.ref, err, hint)
}

// sleep waits until the given time, or until the watch brings news, or for ctx.
func (c *candidate) sleep(ctx context.Context, until time.Time) (news bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-c.kick:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// pollPeriod is how long a candidate that hears nothing waits before it reads
// the Lease. A watch that works brings the leader's renewal sooner.
func (c *candidate) pollPeriod() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching {
		return 2 * jittered(c.retryPeriod)
	}
	return jittered(c.retryPeriod)
}

// isRefusal: the API server answered, and will answer the same next time.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotFound(err) // of a create: the namespace does not exist
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
