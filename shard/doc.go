// Package shard divides the objects of a controller among active replicas. Each shard has
// at most one owner at a time.
//
//	group := &shard.Group{Leases: leases, Namespace: namespace, Name: "shop", Ranges: shard.Ranges{N: 32}}
//	err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
//		return controllerOf(s.Index).Run(ctx)
//	})
//
// Run calls its function, work, for each shard that the replica owns. work must last until
// its context is done: else the replica gives up all shards. Each replica has a Lease. All compute the same balanced assignment, and store it in one more Lease, the table.
//
// A replica owns a shard while [Shard.Check] returns nil. Owned work is the work of that
// function in that time. Its context ends at the latest when the replica stops owning the
// shard. A process that was suspended sees this only when it resumes: call Shard.Check before
// each effect, or use [Guard].
//
// Work that one replica alone may do belongs to shard 0.
//
// # Objects of a shard
//
// [Ranges] maps an object to its shard. Package
// [github.com/controllerkit/controllerkit/shard/filter] makes the informers of a replica
// hold the objects of its shards alone.
//
// # Guarantees
//
//   - SH1: If two replicas run, even with different Ranges, owned work on one shard or
//     object never overlaps, whatever requests are delayed or lost, except as under Caveats.
//   - SH2: If a shard moves or the replica stops, the replica owns the shard until its work
//     has returned or the replica's Lease is lost. When the replica stops, that takes at
//     most DrainTimeout, plus the requests that are under way. A replica that stops releases
//     its Lease last. If work outlasts DrainTimeout, or the Lease is lost or cannot be
//     released, the Lease expires.
//   - SH3: If the table or the Lease of one replica is deleted, owned work does not overlap
//     while the owners can list or watch Leases.
//   - SH4: If work begins on a shard, the term of this work is higher than all earlier terms
//     of the shard.
//   - SH5: If one of n replicas joins or leaves, at most 1/n of the shards move, rounded up.
//   - SH6: If the table is unreadable or not the group's when Run begins, Run changes
//     nothing and returns an error that names the cure.
//   - SH7: If the table becomes unreadable or read-only later, the replicas keep their
//     shards, and Status has the error.
//   - SH8: If one replica crashes and the API server is reachable, its shards have owners
//     within LeaseDuration plus 2 times RetryPeriod.
//
// # Caveats
//
//   - If other users edit the table or delete all Leases, or etcd is restored, owned work can
//     overlap: see [Group].
//   - The Role needs create, delete, list, update and watch on leases: see manifests/role.yaml.
//     manifests/flowschema.yaml of package leader fits these Leases too.
package shard
