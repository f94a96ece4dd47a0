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
	"github.com/controllerkit/controllerkit/internal/validity"
)

// claimJitter bounds the random wait before a claim of a free Lease, so that the first
// of many standbys spare the others a conflict.
const claimJitter = 50 * time.Millisecond

// acquire campaigns until this process is the leader. It returns nil and nil once ctx
// is done, and an error if the Lease cannot be used.
//
// Each round reads the Lease if the last read or event is too old, or waits, or claims
// the Lease. An event of the watch ends a wait.
func (c *candidate) acquire(ctx context.Context) (t *term, err error) {
	var (
		unreadSince  time.Time // reads fail; zero: the last one succeeded
		refusedSince time.Time // writes of the free Lease are rejected
		freeSince    time.Time // the Lease is free; zero: it is not
		nextRead     time.Time // zero: at once
		nextClaim    time.Time
		tooLate      int  // conflicts of claims in a row
		logged       bool // a problem was
		unsure       bool // the Lease may have this Run's record although it does not lead
	)
	// taken ends the time for which the Lease is free.
	taken := func() {
		if !freeSince.IsZero() {
			c.metrics.LeaderAbsent(c.ref, time.Since(freeSince))
			freeSince = time.Time{}
		}
	}
	defer func() {
		if t != nil {
			return
		}
		taken()
		if unsure {
			c.release(ctx)
		}
	}()
	// lasts returns an error after a problem has lasted for StartTimeout.
	lasts := func(since *time.Time, verb string, err error) error {
		if since.IsZero() {
			*since = time.Now()
		}
		if !logged {
			logged = true
			c.logger.Info("Cannot use the Lease, trying again", "verb", verb, "err", printable(err), "startTimeout", c.startTimeout)
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
				// Slow reads leave time for a claim between two of them.
				nextRead = latest(nextRead, time.Now().Add(c.retryPeriod/4))
			case ctx.Err() == nil:
				c.logger.V(2).Info("Could not read the Lease", "err", printable(err))
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
		c.see(!may && lease != nil)
		if lease != nil && lease.Spec.Strategy != nil {
			if err := lasts(&refusedSince, "update", fmt.Errorf("%w, %q", errStrategy, *lease.Spec.Strategy)); err != nil {
				return nil, err
			}
			taken()
			c.sleep(ctx, earliest(nextRead, refusedSince.Add(c.startTimeout)))
			continue
		}
		switch {
		case !may:
			// Others use the Lease, so earlier problems are over.
			tooLate, nextClaim, refusedSince = 0, time.Time{}, time.Time{}
			taken()
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
			if woken := c.sleep(ctx, wake); woken {
				// A leader renews within 1.1 RetryPeriods. A read at most 1.2 after the
				// last event loses no time to a dead watch.
				nextRead = time.Now().Add(c.retryPeriod/20*23 + rand.N(c.retryPeriod/20+1))
				unreadSince = time.Time{}
			}
			continue
		}

		// Not ended by ctx: the response decides whether there is a Lease to release.
		t, err := c.claim(context.WithoutCancel(ctx), lease)
		unsure = true
		switch {
		case err == nil && ctx.Err() == nil && t.Valid():
			t.took = time.Since(freeSince)
			return t, nil
		case err == nil:
			// ctx is done, or this process was paused for RenewDeadline. Then the
			// record is its own and can be claimed again.
			t.End()
			c.setLeading(nil)
		case isConflict(err):
			// Another candidate was faster, and may have released the Lease already.
			// More conflicts in a row mean more candidates, or a fault.
			nextClaim = time.Now().Add(rand.N(min(claimJitter<<min(tooLate, 16), c.retryPeriod)))
			nextRead, refusedSince = nextClaim, time.Time{}
			tooLate++
			c.reached = true
		default:
			c.logger.V(2).Info("Could not acquire the Lease", "err", printable(err))
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

// errStrategy is the error for a Lease with a strategy: the coordinated leader election
// of the control plane (KEP-4355) chooses its holder and writes it at any time.
var errStrategy = errors.New("the Lease has a strategy of coordinated leader election: use another name, or delete the Lease")

// verbOf returns the verb of a claim of the given Lease.
func verbOf(lease *coordinationv1.Lease) string {
	if lease == nil {
		return "create"
	}
	return "update"
}

// claim writes this candidate into the Lease that it may acquire. The write fails if
// the Lease is no longer the version of the decision.
func (c *candidate) claim(ctx context.Context, lease *coordinationv1.Lease) (*term, error) {
	c.mu.Lock()
	if lease == nil && c.seen.number > math.MaxInt32 {
		c.seen.number = 0 // the Lease with the highest number was deleted; the new one has another UID
	}
	number, last := c.seen.number, c.seen.changed
	c.mu.Unlock()
	switch {
	case lease != nil && numberOf(lease) == math.MaxInt32:
		return nil, errNoTermLeft
	case lease != nil:
		number = numberOf(lease) + 1
	}
	sent := validity.At(time.Now(), c.wall)
	now := micro(sent.Mono)
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
		return nil, fmt.Errorf("%w: %v instead of LeaseDuration (%v): change the plugin", errShortened, c.durationOf(got), c.leaseDuration)
	}
	since := got.ResourceVersion
	if lease != nil && ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		since = lease.ResourceVersion // the last leader released it after its work
	}
	t := newTerm(ctx, Term{LeaseUID: got.UID, Number: number}, since, latest(last, c.began), sent, validFor, c.leaseDuration+c.renewDeadline, c.wall)
	c.setLeading(t)
	return t, nil
}

// errNoTermLeft is the error for an edited leaseTransitions; no real number gets there.
var errNoTermLeft = errors.New("leaseTransitions has the highest value: delete the Lease")

// errShortened is the error if candidates wait for less than the margin: no term is
// valid.
var errShortened = errors.New("an admission plugin shortens leaseDurationSeconds")

// validFor returns how long a term is valid after the record was sent that is stored as
// got. Other candidates wait for the stored duration. If that is shorter than the sent
// one, validity is shorter too, and the margin stays.
func (c *candidate) validFor(got *coordinationv1.Lease) time.Duration {
	return c.renewDeadline - max(0, c.leaseDuration-c.durationOf(got))
}

// wholeSeconds returns d in seconds, rounded up. A Lease stores whole seconds, and
// candidates must not wait for less than LeaseDuration.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// printable returns err with a text for one line of log: servers and proxies write it.
func printable(err error) error { return kube.PrintableError(err, 4<<10) }

// unusable returns the error of Run for a Lease that it cannot use.
func (c *candidate) unusable(verb string, err error) error {
	hint := ""
	if apierrors.IsForbidden(err) && !apierrors.IsUnexpectedServerError(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		name := c.elector.Name
		if verb == "create" {
			name = "" // a rule for create cannot have resourceNames
		}
		hint = fmt.Sprintf("; a Role in namespace %s must allow: %s", c.elector.Namespace, rule(name, verb))
	}
	return fmt.Errorf("leader: no success within StartTimeout (%v): %s leases.coordination.k8s.io %s: %w%s", c.startTimeout, verb, c.ref, err, hint)
}

// sleep waits until the given time, for an event of the watch, or for ctx.
func (c *candidate) sleep(ctx context.Context, until time.Time) (woken bool) {
	wait := time.Until(until)
	if wait <= 0 {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.wake:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// isRefusal reports whether a retry gets the same response. If the response is not the
// API server's own but e.g. a proxy's, it is an outage.
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
