// Package shard divides the objects of a resource among the replicas of a controller.
//
// Today it contains what a replica sees of its shards. Which replica owns a shard is the
// decision of the caller.
//
// # What a shard sees
//
// [Ranges] maps an object to its shard. A [Source] lists and watches the objects of owned
// shards. It sends a selector and drops foreign objects itself, because an API server without
// the feature gate ShardedListAndWatch ignores the selector silently. [Children] follow their
// controller owner. Package scope changes the shards at run time:
//
//	New: func(p scope.Part) (cache.SharedIndexInformer, error) {
//		source, err := shard.Objects(listWatch(p.Namespace, p.Options), p.ShardSelector)
//		...
//		return cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, indexers), nil
//	}
//	...
//	selector, err := ranges.Selector(owned)
//	err = pods.Select(ctx, scope.Selection{Namespaces: []string{""}, ShardSelector: selector})
//
// Select returns when the cache has the gained shards. Release a shard after its work has
// ended: to a handler, its objects are then deleted. Only [Ranges.Of] shows that they are
// foreign.
//
// # Guarantees
//
//   - SE1: If an object has a uid, or with ByNamespace a namespace, Of returns the shard
//     whose selector selects it on the API server.
//   - SE2: If Cut gets a thousand namespaces with similar names and weights, no replica with
//     its part of the shards has more than 1.5 times the mean.
//   - SE3: If a list or a watch has an object of another shard, the Source drops and counts
//     it. If it cannot hash an object, the list or the watch fails.
//   - SE4: If a child gets a controller owner in another shard, the informer of its old shard
//     deletes it and that of its new shard adds it.
//   - SE5: If the resource has an object, Probe reports whether the API server honors shard
//     selectors.
//   - SE6: If the API server honors shard selectors, the Source of [Objects] receives no
//     object of other shards.
//   - SE7: If one replica's Select without a shard has returned before another one's Select
//     with it begins, no object of the shard is in both caches. If each shard is selected,
//     each object is in one.
//
// # Caveats
//
//   - A Select lists all selected shards again, and holds their objects twice until then.
//   - Without the feature gate each replica receives and decodes all objects. So does a
//     Source of Children by uid with it.
//   - A child without a controller owner is in no shard by uid. While its owner changes, it
//     can be in two caches, or in none.
//   - A change of [Ranges] moves objects between shards. All replicas must stop before.
//   - The selector of many shards that do not touch is long: about 100 bytes for each in the
//     URL, which a proxy can reject.
package shard
