package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// claimJitter bounds the random wait before a free Lease is claimed, so that of
// many standbys the first ones to try spare the others a conflict.
const claimJitter = 50 * time.Millisecond

// acquire campaigns until this process is the leader. It returns nil and nil
// once ctx is done, and an error if the Lease cannot be used.
//
// Each round does one of three things: it reads the Lease if nothing was heard of
// it for too long, or waits, or claims the Lease. News from the watch ends a wait.
func (c *candidate) acquire(ctx context.Context) (t *term, err error) {
	var (
		unreadSince  time.Time // the Lease may not be read; zero: it may, as far as is known
		refusedSince time.Time // the free Lease may not be written
		freeSince    time.Time // the Lease may be claimed; zero: it may not
		nextRead     time.Time // zero: at once
		nextClaim    time.Time
		tooLate      int  // how many claims in a row came too late
		unsure       bool // the Lease has, or may have, this Run's record although it is not held
	)
	defer func() {
		if t == nil && unsure {
			c.release(ctx)
		}
	}()
	// lasts returns an error once there was a problem for StartTimeout.
	lasts := func(since *time.Time, verb string, err error) error {
		if since.IsZero() {
			*since = time.Now()
		}
		if time.Since(*since) >= c.startTimeout {
			return c.unusable(verb, err)
		}
		return nil
	}
	if !c.reached {
		unreadSince = time.Now()
	}
	for ctx.Err() == nil {
		if !time.Now().Before(nextRead) {
			nextRead = time.Now().Add(jittered(c.retryPeriod))
			lease, err := c.read(ctx)
			switch {
			case err == nil:
				c.reached, unsure, unreadSince = true, c.holds(lease), time.Time{}
				// However slow reads are, there is time for a claim between two.
				nextRead = latest(nextRead, time.Now().Add(c.retryPeriod/4))
			case ctx.Err() == nil:
				c.logger.V(2).Info("Could not read the Lease", "err", err)
				nextRead = time.Now().Add(jittered(c.retryPeriod))
				if c.reached && !c.isRefusal(err) {
					unreadSince = time.Time{} // an outage is waited out
				} else if err := lasts(&unreadSince, "get", err); err != nil {
					return nil, err
				}
			}
			continue
		}

		lease, may, at := c.mayAcquire()
		if lease != nil && lease.Spec.Strategy != nil {
			if err := lasts(&refusedSince, "update", fmt.Errorf("%w, %q", errStrategy, *lease.Spec.Strategy)); err != nil {
				return nil, err
			}
			freeSince = time.Time{}
			c.sleep(ctx, earliest(nextRead, refusedSince.Add(c.startTimeout)))
			continue
		}
		switch {
		case !may:
			// Others use it well. What went wrong before is no longer of interest.
			tooLate, nextClaim, refusedSince, freeSince = 0, time.Time{}, time.Time{}, time.Time{}
		case freeSince.IsZero():
			freeSince = time.Now()
			nextClaim = latest(nextClaim, freeSince.Add(rand.N(min(claimJitter, c.retryPeriod))))
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
				// A leader renews within 1.1 RetryPeriods. Who reads no later than 1.2
				// after the last news loses no time to a watch that is dead.
				nextRead = time.Now().Add(c.retryPeriod/20*23 + rand.N(c.retryPeriod/20+1))
				unreadSince = time.Time{}
			}
			continue
		}

		// Not cut short by ctx: the answer says whether there is something to release.
		t, err := c.claim(context.WithoutCancel(ctx), lease)
		unsure = true
		switch {
		case err == nil && ctx.Err() == nil && t.valid():
			t.took = time.Since(freeSince)
			return t, nil
		case err == nil:
			// Not wanted any more, or this process was paused for RenewDeadline.
			// Then the record is its own and can be claimed again.
			t.end()
			c.guard(nil)
		case isConflict(err):
			// Somebody was faster, and may be done with it already. The more often in
			// a row, the more there are who try, or something is wrong.
			nextClaim = time.Now().Add(rand.N(min(claimJitter<<min(tooLate, 16), c.retryPeriod)))
			nextRead, refusedSince = nextClaim, time.Time{}
			tooLate++
			c.reached = true
		default:
			c.logger.V(2).Info("Could not acquire the Lease", "err", err)
			nextClaim = time.Now().Add(jittered(c.retryPeriod))
			nextRead = nextClaim
			if !c.isRefusal(err) {
				refusedSince = time.Time{}
			} else if err := lasts(&refusedSince, verbOf(lease), err); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// errStrategy: the coordinated leader election of the control plane (KEP-4355)
// chooses the holder of a Lease with a strategy and writes it at will.
var errStrategy = errors.New("the Lease is one of coordinated leader election, it has a strategy: use a Lease of another name, or delete it")

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
	if lease == nil && c.seen.number > math.MaxInt32 {
		c.seen.number = 0 // the Lease was deleted as errNoTermLeft asks; the new one has another UID
	}
	number := c.seen.number
	c.mu.Unlock()
	switch {
	case lease != nil && numberOf(lease) == math.MaxInt32:
		return nil, errNoTermLeft
	case lease != nil:
		number = numberOf(lease) + 1
	}
	sent := instantOf(time.Now(), c.wall)
	now := micro(sent.mono)
	got, err := c.write(ctx, lease, coordinationv1.LeaseSpec{
		HolderIdentity:       &c.identity,
		LeaseDurationSeconds: ptr.To(int32(wholeSeconds(c.leaseDuration))),
		AcquireTime:          &now,
		RenewTime:            &now,
		LeaseTransitions:     ptr.To(int32(number)),
	})
	if err != nil {
		return nil, err
	}
	validFor := c.validFor(got)
	if validFor <= 0 {
		return nil, fmt.Errorf("%w: it is %v although LeaseDuration, which is %v, was sent", errShortened, c.durationOf(got), c.leaseDuration)
	}
	t := newTerm(ctx, Term{LeaseUID: got.UID, Number: number}, sent, validFor, c.leaseDuration+c.renewDeadline, c.wall)
	c.guard(t)
	return t, nil
}

// errNoTermLeft: somebody has edited leaseTransitions, which no fleet gets to.
var errNoTermLeft = errors.New("leaseTransitions has its highest value: delete the Lease")

// errShortened: others wait for less than the margin, so nobody can lead.
var errShortened = errors.New("an admission plugin shortens leaseDurationSeconds")

// validFor is how long a term is valid from when the record was sent that is
// stored as got. Others wait for what is stored. If that is less than what was
// sent, validity is shorter too, and the margin stays.
func (c *candidate) validFor(got *coordinationv1.Lease) time.Duration {
	return c.renewDeadline - max(0, c.leaseDuration-c.durationOf(got))
}

// wholeSeconds is d in seconds, rounded up: a Lease stores whole seconds, and
// nobody must wait for less than LeaseDuration.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// unusable is the error of Run for a Lease that it cannot use.
func (c *candidate) unusable(verb string, err error) error {
	hint := ""
	if apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		name := c.elector.Name
		if verb == "create" {
			name = "" // the rule cannot be limited by resourceNames
		}
		hint = fmt.Sprintf("; a Role in namespace %s must allow: %s", c.elector.Namespace, rule(name, verb))
	}
	return fmt.Errorf("leader: no success within StartTimeout, which is %v: %s leases.coordination.k8s.io %s: %w%s", c.startTimeout, verb, c.ref, err, hint)
}

// sleep waits until the given time, or until the watch brings news, or for ctx.
func (c *candidate) sleep(ctx context.Context, until time.Time) (news bool) {
	wait := time.Until(until)
	if wait <= 0 {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.kick:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// isRefusal reports whether a retry gets the same response. A response that is not
// the API server's own, such as that of a proxy, is an outage.
func (c *candidate) isRefusal(err error) bool {
	return !apierrors.IsUnexpectedServerError(err) && (errors.Is(err, errShortened) || errors.Is(err, errNoTermLeft) || errors.Is(err, errNotLeads) || errors.Is(err, errElsewhere) ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		kube.IsGone(err, c.elector.Namespace)) // of a create
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
