// Package shard divides the objects of a controller among active replicas. Each shard has
// at most one owner at a time.
//
//	group := &shard.Group{Leases: leases, Namespace: namespace, Name: "shop", Ranges: shard.Ranges{N: 32}}
//	err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
//		return controllerOf(s.Index).Run(ctx)
//	})
//
// Run calls its function, work, for each shard that the replica owns. Each replica has a
// Lease. All compute the same balanced assignment, and store it in one more Lease, the table.
//
// A replica owns a shard while [Shard.Check] returns nil. Owned work is the work of that
// function in that time. Its context ends at the latest when the replica stops owning the
// shard. A process that was suspended sees this only when it resumes: call Shard.Check before
// each effect, or use [Guard].
//
// Work that one replica alone may do belongs to shard 0. [Group.Exclusive] runs rare work,
// such as a migration, while no other work runs.
//
// # Objects of a shard
//
// [Ranges] maps an object to its shard. A [Source] lists and watches objects of owned
// shards, and drops others.
//
// A [View] lets one informer serve all owned shards: Add and Remove change its selection.
// Handlers get the objects of a removed shard as deletions. To avoid that, remove the handler
// first, or let it ask [Ranges.Of] for the object's shard.
//
// # Guarantees
//
//   - SH1: If two replicas run, even with different Ranges, owned work on one shard or
//     object never overlaps, whatever requests are delayed or lost, except as under Caveats.
//   - SH3: If a shard moves or the replica stops, the replica owns the shard until its work
//     has returned or its Lease is lost; a stop bounds that by DrainTimeout and the requests
//     that are due. A replica that stops releases its own Lease last. That Lease
//     expires after DrainTimeout, a loss or a failed release.
//   - SH4: If the table or the Lease of one replica is deleted, owned work does not overlap
//     while the owners can list or watch Leases.
//   - SH5: If work begins on a shard, the term of this work is higher than all earlier terms
//     of the shard.
//   - SH6: If one of n replicas joins or leaves, at most 1/n of the shards move, rounded up.
//   - SH8: If the table is unreadable or not the group's when Run begins, Run changes
//     nothing and returns an error that names the cure.
//   - SH9: If the table becomes unreadable or read-only later, the replicas keep their
//     shards, and Status has the error.
//   - SH11: If one replica crashes and the API server is reachable, its shards have owners
//     within LeaseDuration plus 2 times RetryPeriod.
//   - SH12: If Exclusive calls f, no owned work runs until f has returned or lost its term,
//     and the terms of later work are higher.
//   - SE1: If an object has a uid, or with ByNamespace a namespace, [Ranges.Of] returns the
//     shard whose Selector selects the object on an API server with ShardedListAndWatch.
//   - SE3: If a list or a watch has an object of another shard, the Source drops and counts
//     it. If an object lacks the field that Ranges hash, the list or watch fails.
//   - SE7: If Remove of a shard in one View returns nil before Add of it in another begins,
//     no object is in both caches, and after Add each object is in one.
//
// # Caveats
//
//   - If other users edit the table or delete all Leases, or etcd is restored, owned work can
//     overlap: see [Group].
//   - Without the feature gate ShardedListAndWatch each replica receives all objects.
package shard
