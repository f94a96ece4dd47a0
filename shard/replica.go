package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/tenure"
)

// A replica is one Run: its resolved configuration and its knowledge of the group.
type replica struct {
	client                               LeaseClient
	namespace, name, identity, leaseName string
	ref                                  string // namespace/name
	ranges                               Ranges
	rangesText                           string
	max                                  int

	tenure.Times

	work     func(context.Context, Shard) error
	metrics  Metrics
	wall     func(time.Time) time.Time
	logger   klog.Logger
	wake     chan struct{} // the view changed
	relist   chan struct{} // requests a list
	returned chan result   // work returned

	mu           sync.Mutex // guards the fields below
	table        *table     // the last readable version; nil if there is no table
	tableVersion string     // resourceVersion of the last version
	tableErr     error      // the last version is not readable
	tableAbsent  time.Time  // there is no table since then
	number       int64      // the highest number of a table that was seen
	members      map[types.UID]*member
	listed       bool             // a list has succeeded
	listErr      error            // of the last list
	sighted      string           // resourceVersion of the last list or event
	changed      time.Time        // the view changed in a way that a plan depends on
	joined       time.Time        // the first join of a batch within a RetryPeriod
	spent        map[int]int64    // the last term in which a shard was run or offered
	epoch        *epoch           // nil before the first
	problems     map[string]error // by activity; nil if its last request succeeded
	runs         map[int]*run
	gained, lost int64

	surplus       int           // shards that must move
	ownerless     int           // shards at the time measured; -1 after Run
	timed         int           // those of ownerless whose time counts
	ownerlessTime time.Duration // of all of them until then
	measured      time.Time

	// Only the goroutine of Run uses the fields below.
	tries      int       // writes of the table that failed in a row
	failed     time.Time // the last of them
	failedOver string    // the version that it was to replace
	nextWrite  time.Time // over another version
	reached    bool      // a list has succeeded
	unsure     bool      // the last write of join failed, but may be stored
	reporting  bool
	reported   measurement
}

// An epoch is the time for which a Lease of this replica is held.
type epoch struct {
	tenure.Period
	uid     types.UID
	leaving chan struct{} // closed when the replica wants no more shards
	left    time.Time     // when it was closed
}

// join makes this replica a member of the group. It returns nil and nil once ctx is done,
// and an error if the group cannot be joined.
func (r *replica) join(ctx context.Context) (*epoch, error) {
	var since time.Time // requests are rejected, or there was no response yet
	conflicts := 0      // in a row
	if !r.reached {
		since = time.Now()
	}
	for ctx.Err() == nil {
		r.reportOutside()
		e, wait, err := r.joinOnce(ctx)
		if e != nil {
			r.logger.Info("Joined the group", "lease", r.leaseName)
			r.mu.Lock()
			r.epoch = e
			r.mu.Unlock()
			r.note("join", nil)
			return e, nil
		}
		var fatal *tableError
		switch {
		case errors.As(err, &fatal):
			return nil, err
		case r.reached && (err == nil || !isRefusal(err, r.namespace, r.reached)):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		if err != nil && !since.IsZero() && time.Since(since) >= r.StartTimeout {
			return nil, fmt.Errorf("shard: no success within StartTimeout (%v): join group %s: %w", r.StartTimeout, r.ref, tenure.Printable(err))
		}
		r.note("join", err)
		wake := r.wake
		switch {
		case err == nil:
			conflicts = 0
		case tenure.IsConflict(err) && conflicts < 3: // with another replica, which the next list shows
			conflicts++
			wait = rand.N(rankDelay<<conflicts) + rankDelay
			r.requestList()
		default:
			wait, wake = tenure.Jittered(r.RetryPeriod), nil
			r.requestList()
		}
		timer := time.NewTimer(max(1, wait))
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil, nil
}

// tableError is the error of a table that is not readable: no retry cures it.
type tableError struct{ error }

// joinOnce makes one step towards membership. If it returns no epoch and no error, the
// next step is due after wait, or when the view changes.
func (r *replica) joinOnce(ctx context.Context) (e *epoch, wait time.Duration, err error) {
	r.mu.Lock()
	listed, t, tableErr, absentFor, number := r.listed, r.table, r.tableErr, time.Since(r.tableAbsent), r.number
	listErr := r.listErr
	own, ended := r.ownLocked()
	others, longest := 0, r.LeaseDuration
	for _, m := range r.members {
		if !m.absent && m.lease.Name != r.leaseName {
			others++
		}
		if !m.ended {
			longest = max(longest, m.duration(r.LeaseDuration))
		}
	}
	r.mu.Unlock()
	r.reached = r.reached || listed
	// Not ended by ctx: the response decides whether there is a Lease to end.
	ctx = context.WithoutCancel(ctx)
	switch {
	case listErr != nil || !listed:
		return nil, r.RetryPeriod, listErr
	case tableErr != nil:
		return nil, 0, &tableError{tableErr}
	case t == nil && (others > 0 || own != nil) && absentFor < longest:
		// The table was deleted: its owners may not know that yet.
		return nil, longest - absentFor, nil
	case t == nil:
		empty := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.name, Labels: map[string]string{groupLabel: r.name}}}
		lease, err := encode(empty, number+1, r.ranges, make([]entry, r.ranges.N), nil)
		if err != nil {
			return nil, 0, err
		}
		if _, err = r.write(ctx, "create", lease); apierrors.IsAlreadyExists(err) {
			err = fmt.Errorf("it may not be of this group, because it has no label %s=%s: then use another Name: %w", groupLabel, r.name, err)
		}
		return nil, 0, err
	}
	verb := "update"
	if own == nil {
		verb = "create"
		own = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.leaseName, Labels: map[string]string{groupLabel: r.name}}}
	} else if ended {
		return nil, 0, r.remove(ctx, own) // by another replica
	}
	sent := tenure.At(time.Now(), r.wall)
	got, err := r.write(ctx, verb, r.record(own, sent, r.max))
	r.unsure = err != nil
	if err != nil {
		return nil, 0, err
	}
	validFor := r.validFor(got)
	if !r.Renewable(validFor) {
		err := fmt.Errorf("%w: %ds instead of LeaseDuration (%v): change the plugin", errShortened, ptr.Deref(got.Spec.LeaseDurationSeconds, 0), r.LeaseDuration)
		return nil, 0, errors.Join(err, r.remove(ctx, got)) // a member would get shards
	}
	e = &epoch{uid: got.UID, leaving: make(chan struct{})}
	e.Begin(ctx, ErrLost, sent, validFor, r.wall)
	return e, 0, nil
}

// errShortened is the error if other replicas wait for so short that no epoch could be renewed.
var errShortened = errors.New("an admission plugin shortens leaseDurationSeconds")

// ownLocked returns the Lease of this replica, nil if it knows of none.
func (r *replica) ownLocked() (lease *coordinationv1.Lease, ended bool) {
	for _, m := range r.members {
		if !m.absent && m.lease.Name == r.leaseName {
			return m.lease, m.ended
		}
	}
	return nil, false
}

// record returns this replica's Lease with a new record.
func (r *replica) record(lease *coordinationv1.Lease, sent tenure.Instant, most int) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	now := tenure.Micro(sent.Mono)
	acquired := &now
	if lease.UID != "" && lease.Spec.AcquireTime != nil {
		acquired = lease.Spec.AcquireTime
	}
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       &r.identity,
		LeaseDurationSeconds: ptr.To(int32((r.LeaseDuration + time.Second - 1) / time.Second)),
		AcquireTime:          acquired,
		RenewTime:            &now,
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, rangesAnnotation, r.rangesText)
	delete(lease.Annotations, maxAnnotation)
	if most >= 0 {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, maxAnnotation, strconv.Itoa(most))
	}
	return lease
}

// validFor returns how long shards are owned after the record was sent that is stored as
// got. An admission plugin may have shortened the duration for which others wait.
func (r *replica) validFor(got *coordinationv1.Lease) time.Duration {
	stored := time.Duration(ptr.Deref(got.Spec.LeaseDurationSeconds, 0)) * time.Second
	return r.RenewDeadline - max(0, r.LeaseDuration-stored)
}

// renew keeps the Lease of this replica renewed until ctx is done, which is at the end of
// the epoch. Attempts are RetryPeriod apart from send to send, and up to a tenth more
// after a success.
func (r *replica) renew(ctx context.Context, e *epoch) {
	leaving, most := e.leaving, r.max
	next := e.LastRenewal().Add(r.RetryPeriod)
	for {
		timer := time.NewTimer(max(1, time.Until(next)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-leaving:
			timer.Stop()
			leaving, most = nil, 0
		case <-timer.C:
		}
		if !e.Valid() {
			return // after a suspend the epoch's own timer may be late
		}
		next = time.Now().Add(r.RetryPeriod)
		if err := r.renewOnce(ctx, e, most); err == nil {
			next = next.Add(rand.N(r.RetryPeriod/10 + 1))
		} else if ctx.Err() == nil {
			r.note("renew", err)
			r.logger.V(2).Info("Could not renew the Lease", "lease", r.leaseName, "err", tenure.Printable(err))
		}
	}
}

// renewOnce writes one renewal. If it conflicts, a list shows whether the Lease was ended.
func (r *replica) renewOnce(ctx context.Context, e *epoch, most int) error {
	for tries := 1; ; tries++ {
		r.mu.Lock()
		m := r.members[e.uid]
		if m == nil || m.ended || m.absent {
			r.mu.Unlock()
			e.End()
			return errors.New("the Lease was ended")
		}
		lease := m.lease
		unsighted := newer(lease.ResourceVersion, r.sighted)
		r.mu.Unlock()
		if unsighted && tries == 1 {
			r.requestList() // the watch has not delivered the last renewal
		}
		sent := tenure.At(time.Now(), r.wall)
		got, err := r.write(ctx, "update", r.record(lease, sent, most))
		if err == nil {
			e.Extend(sent, r.validFor(got))
			r.note("renew", nil)
			return nil
		}
		if !tenure.IsConflict(err) || tries == 3 {
			return err
		}
		if _, err := r.list(ctx); err != nil {
			return err
		}
	}
}

// write sends one request and records its response.
func (r *replica) write(ctx context.Context, verb string, lease *coordinationv1.Lease) (got *coordinationv1.Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	if verb == "create" {
		got, err = r.client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		got, err = r.client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("%s leases.coordination.k8s.io %s/%s: %w", verb, r.namespace, lease.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeLocked(got, false)
	return got, nil
}

// endLease ends the epoch of a Lease: it writes the version without a holder.
func (r *replica) endLease(ctx context.Context, lease *coordinationv1.Lease) error {
	lease = lease.DeepCopy()
	now := tenure.Micro(time.Now())
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = ptr.To(""), &now
	_, err := r.write(ctx, "update", lease)
	return err
}

// remove deletes a Lease whose epoch has ended.
func (r *replica) remove(ctx context.Context, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	err := r.client.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID}})
	if err != nil && !kube.IsGone(err, lease.Name) && !tenure.IsConflict(err) {
		return fmt.Errorf("delete leases.coordination.k8s.io %s/%s: %w", r.namespace, lease.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[lease.UID]; m != nil {
		m.absent = true
	}
	return nil
}

// note records the problem of an activity for Status, nil if there is none. A conflict is
// no problem.
func (r *replica) note(activity string, err error) {
	if tenure.IsConflict(err) {
		return
	}
	err = tenure.Printable(err)
	r.mu.Lock()
	known := false // a failed list also fails the join
	for _, problem := range r.problems {
		known = known || err != nil && problem != nil && problem.Error() == err.Error()
	}
	r.problems[activity] = err
	r.mu.Unlock()
	if err != nil && !known {
		r.logger.Info("A request of the group failed, trying again", "activity", activity, "err", err)
	}
}

// isRefusal reports whether a retry gets the same response. If the response is not the API
// server's own but e.g. a proxy's, it is an outage.
func isRefusal(err error, namespace string, accepted bool) bool {
	foreign := apierrors.IsAlreadyExists(err) && !apierrors.IsUnexpectedServerError(err) // a Lease without the group's label
	return foreign || errors.Is(err, errShortened) || tenure.IsRefusal(err, namespace, accepted)
}
