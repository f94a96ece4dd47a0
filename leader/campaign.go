package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/tenure"
)

// claimJitter bounds the random wait before a claim of a free Lease, so that the first
// of many standbys spare the others a conflict.
const claimJitter = 50 * time.Millisecond

// A campaign is what a candidate knows between the rounds of acquire. A zero time means that the
// condition does not hold, or that the act may be done at once.
type campaign struct {
	*candidate
	unreadSince  time.Time // reads fail
	refusedSince time.Time // writes of the free Lease are rejected
	freeSince    time.Time // the Lease is free
	nextRead     time.Time
	nextClaim    time.Time
	conflicts    int  // of claims, in a row
	logged       bool // a problem was
	unsure       bool // the Lease may have this Run's record although it does not lead
}

// acquire campaigns until this process is the leader. It returns nil and nil once ctx
// is done, and an error if the Lease cannot be used.
//
// Each round reads the Lease if the last read or event is too old, or waits, or claims
// the Lease. An event of the watch ends a wait.
func (c *candidate) acquire(ctx context.Context) (t *term, err error) {
	m := &campaign{candidate: c}
	if !c.reached {
		m.unreadSince = time.Now()
	}
	defer func() {
		if t != nil {
			return
		}
		m.taken()
		if m.unsure {
			c.release(ctx)
		}
	}()
	for ctx.Err() == nil && t == nil && err == nil {
		if !time.Now().Before(m.nextRead) {
			err = m.readAgain(ctx)
			continue
		}
		lease, may, at := c.mayAcquire()
		c.see(!may && lease != nil)
		switch {
		case lease != nil && lease.Spec.Strategy != nil:
			if err = m.lasts(&m.refusedSince, "update", fmt.Errorf("%w, %q", errStrategy, *lease.Spec.Strategy)); err == nil {
				m.taken()
				c.sleep(ctx, earliest(m.nextRead, m.refusedSince.Add(c.StartTimeout)))
			}
			continue
		case !may:
			// Others use the Lease, so earlier problems are over.
			m.conflicts, m.nextClaim, m.refusedSince = 0, time.Time{}, time.Time{}
			m.taken()
		case m.freeSince.IsZero():
			m.freeSince = time.Now()
			m.nextClaim = tenure.Latest(m.nextClaim, m.freeSince.Add(rand.N(min(claimJitter, c.RetryPeriod))))
		}
		if until := m.waitUntil(may, at, time.Now()); until.IsZero() {
			t, err = m.claimOnce(ctx, lease)
		} else if woken := c.sleep(ctx, until); woken && !c.isLate() {
			// A leader renews within 1.1 RetryPeriods. A read at most 1.2 after the
			// last event loses no time to a dead watch.
			m.nextRead = time.Now().Add(c.RetryPeriod/20*23 + rand.N(c.RetryPeriod/20+1))
			m.unreadSince = time.Time{}
		}
	}
	return t, err
}

// readAgain reads the Lease.
func (m *campaign) readAgain(ctx context.Context) error {
	m.nextRead = time.Now().Add(tenure.Jittered(m.RetryPeriod))
	lease, err := m.read(ctx)
	switch {
	case err == nil:
		m.reached, m.unsure, m.unreadSince = true, m.holds(lease), time.Time{}
		// Slow reads leave time for a claim between two of them.
		m.nextRead = tenure.Latest(m.nextRead, time.Now().Add(m.RetryPeriod/4))
	case ctx.Err() == nil:
		m.logger.V(2).Info("Could not read the Lease", "err", tenure.Printable(err))
		m.nextRead = time.Now().Add(tenure.Jittered(m.RetryPeriod))
		if !m.reached || m.isRefusal(err) {
			return m.lasts(&m.unreadSince, "get", err)
		}
		m.unreadSince = time.Time{} // an outage is waited out
		m.unauthorized("get", err)
	}
	return nil
}

// waitUntil returns until when the round waits, zero if it claims the Lease now. may is true if the
// Lease is free, and otherwise at is the time when it can be, zero if that is unknown.
func (m *campaign) waitUntil(may bool, at, now time.Time) time.Time {
	switch {
	case may && !now.Before(m.nextClaim):
		return time.Time{}
	case may:
		return earliest(m.nextRead, m.nextClaim)
	case !at.IsZero():
		return earliest(m.nextRead, at)
	}
	return m.nextRead
}

// claimOnce claims the free Lease. It returns no term if the claim has failed.
func (m *campaign) claimOnce(ctx context.Context, lease *coordinationv1.Lease) (*term, error) {
	// Not ended by ctx: the response decides whether there is a Lease to release.
	t, err := m.claim(context.WithoutCancel(ctx), lease)
	m.unsure = true
	switch {
	case err == nil && ctx.Err() == nil && t.Valid():
		t.took = time.Since(m.freeSince)
		return t, nil
	case err == nil:
		// ctx is done, or this process was paused for RenewDeadline. Then the
		// record is its own and can be claimed again.
		t.End()
		m.setLeading(nil)
	case tenure.IsConflict(err):
		// Another candidate was faster, and may have released the Lease already.
		// More conflicts in a row mean more candidates, or a fault.
		m.nextClaim = time.Now().Add(rand.N(min(claimJitter<<min(m.conflicts, 16), m.RetryPeriod)))
		m.nextRead, m.refusedSince = m.nextClaim, time.Time{}
		m.conflicts++
		m.reached = true
	default:
		m.logger.V(2).Info("Could not acquire the Lease", "err", tenure.Printable(err))
		m.nextClaim = time.Now().Add(tenure.Jittered(m.RetryPeriod))
		m.nextRead = m.nextClaim
		if m.isRefusal(err) {
			return nil, m.lasts(&m.refusedSince, verbOf(lease), err)
		}
		m.refusedSince = time.Time{}
		m.unauthorized(verbOf(lease), err)
	}
	return nil, nil
}

// taken ends the time for which the Lease is free.
func (m *campaign) taken() {
	if !m.freeSince.IsZero() {
		m.metrics.LeaderAbsent(m.ref, time.Since(m.freeSince))
		m.freeSince = time.Time{}
	}
}

// lasts returns an error after a problem has lasted for StartTimeout.
func (m *campaign) lasts(since *time.Time, verb string, err error) error {
	if since.IsZero() {
		*since = time.Now()
	}
	m.tell(verb, err, "startTimeout", m.StartTimeout)
	if time.Since(*since) >= m.StartTimeout {
		return m.unusable(verb, err)
	}
	return nil
}

// unauthorized logs that the credentials are no longer accepted, which may need a person.
func (m *campaign) unauthorized(verb string, err error) {
	if apierrors.IsUnauthorized(err) {
		m.tell(verb, err)
	}
}

// tell logs the first problem.
func (m *campaign) tell(verb string, err error, values ...any) {
	if !m.logged {
		m.logged = true
		m.logger.Info("Cannot use the Lease, trying again", append([]any{"verb", verb, "err", tenure.Printable(err)}, values...)...)
	}
}

// errStrategy is the error for a Lease with a strategy: the coordinated leader election
// of the control plane (KEP-4355) chooses its holder and writes it at any time. It creates a
// deleted Lease again while a LeaseCandidate names it.
var errStrategy = errors.New("the Lease has a strategy of coordinated leader election: use another name, or delete the LeaseCandidates that name the Lease and then the Lease")

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
	case lease != nil && number > math.MaxInt32: // somebody has edited it, twice
		number = numberOf(lease) + 1
	case lease != nil: // which can be a new Lease, or edited
		number = max(number, numberOf(lease)+1)
	}
	sent := tenure.At(time.Now(), c.wall)
	now := tenure.Micro(sent.Mono)
	got, err := c.write(ctx, lease, coordinationv1.LeaseSpec{
		HolderIdentity:       &c.identity,
		LeaseDurationSeconds: ptr.To(int32(tenure.Seconds(c.LeaseDuration))),
		AcquireTime:          &now,
		RenewTime:            &now,
		LeaseTransitions:     ptr.To(int32(number)),
	})
	if err != nil {
		return nil, err
	}
	validFor := c.validFor(got)
	if !c.Renewable(validFor) {
		return nil, fmt.Errorf("%w: %v instead of LeaseDuration (%v): change the plugin", errShortened, c.durationOf(got), c.LeaseDuration)
	}
	since := got.ResourceVersion
	if lease != nil && ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		since = lease.ResourceVersion // the last leader released it after its work
	}
	t := newTerm(ctx, Term{LeaseUID: got.UID, Number: number}, since, tenure.Latest(last, c.began), sent, validFor, c.LeaseDuration+c.RenewDeadline, c.wall)
	c.setLeading(t)
	return t, nil
}

// errNoTermLeft is the error for an edited leaseTransitions; no real number gets there.
var errNoTermLeft = errors.New("leaseTransitions has the highest value: delete the Lease")

// errShortened is the error if candidates wait for so short that no term could be renewed.
var errShortened = errors.New("an admission plugin shortens leaseDurationSeconds")

// validFor returns how long a term is valid after the record was sent that is stored as
// got. Other candidates wait for the stored duration. If that is shorter than the sent
// one, validity is shorter too, and the margin stays.
func (c *candidate) validFor(got *coordinationv1.Lease) time.Duration {
	return c.RenewDeadline - max(0, c.LeaseDuration-c.durationOf(got))
}

// unusable returns the error of Run for a Lease that it cannot use.
func (c *candidate) unusable(verb string, err error) error {
	hint := ""
	if apierrors.IsForbidden(err) && !apierrors.IsUnexpectedServerError(err) && !kube.IsDenied(err) {
		name := c.elector.Name
		if verb == "create" {
			name = "" // a rule for create cannot have resourceNames
		}
		hint = fmt.Sprintf("; a Role in namespace %s must allow: %s", c.elector.Namespace, rule(name, verb))
	}
	return fmt.Errorf("leader: no success within StartTimeout (%v): %s leases.coordination.k8s.io %s: %w%s", c.StartTimeout, verb, c.ref, err, hint)
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
	ours := errors.Is(err, errShortened) || errors.Is(err, errNoTermLeft) || errors.Is(err, errNotLeads) || errors.Is(err, errElsewhere)
	return ours && !apierrors.IsUnexpectedServerError(err) || tenure.IsRefusal(err, c.elector.Namespace, c.reached)
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
