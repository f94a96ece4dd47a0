package shard

import (
	"time"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Metrics receives the measurements of a Group. Name is the group's namespace/name. The
// methods are called by one goroutine and must not block.
type Metrics interface {
	// ShardsOwned reports the number of shards whose work runs or drains, and how many of
	// them began since the last call. It is called when Run starts, and on every change. Its
	// last call before the end of Run has 0, unless work hangs.
	ShardsOwned(name string, owned, began int)
	// ShardsOwnerless reports the number of shards for which this replica sees no owner. total is
	// the time that shards spent without an owner since the last call, the sum over all shards.
	// Before a replica has seen the table, and LeaseDuration after it has lost the API server, it
	// sees no owner of any shard; total does not include these times. ShardsOwnerless is called
	// when Run starts, on every change, and once in a RetryPeriod while there are such shards. Its
	// last call before the end of Run has -1: the number is unknown.
	ShardsOwnerless(name string, shards int, total time.Duration)
	// ShardsSurplus reports the number of shards that must move because their replicas own
	// more than their share, as this replica sees the table. It is called when Run starts, and
	// on every change. Its last call before the end of Run has 0.
	ShardsSurplus(name string, shards int)
}

// A measurement is what Metrics knows.
type measurement struct {
	owned, ownerless, surplus int
	gained                    int64
	time                      time.Duration // of ownerless shards
}

// measureLocked records the numbers of shards without an owner and of shards that must move, as
// a member of the group knows them.
func (r *replica) measureLocked(ownerless, surplus int, now time.Time) {
	r.surplus = surplus
	r.ownerlessTime += time.Duration(r.timed) * now.Sub(r.measured)
	r.ownerless, r.timed, r.measured = ownerless, ownerless, now
}

// outsideLocked is measureLocked for a replica that is no member: it may see less than others.
func (r *replica) outsideLocked(ownerless int, now time.Time) {
	r.measureLocked(0, 0, now)
	r.ownerless = ownerless
}

// unseenLocked returns the number of shards for which this replica sees no owner.
func (r *replica) unseenLocked(now time.Time) int {
	if r.table == nil {
		return r.ranges.N
	}
	return r.ownerlessLocked(now)
}

// reportOutside measures and reports for a replica that is no member.
func (r *replica) reportOutside() {
	r.mu.Lock()
	now := time.Now()
	r.outsideLocked(r.unseenLocked(now), now)
	r.mu.Unlock()
	r.report()
}

// report gives Metrics what has changed.
func (r *replica) report() {
	if kube.IsNil(r.metrics) {
		return
	}
	r.mu.Lock()
	was, now := r.reported, measurement{len(r.runs), r.ownerless, r.surplus, r.gained, r.ownerlessTime}
	r.mu.Unlock()
	r.reported = now
	if now.owned != was.owned || now.gained != was.gained || !r.reporting {
		r.metrics.ShardsOwned(r.ref, now.owned, int(now.gained-was.gained))
	}
	if now.ownerless != was.ownerless || now.time != was.time || !r.reporting {
		r.metrics.ShardsOwnerless(r.ref, now.ownerless, now.time-was.time)
	}
	if now.surplus != was.surplus || !r.reporting {
		r.metrics.ShardsSurplus(r.ref, now.surplus)
	}
	r.reporting = true
}
