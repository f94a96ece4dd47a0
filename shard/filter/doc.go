// Package filter makes an informer hold the objects of some shards alone, so that the memory of a
// replica does not grow with the objects of the others.
//
// It replaces a handler that drops foreign objects after the cache has stored them:
//
//	source, err := filter.Objects(listWatch, shardSelector) // of shard.Ranges
//	...
//	pods := cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, indexers)
//
// A [Source] lists and watches the objects of owned shards, and drops others. The API server
// selects them if it has the feature gate ShardedListAndWatch. [Children] filters by the
// controller owner.
//
// Most callers use a [View], which lets one informer serve all owned shards of a
// [shard.Group]: Add and Remove change its selection, and wait for View.Run and the informer.
// Handlers get the objects of a removed
// shard as deletions. To avoid that, remove the handler first, or let it ask
// [shard.Ranges.Of] for the object's shard. examples/sharded is a whole program.
//
// # Guarantees
//
//   - SE1: If an object has a uid, or with ByNamespace a namespace, the Source of the shard that
//     [shard.Ranges.Of] returns has it, on an API server with and without ShardedListAndWatch.
//   - SE2: If a list or a watch has an object of another shard, the Source drops and counts
//     it. If an object lacks the field that Ranges hash, the list or watch fails.
//   - SE3: If Add of a shard in one View is called only after Remove in another, also of
//     another replica, has returned nil, no object is in both caches, and after Add has
//     returned nil each object is in the second.
//
// # Caveats
//
//   - Without the feature gate ShardedListAndWatch each replica receives all objects.
//   - The example of View does not wait for Remove, so while a shard moves, the caches of two
//     replicas can hold its objects. To exclude that, give Remove a context that outlives the
//     work, with a timeout below the DrainTimeout of the Group, before the work returns.
package filter
