package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// A member is the Lease of a replica, which is one epoch of it, as this process knows it.
type member struct {
	lease   *coordinationv1.Lease // the last version; nil if none was seen
	changed time.Time             // it was seen to change, by this process's clock
	absent  bool                  // it was deleted
	ended   bool                  // the epoch is over
	mine    bool                  // this replica ended it
	retry   time.Time             // of a request about it
}

// duration returns how long the Lease must be unchanged before its epoch may be ended.
func (m *member) duration(own time.Duration) time.Duration {
	if m.lease == nil {
		return own
	}
	return max(own, time.Duration(ptr.Deref(m.lease.Spec.LeaseDurationSeconds, 0))*time.Second)
}

// live reports whether the replica runs.
func (m *member) live(now time.Time, own time.Duration) bool {
	return !m.absent && !m.ended && now.Before(m.changed.Add(m.duration(own)))
}

// has reports whether the replica runs and has the Ranges with the text.
func (m *member) has(ranges string, now time.Time, own time.Duration) bool {
	return m.live(now, own) && m.lease.Annotations[rangesAnnotation] == ranges
}

// max returns the number of shards that the replica takes at most, -1 if there is no limit.
func (m *member) max() int {
	if text, ok := m.lease.Annotations[maxAnnotation]; ok {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			return n
		}
	}
	return -1
}

// observeLocked records a version of a Lease of the group. An older one than the last is
// ignored.
func (r *replica) observeLocked(lease *coordinationv1.Lease, deleted bool) {
	if lease.Name == r.name {
		r.observeTableLocked(lease, deleted)
		return
	}
	m := r.members[lease.UID]
	switch {
	case m == nil:
		m = &member{}
		r.members[lease.UID] = m
		r.changeLocked()
		if r.changed.Sub(r.joined) >= r.RetryPeriod {
			r.joined = r.changed
		}
	case m.lease != nil && !newer(lease.ResourceVersion, m.lease.ResourceVersion):
		return
	}
	before := m.lease
	now := time.Now()
	if before == nil || !m.live(now, r.LeaseDuration) || before.Annotations[maxAnnotation] != lease.Annotations[maxAnnotation] {
		r.changeLocked()
	}
	m.lease, m.changed, m.absent = lease, now, deleted
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		m.ended = true
	}
	if m.ended || m.absent {
		if r.epoch != nil && r.epoch.uid == lease.UID {
			r.epoch.End()
		}
		r.changeLocked()
	}
}

// observeTableLocked records a version of the table.
func (r *replica) observeTableLocked(lease *coordinationv1.Lease, deleted bool) {
	if !newer(lease.ResourceVersion, r.tableVersion) {
		return
	}
	r.tableVersion = lease.ResourceVersion
	r.changeLocked()
	if deleted {
		r.tableAbsentLocked()
		return
	}
	t, err := decode(lease)
	if err != nil {
		r.tableErr = fmt.Errorf("shard: annotation %s of Lease %s is not a table: use another Name, or stop all replicas and delete the Lease: %w", tableAnnotation, r.ref, tenure.Printable(err))
		return
	}
	if r.table == nil || r.table.lease.UID != lease.UID {
		clear(r.spent) // of another table
	}
	r.table, r.tableErr = t, nil
	r.number = max(r.number, t.number())
	for _, e := range t.entries {
		if e.holder != "" && r.members[e.holder] == nil {
			// Its Lease may have been deleted just now, while it was valid.
			r.members[e.holder] = &member{changed: time.Now(), absent: true}
		}
	}
	for uid, m := range r.members {
		if m.absent && !t.has(uid) {
			delete(r.members, uid)
		}
	}
}

// tableAbsentLocked records that there is no table. If there was one, its owners may work.
func (r *replica) tableAbsentLocked() {
	if r.table != nil || r.tableErr != nil || r.tableAbsent.IsZero() {
		r.tableAbsent = time.Now()
		r.changeLocked()
	}
	r.table, r.tableErr = nil, nil
}

// newer reports whether version a is later than b, which may be empty. All Leases share
// one order of versions.
func newer(a, b string) bool {
	if b == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// older reports whether version a is earlier than b. An empty one is not comparable.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// list reads all Leases of the group.
func (r *replica) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	r.mu.Lock()
	floor := r.floorLocked()
	r.mu.Unlock()
	list, err := r.client.List(ctx, metav1.ListOptions{LabelSelector: r.selector()})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listErr = err
	r.wakeUp()
	if err != nil {
		return "", err
	}
	if r.wentBackLocked(list, floor) {
		r.forgetLocked()
	}
	r.listed = true
	present, tabled := map[types.UID]bool{}, false
	for i := range list.Items {
		lease := &list.Items[i]
		present[lease.UID] = true
		tabled = tabled || lease.Name == r.name
		r.observeLocked(lease, false)
	}
	for uid, m := range r.members {
		if m.lease != nil && !m.absent && !present[uid] && newer(list.ResourceVersion, m.lease.ResourceVersion) {
			m.absent, m.changed = true, time.Now()
			r.changeLocked()
			if r.epoch != nil && r.epoch.uid == uid {
				r.epoch.End()
			}
		}
	}
	if !tabled && newer(list.ResourceVersion, r.tableVersion) {
		r.tableAbsentLocked()
	}
	r.sighted = list.ResourceVersion
	return list.ResourceVersion, nil
}

// floorLocked returns the latest version that this replica has seen. The version of a list that
// begins now is not older.
func (r *replica) floorLocked() string {
	floor := r.sighted
	if newer(r.tableVersion, floor) {
		floor = r.tableVersion
	}
	for _, m := range r.members {
		if m.lease != nil && newer(m.lease.ResourceVersion, floor) {
			floor = m.lease.ResourceVersion
		}
	}
	return floor
}

// wentBackLocked reports whether a list shows that etcd was restored: it is older than the floor
// at its beginning, or it is not older than a seen version of a Lease and has an older one.
func (r *replica) wentBackLocked(list *coordinationv1.LeaseList, floor string) bool {
	// Another list may have shown it first.
	if older(list.ResourceVersion, floor) && older(list.ResourceVersion, r.floorLocked()) {
		return true
	}
	return slices.ContainsFunc(list.Items, func(lease coordinationv1.Lease) bool {
		seen := ""
		if m := r.members[lease.UID]; lease.Name == r.name {
			seen = r.tableVersion
		} else if m != nil && m.lease != nil {
			seen = m.lease.ResourceVersion
		}
		return older(lease.ResourceVersion, seen) && !older(list.ResourceVersion, seen)
	})
}

func (r *replica) selector() string {
	return labels.SelectorFromSet(labels.Set{groupLabel: r.name}).String()
}

// watch follows the Leases of the group until ctx is done, by lists and watches. If there
// is no watch, lists replace it.
func (r *replica) watch(ctx context.Context) {
	first, limit := r.RetryPeriod/4, 16*r.RetryPeriod
	delay, next := first, time.Time{}
	for ctx.Err() == nil {
		version, err := r.list(ctx)
		if ctx.Err() == nil {
			r.note("list", err)
		}
		if err == nil && !time.Now().Before(next) {
			var lasted time.Duration
			if lasted, err = r.watchOnce(ctx, version); err == nil {
				delay = first
				continue
			}
			if lasted > 2*r.RetryPeriod {
				delay = first // it has replaced a list
			}
			next = time.Now().Add(tenure.Jittered(delay))
			delay = min(2*delay, limit)
		}
		if ctx.Err() != nil {
			return
		}
		r.logger.V(2).Info("No watch of the Leases, using lists", tenure.Values(err)...)
		select {
		case <-time.After(min(r.RetryPeriod, max(first, time.Until(next)))):
		case <-r.relist:
		case <-ctx.Done():
		}
	}
}

// forgetLocked forgets the view and ends the epoch, because etcd was restored.
func (r *replica) forgetLocked() {
	r.logger.Info("The API server returned an earlier version of the Leases than before, joining again")
	if r.epoch != nil {
		r.epoch.End()
	}
	r.table, r.tableErr, r.tableVersion, r.tableAbsent, r.sighted = nil, nil, "", time.Time{}, ""
	clear(r.members)
	clear(r.spent)
}

// watchOnce follows one watch. It returns nil if the watch is to be renewed at once.
func (r *replica) watchOnce(ctx context.Context, version string) (lasted time.Duration, err error) {
	// Renews the connection, because a dead one is not always noticed.
	lifetime := 5*time.Minute + rand.N(5*time.Minute)
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	defer cancel()
	establish := time.AfterFunc(r.CallTimeout, cancel)
	w, err := r.client.Watch(ctx, metav1.ListOptions{
		LabelSelector: r.selector(), ResourceVersion: version, TimeoutSeconds: ptr.To(int64(lifetime / time.Second)),
	})
	establish.Stop()
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	defer func() { lasted = time.Since(start) }()
	select {
	case <-r.relist: // an earlier one
	default:
	}
	for {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-r.relist:
			return 0, nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return 0, errors.New("closed by the server")
			}
			if event.Type == watch.Error {
				return 0, apierrors.FromObject(event.Object)
			}
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Labels[groupLabel] == r.name {
				r.mu.Lock()
				r.observeLocked(lease, event.Type == watch.Deleted)
				r.sighted = lease.ResourceVersion
				r.mu.Unlock()
			}
		}
	}
}

// wakeUp makes serve or join look at the view.
func (r *replica) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// changeLocked records a change that a plan depends on.
func (r *replica) changeLocked() {
	r.changed = time.Now()
	r.wakeUp()
}

// requestList ends a watch that is silent, and begins a list.
func (r *replica) requestList() {
	select {
	case r.relist <- struct{}{}:
	default:
	}
}
