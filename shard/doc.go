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
//   - SH1: If two replicas run, their owned work on one shard never overlaps, whatever
//     requests are delayed or lost.
//   - SH2: If a shard moves, its owner keeps it until work has returned.
//   - SH3: If the context of Run is done, Run hands its shards over, then ends its Lease.
//   - SH4: If one Lease of the group is deleted, owned work does not overlap while the
//     shards' owners can list or watch.
//   - SH5: If work begins on a shard, its term is higher than the shard's earlier ones.
//   - SH6: If one replica joins or leaves, at most its share of the shards moves, rounded up.
//   - SH7: If no replica joins, leaves or fails, each sends one renewal in a RetryPeriod
//     besides its watch.
//   - SH8: If the table is not the group's or unreadable, Run changes nothing and returns an
//     error with the cure.
//   - SH9: If the table becomes unreadable or read-only, the replicas keep their shards,
//     and Status has the error.
//   - SH10: If the shard is lost or the context has none, a client with [Guard] sends no
//     write.
//   - SH11: If one replica crashes, its shards have owners within LeaseDuration plus 2 times
//     RetryPeriod.
//   - SH12: If Exclusive calls f, f overlaps with no owned work until its Check fails, and
//     later terms are higher.
//   - SH13: If replicas' Ranges differ, owned work on one object never overlaps, and replicas
//     without the table's Ranges wait.
//   - SE1: If an object has a uid, or with ByNamespace a namespace, Of returns the shard
//     whose selector selects it on the API server.
//   - SE2: If Cut gets a thousand namespaces with similar names and weights, no replica
//     with an equal part has more than 1.5 times the mean.
//   - SE3: If a list or a watch has an object of another shard, the Source drops and
//     counts it, and fails on one that it cannot hash.
//   - SE4: If a child gets a controller owner in another shard, its old shard's informer
//     reports a deletion and the new one's an addition.
//   - SE5: If the resource has an object, Probe reports whether the API server honors shard
//     selectors.
//   - SE6: If the API server honors shard selectors, the Source of [Objects] receives no
//     object of other shards.
//   - SE7: If Remove of one replica's View returns nil before Add of another replica's
//     begins, no object is in both caches, and each object of an added shard is in one.
//   - SE8: If Add of a View returns nil, the informer shows the whole shard, and none of
//     it if Remove does.
//
// # Caveats
//
//   - If other users edit Leases, or etcd is restored, owned work can overlap: see [Group].
//   - Without the feature gate ShardedListAndWatch each replica receives all objects.
package shard
