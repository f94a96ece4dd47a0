package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/tenure"
	"github.com/controllerkit/controllerkit/shard/internal/hashes"
)

// nameLimit is the longest value of a label. All Leases of the group have its name as one.
const nameLimit = 63

// LeaseClient is the part of a Lease client that a Group uses. The LeaseInterface of
// client-go's coordination/v1 client satisfies it. The Role needs create, delete, list,
// update and watch on leases: see manifests/role.yaml.
type LeaseClient interface {
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// A Group is one of the replicas that share shards. Its fields are its configuration and
// must not change after Run was called. A Group must not be copied after first use.
//
// The replicas share one Lease with the name of the group, the table: it has the owner
// and the term of each shard. Each replica has a Lease of its own, which it renews. While
// that Lease is not ended, only the replica itself changes the entries of its shards. If a
// replica has seen another one's Lease unchanged for LeaseDuration, it ends that Lease: it
// writes the version that it saw without a holder. The write fails if the other one has
// renewed its Lease. After it, the other one's shards are free.
//
// A replica owns its shards for RenewDeadline after it sent its last successful renewal. A
// timer ends that, and no call can delay the timer.
//
// # Exceptions
//
// Work on one shard can overlap in two replicas in these cases:
//
//	table edited     until the watch reports it, milliseconds later; without a watch until
//	                 the next list
//	Leases deleted   all Leases of the group at once, or the table while the lists and
//	                 watches of its owner fail and its renewals succeed
//	etcd restored    until the next list
//
// If one Lease of the group is deleted, the others wait for LeaseDuration, or for that of
// another replica if it is longer.
//
// # Assumptions
//
//   - The clocks of two replicas may differ by any amount, but their rates differ by at
//     most MaxDrift. LeaseDuration - RenewDeadline is the margin for that drift and for
//     the time that work needs to stop.
//   - A virtual machine gets the time from its host when it wakes up from a suspend.
//
// A model of the protocol visits all of its states under these assumptions, and finds a
// counter-example for each rule that is left out (model_test.go).
//
// # To change Ranges
//
// Restart the replicas with the new value, for example by a rolling update. A replica whose
// Ranges are not the table's waits: it owns no shard, and Status has the reason. After the
// last replica with the table's Ranges has left, or its Lease was ended, one write of a
// waiting replica makes a table of its Ranges with an owner for each shard. The write fails
// if the table was changed meanwhile. So all work by the old Ranges has ended before work by
// the new ones begins. To go back, restart the replicas with the old value.
//
// Until the change, the remaining old replicas share all shards. With a Deployment,
// maxSurge 100% starts all new replicas before the old ones stop. At the change, an object
// waits until the slowest work has returned.
type Group struct {
	// Leases is the client of the Leases' namespace. A client of its own, with a QPS of
	// -1, keeps renewals apart from the application's rate limiter. Required.
	Leases LeaseClient
	// Namespace is the namespace of the Leases, for which Leases was made. Required.
	Namespace string
	// Name is the name of the group, of the table's Lease and the value of a label: a DNS
	// subdomain of at most 63 characters. Required.
	Name string
	// Identity names this replica for readers. Replicas with the same identity are still
	// distinguished. Empty means the host name.
	Identity string

	// Ranges are the shards. A replica with new Ranges waits until the work by the old ones has
	// ended. Required.
	Ranges Ranges
	// MaxShards is the number of shards that this replica takes at most. If no replica
	// may take more, shards stay without an owner. 0 means no limit.
	MaxShards int

	// LeaseDuration is the time that a replica waits after it last saw the Lease of
	// another one change, before it ends that Lease. The Lease stores it in whole seconds,
	// rounded up. 0 means 15s.
	LeaseDuration time.Duration
	// RenewDeadline is the time that shards stay owned after the last successful renewal
	// was sent. The rest of LeaseDuration is the margin: it must exceed LeaseDuration *
	// MaxDrift. 0 means 10s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one renewal to the next, with up to a tenth of jitter, and
	// between two lists without a watch. Replicas that join within a RetryPeriod get their
	// shards together at its end, so that a shard moves once. An empty group assigns its shards
	// one RetryPeriod after the first replica. Besides its watch, a replica sends one renewal
	// in a RetryPeriod while no replica joins, leaves or fails. A call to the API server fails
	// after half of RenewDeadline. 0 means 2s.
	RetryPeriod time.Duration

	// StartTimeout bounds how long Run retries if it cannot join the group: no call has
	// succeeded after the start, or the API server keeps rejecting requests. A later
	// outage, also a 401, is waited out. 0 means 20s.
	StartTimeout time.Duration
	// DrainTimeout bounds how long work may run after the context of Run is done. It must
	// exceed the time that work grants its own parts, such as the GracePeriod of a
	// reconcile.Controller. 0 means 22s.
	DrainTimeout time.Duration
	// MaxDrift is the fraction by which the clock of one replica may run faster than the
	// clock of another. 0 means 0.01.
	MaxDrift float64

	// Metrics receives measurements. nil disables it.
	Metrics Metrics

	wall func(time.Time) time.Time // the wall clock, for tests; nil means tenure.WallClock

	mu      sync.Mutex // guards the fields below
	running bool       // a Run has not returned
	hung    bool       // work of an earlier Run has not returned
	replica *replica   // of the last Run; nil before the first
}

// Status is a replica's view of its group.
type Status struct {
	// Replicas is the number of running replicas with the table's Ranges, as this replica
	// sees them.
	Replicas int
	// Owned has the shards whose work runs or drains, in the order of their indices.
	Owned []Shard
	// Draining is the number of Owned that are stopping.
	Draining int
	// Ownerless is the number of shards for which this replica sees no owner. A replica that
	// cannot use the API server sees none of any shard after LeaseDuration.
	Ownerless int
	// Surplus is the number of shards that must move because their replicas own more than
	// their share, as this replica sees the table. If it stays above 0, work does not return.
	// It is 0 while this replica is not in the group.
	Surplus int
	// Imbalance is the number of shards of the replica with the most, divided by the mean of
	// the replicas that take part, as this replica sees the table. It is 1 if all have the
	// same number, and 0 if no replica that takes part owns a shard. If Surplus is 0, a
	// higher value is due to MaxShards, or to a number of shards that does not divide evenly.
	Imbalance float64
	// Gained and Lost count the shards whose work began and ended, since Run was called.
	Gained, Lost int64
	// Err is the last problem, nil if the last call to the API server succeeded, the table is
	// valid, and this replica does not wait for replicas with other Ranges.
	Err error
}

// Status returns the state of the last Run, and a zero Status before the first.
func (g *Group) Status() Status {
	g.mu.Lock()
	r := g.replica
	g.mu.Unlock()
	if r == nil {
		return Status{}
	}
	return r.status()
}

// Owned returns the shards that this replica owns at this moment, in the order of their
// indices.
func (g *Group) Owned() []Shard {
	g.mu.Lock()
	r := g.replica
	g.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.owned()
}

// Run takes part in the group and calls work for each shard that this replica owns, each
// in its own goroutine. Two calls of work for one shard do not overlap. A panic in work is
// not recovered.
//
// If the shard is to move to another replica, the context of work is canceled. The shard
// stays owned until work has returned, then it is handed over. If the shard is lost, the
// context ends with the cause ErrLost: then all work must stop at once. The context
// carries the shard, see [From].
//
// If ctx is done, Run stops the work of all shards, hands them over to the other replicas
// as the work returns, and ends its Lease.
//
// Run returns only in these cases:
//
//   - ctx is done, and work has returned for all shards: nil.
//   - work returned although its context was not done: its error, after all other shards
//     were handed over.
//   - ctx is done or work returned, and the other work did not return within
//     DrainTimeout: an error. The work gets ErrLost and what MaxDrift leaves of the
//     margin to stop. If it has not returned after that, the error has its stack, and
//     the work outlives Run. The process should exit: Run refuses to run again.
//   - the table is of another group or not readable when this replica joins: an error with
//     the cure.
//   - the replica could not join for StartTimeout: an error with verb and cause.
//   - a field is not valid, work is nil, or the Group runs already: an error.
//
// After a loss Run waits for work to return, without a bound, and joins again.
func (g *Group) Run(ctx context.Context, work func(ctx context.Context, s Shard) error) error {
	r, err := g.newReplica(ctx, work)
	if err != nil {
		return err
	}
	g.mu.Lock()
	switch {
	case g.running:
		g.mu.Unlock()
		return errors.New("shard: the Group runs already: use one Group for each Run")
	case g.hung:
		g.mu.Unlock()
		return errors.New("shard: work of an earlier Run did not return in time: restart the process")
	}
	g.running, g.replica = true, r
	g.mu.Unlock()
	r.reportOutside()
	defer func() {
		r.mu.Lock()
		r.outsideLocked(-1, time.Now())
		r.mu.Unlock()
		r.report()
		g.mu.Lock()
		g.running, g.hung = false, len(r.runs) > 0 // no goroutine changes it any more
		g.mu.Unlock()
	}()

	var wg sync.WaitGroup
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { r.watch(watchCtx) })
	defer wg.Wait()
	defer stopWatch()
	for {
		e, err := r.join(ctx)
		if e == nil {
			r.leaveGroup(ctx)
			return err
		}
		if again, err := r.serve(ctx, e); !again {
			return err
		}
	}
}

// newReplica validates the configuration and applies the defaults.
func (g *Group) newReplica(ctx context.Context, work func(context.Context, Shard) error) (*replica, error) {
	r := &replica{
		client:     g.Leases,
		namespace:  g.Namespace,
		name:       g.Name,
		identity:   g.Identity,
		leaseName:  g.Name + "-" + string(uuid.NewUUID())[:8],
		ranges:     g.Ranges,
		rangesText: g.Ranges.describe(),
		max:        cmp.Or(g.MaxShards, -1),
		work:       work,
		metrics:    g.Metrics,
		wall:       g.wall,
		wake:       make(chan struct{}, 1),
		relist:     make(chan struct{}, 1),
		returned:   make(chan result, hashes.MaxShards),
		members:    map[types.UID]*member{},
		runs:       map[int]*run{},
		spent:      map[int]int64{},
		problems:   map[string]error{},
	}
	switch {
	case work == nil:
		return nil, errors.New("shard: work is nil: pass the function that runs for each shard")
	case kube.IsNil(r.client):
		return nil, errors.New("shard: Leases is nil: set it to a client such as clientset.CoordinationV1().Leases(namespace)")
	case len(validation.IsDNS1123Label(g.Namespace)) > 0:
		return nil, fmt.Errorf("shard: Namespace is %q: set it to the namespace of Leases", g.Namespace)
	case len(validation.IsDNS1123Subdomain(g.Name)) > 0 || len(g.Name) > nameLimit:
		return nil, fmt.Errorf("shard: Name is %q: use a DNS subdomain of at most %d characters, such as shop or shop.example.com", g.Name, nameLimit)
	case g.Ranges.check() != nil:
		return nil, g.Ranges.check()
	case g.MaxShards < 0:
		return nil, fmt.Errorf("shard: MaxShards is %d: use a positive number, or 0 for no limit", g.MaxShards)
	}
	var err error
	r.Times, err = tenure.Times{
		LeaseDuration: g.LeaseDuration, RenewDeadline: g.RenewDeadline, RetryPeriod: g.RetryPeriod,
		StartTimeout: g.StartTimeout, DrainTimeout: g.DrainTimeout, MaxDrift: g.MaxDrift,
	}.Resolve("shard")
	if err != nil {
		return nil, err
	}
	if r.identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("shard: Identity is empty and the host has no name: set Identity: %w", err)
		}
		r.identity = host
	}
	if r.wall == nil {
		r.wall = tenure.WallClock
	}
	r.ref = g.Namespace + "/" + g.Name
	r.logger = klog.FromContext(ctx).WithValues("group", klog.KRef(g.Namespace, g.Name), "identity", r.identity)
	return r, nil
}

func (r *replica) status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Gained: r.gained, Lost: r.lost, Surplus: r.surplus, Err: r.tableErr}
	for _, activity := range slices.Sorted(maps.Keys(r.problems)) {
		if s.Err == nil {
			s.Err = r.problems[activity]
		}
	}
	now := time.Now()
	for _, run := range r.runs {
		s.Owned = append(s.Owned, run.Shard)
		if run.stopped {
			s.Draining++
		}
	}
	slices.SortFunc(s.Owned, func(a, b Shard) int { return cmp.Compare(a.Index, b.Index) })
	s.Ownerless = r.unseenLocked(now)
	if r.table == nil {
		return s
	}
	ranges := r.table.ranges.describe()
	for _, m := range r.members {
		if m.has(ranges, now, r.LeaseDuration) {
			s.Replicas++
		}
	}
	count, most := map[types.UID]int{}, 0
	for _, e := range r.table.entries {
		if m := r.members[e.holder]; m != nil && m.live(now, r.LeaseDuration) {
			count[e.holder]++
			most = max(most, count[e.holder])
		}
	}
	if most > 0 {
		s.Imbalance = float64(most*s.Replicas) / float64(len(r.table.entries)-s.Ownerless)
	}
	return s
}

// ownerlessLocked returns the number of shards of the table that no replica owns.
func (r *replica) ownerlessLocked(now time.Time) (n int) {
	for _, e := range r.table.entries {
		if m := r.members[e.holder]; m == nil || !m.live(now, r.LeaseDuration) {
			n++
		}
	}
	return n
}

func (r *replica) owned() []Shard {
	r.mu.Lock()
	defer r.mu.Unlock()
	var shards []Shard
	for _, run := range r.runs {
		if run.valid() {
			shards = append(shards, run.Shard)
		}
	}
	slices.SortFunc(shards, func(a, b Shard) int { return cmp.Compare(a.Index, b.Index) })
	return shards
}
