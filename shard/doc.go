// Package shard divides the objects of a controller among active replicas. Each shard has
// one owner at a time.
//
//	group := &shard.Group{Leases: leases, Namespace: namespace, Name: "shop", Ranges: shard.Ranges{N: 32}}
//	err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
//		return controllerOf(s.Index).Run(ctx)
//	})
//
// A [Group] calls work for each shard that its replica owns. All replicas compute the same
// balanced assignment, and store it in one Lease, the table.
//
// Owned work is what work does from its start, or from a successful [Shard.Check], until the
// shard is lost or work returns. Call Shard.Check before each effect, or use [Guard]. Work
// that must run once belongs to shard 0. [Group.Exclusive] is a barrier.
//
// # Objects of a shard
//
// [Ranges] maps an object to its shard. A [Source] lists and watches objects of owned
// shards, and drops others.
//
// A [View] adds and removes shards. To a handler, objects of a removed shard are deleted:
// remove the handler first, or ask [Ranges.Of].
//
// # Guarantees
//
//   - SH1: If two replicas run, even with different Ranges, owned work on one shard or
//     object never overlaps, whatever requests are delayed or lost.
//   - SH3: If a shard moves or the context of Run is done, the shard stays owned until
//     its work has returned, and a stop ends the Lease last.
//   - SH4: If one Lease of the group is deleted, owned work does not overlap while the
//     shards' owners can list or watch.
//   - SH5: If work begins on a shard, its term is higher than the shard's earlier ones.
//   - SH6: If one replica joins or leaves, at most its share of the shards moves, rounded up.
//   - SH8: If the table is not the group's or unreadable, Run changes nothing and returns an
//     error with the cure.
//   - SH9: If the table becomes unreadable or read-only, the replicas keep their shards,
//     and Status has the error.
//   - SH11: If one replica crashes, its shards have owners within LeaseDuration plus 2 times
//     RetryPeriod.
//   - SH12: If Exclusive calls f, f overlaps with no owned work until its Check fails, and
//     later terms are higher.
//   - SE1: If an object has a uid, or with ByNamespace a namespace, Of returns the shard
//     whose selector selects it on the API server.
//   - SE3: If a list or a watch has an object of another shard, the Source drops and
//     counts it, and fails on one that it cannot hash.
//   - SE7: If Remove of one View returns nil before Add of another begins, no object is
//     in both caches, and each object of an added shard is in one.
//
// # Caveats
//
//   - If other users edit Leases, or etcd is restored, owned work can overlap: see [Group].
//   - Without the feature gate ShardedListAndWatch each replica receives all objects.
package shard
