// Package consistency makes a controller wait until its cache shows its own writes.
//
// The transport of a [Store] records the writes of a reconcile. Its gate holds the key back
// until the cache shows them, and Wait blocks until then. WroteAt, EnsureReady and Clear are
// those of ConsistencyStore in client-go 0.38.
//
//	writes := consistency.New(consistency.Config{})
//	config.Wrap(writes.Wrap) // before the clients are made
//	client := kubernetes.NewForConfigOrDie(config)
//	pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
//	if err := writes.AddInformer(corev1.Resource("pods"), pods); err != nil {
//		return err
//	}
//	controller := &reconcile.Controller[types.NamespacedName]{Gate: writes, ...}
//
// If the cache still lags after MaxWait (2 minutes), the key runs, and [LiveRead]
// is true: then read from the API server. In a loop of your own, call [Store.Ready] before
// each reconcile, and [Store.Begin] and [Store.End] around it.
//
// # How it works
//
// A write is visible once the informer's store has reached the resource version in its
// response, a deletion once the store no longer holds the UID.
//
// # Guarantees
//
//   - C1: If EnsureReady or Wait returns nil for a key, the stores show all writes and
//     deletions that were recorded for it, except those of C8.
//   - C2: If Ready returns false, its function wake is called exactly once, at most
//     RecheckInterval after the key may run.
//   - C3: If a write with a context from Begin succeeds and its resource has a store, its
//     version is recorded before the caller reads the response.
//   - C4: If a write's outcome is unknown, Ambiguous lists its resource for ten minutes, or
//     until a later write that the same cache must show, a WroteAt or a Clear.
//   - C5: If a recorded write, or the version that C6 awaits, was not visible at Begin, or
//     Ambiguous listed a resource (C4), LiveRead is true. After any other recorded conflict
//     it is true in the key's next call, if that begins within ten minutes. Conflicts of
//     creates, and about fields in an apply without a resource version, are not recorded.
//   - C6: If a write is rejected with 409 because its resource version V is old, Ready is
//     false until the store holds the object at a version newer than V, or has reached V
//     and lacks the object, or MaxWait is over. Ten minutes later the conflict is dropped. C8
//     is an exception.
//   - C7: If the API server's object differs from the cached one, ConfirmLive returns
//     ErrChanged or ErrReplaced, and ErrGone only if the API server has no such object.
//   - C8: If a restore of etcd lowers the version of a store, no key waits for a record
//     from before it, and the key's next run reads live. If it raises the version,
//     that holds for conflicts.
//   - C9: In calls whose context is of a new leader's or a new shard owner's work, LiveRead
//     is true while a store has not reached the resource version of the change: for a leader
//     that of the Lease's release, or else takeover; for a shard that of the shards' table. A
//     later write of the former owner is not covered. A store is exempt if its version
//     changes twice, ten minutes or more later, and is still lower.
//
// # Caveats
//
//   - A Reconcile that ignores LiveRead decides on the old cache after MaxWait.
//   - A write with another context, or of a resource without an informer, is not awaited.
//   - A write with an unknown outcome can land after the live read.
//   - An object deleted before the cache showed it can appear briefly.
//   - A store is never ready if a transform removes the versions, or without client-go's
//     AtomicFIFO feature.
//   - C9 covers no resource in another etcd, and no API server that is ten minutes late.
//   - After a restore of etcd, a new update counts as visible until the informer lists
//     again.
package consistency
