// Package consistency makes a controller wait until its cache shows its own writes.
//
// [Store] has the methods of client-go 0.38's ConsistencyStore. It adds a transport that
// records the writes, a gate that holds a key back, and a blocking Wait.
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
// Most callers set the Gate, as here. If the cache still lags after MaxWait, 2 minutes by
// default, the key runs, and [LiveRead] is true: then read from the API server. Your own
// loop calls Ready before a reconcile and passes the context of Begin to it.
//
// # How it works
//
// A write is visible once the informer's store has reached the resource version in its
// response, a deletion once the store no longer holds the UID.
//
// # Guarantees
//
//   - C1: If EnsureReady or Wait returns nil, the stores show each recorded write and
//     deletion of the key, except those of C15.
//   - C2: If Ready returns false, it calls wake exactly once, when the key may run or at
//     most RecheckInterval later.
//   - C3: If a write with a context from Begin succeeds and its resource has a store, its
//     version is recorded before the caller reads the response.
//   - C4: If a write's outcome is unknown, Ambiguous lists its resource until WroteAt,
//     Clear or a later write, for at most ten minutes.
//   - C8: LiveRead is true exactly if at Begin a record was ambiguous or not yet visible,
//     a conflict can never become visible, or C18 requires it.
//   - C9: If a write with a resource version conflicts, Ready is false until the store
//     shows the object's change, or never can, or MaxWait is over.
//   - C14: If the API server's object differs from the cached one, ConfirmLive returns
//     ErrChanged, ErrReplaced or, only for a 404 of the object, ErrGone.
//   - C15: If a restore of etcd lowers a store's version, no key waits for an earlier
//     record, and its next run reads live.
//   - C18: After a change of leader or shard owner, LiveRead is true until all stores
//     show the predecessor's writes.
//
// # Caveats
//
//   - A Reconcile that ignores LiveRead decides on the old cache after MaxWait.
//   - An ambiguous write can happen after the live read.
//   - A deleted object that the cache never showed can appear for a moment.
//   - A store is never ready if a transform removes the versions, or without client-go's
//     AtomicFIFO feature.
//   - C18 does not cover resources in another etcd.
//   - After a restore of etcd, an update counts as visible until the informer lists again.
package consistency
