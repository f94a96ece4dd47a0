// Package consistency keeps a controller from deciding on a cache that does not
// show its own writes yet.
//
// It stands beside k8s.io/client-go/util/consistency, which arrives with
// client-go 0.38: [Store] has the methods of its ConsistencyStore, with the same
// meaning, so either can take the other's place. What it adds: a write is recorded
// without a line in the reconcile function ([Store.Wrap]), a key waits for its
// cache without spending retries ([Store.Ready]), and code can block until the
// cache is there ([Store.Wait]).
//
//	writes := consistency.New(consistency.Config{})
//	config.Wrap(writes.Wrap)                           // before the clients are made
//	client := kubernetes.NewForConfigOrDie(config)
//	factory := informers.NewSharedInformerFactory(client, 0)
//	pods := factory.Core().V1().Pods().Informer()
//	if err := writes.AddInformer(corev1.Resource("pods"), pods); err != nil { ... }
//	controller := &reconcile.Controller[types.NamespacedName]{Gate: writes, ...}
//
// Most callers wrap the rest.Config and hand the store to their controller as its
// gate, as above. A controller with its own loop calls Ready before a reconcile
// and passes the context of Begin to it, or calls EnsureReady and WroteAt by hand
// as with client-go's.
//
// # How it works
//
// The API server numbers all changes of a resource in one increasing sequence, and
// an informer's store says up to which number it is complete. A write's answer
// carries the number of that write. So the cache shows the write once the store's
// number is at least as high: no expectations to count, no time-outs to guess, and
// a missed event cannot leave it waiting, because the store's number goes on with
// any later event or bookmark.
//
// A store does not say when its number moves. Waiters are therefore checked at
// every event of the informers whose handlers were added (the store is ahead of the
// handlers, never behind), and every RecheckInterval for what sends no event to
// handlers: bookmarks. The check runs only while somebody waits.
//
// A deletion has no number that is always told. It is remembered by the object's UID,
// and seen once the store holds no object with it. The transport finds it in the answer
// to a DELETE, and in the answer to an update that removes the last finalizer.
//
// A conflict means that the cache was behind somebody else's write. It is remembered by
// the object and the version that the refused write carried, and seen once the store
// holds a newer one, or the object no more: to try before that is to be refused again.
// The transport reads the version from the request, in every form that a write or a
// deletion can carry one; Refused records it by hand.
//
// # When waiting does not help
//
// Two things a cache may never show: a write whose answer was lost, and one that a
// filtered informer does not select, until its next bookmark. So what holds a key back
// has an end: AmbiguousWait after a lost answer, MaxWait after the last write. Then the
// key runs, and its context says that the cache is not to be used:
//
//	func (c *controller) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
//		if consistency.LiveRead(ctx) {
//			pods, err := c.client.CoreV1().Pods(key.Namespace).List(ctx, selected)
//			...
//			for _, pod := range pods.Items {
//				writes.WroteAt(key, "", corev1.Resource("pods"), pod.ResourceVersion)
//			}
//		}
//
// A conflict that no version explains (a patch without one, a JSON patch whose test
// failed, another object's quota) holds nothing back, and LiveRead is true in the next
// run, once.
//
// WroteAt with the versions that were read settles what was lost: the runs after it
// wait until the cache shows as much as the read did. Only for an empty list take the
// list's own version: it counts the writes of all resources, and in a quiet cluster a
// cache gets there with its next bookmark, about a minute later. There is no second method for a version
// that was observed and not written; the store does not care who wrote it.
//
// # Guarantees
//
//   - C1: EnsureReady and Wait report an owner as ready only when every recorded
//     write of it is in the store of its resource. A store that has no resource
//     version yet, or one that cannot be compared, is not ready; neither is a
//     resource without a store. The same goes for Ready until MaxWait has passed
//     since the last of those writes.
//   - C2: When Ready returned false, its wake is called exactly once, when the
//     owner is ready or a bound is reached, and at latest RecheckInterval after
//     that; when Ready returned true, never.
//   - C3: A transport made by Wrap records every write that was made with a context from
//     Begin, was answered with success, concerns a resource with a store, and carries a
//     resource version in its response, in JSON, protobuf or CBOR, for the object or its
//     subresources; it does so before the caller has the response. The caller reads the
//     same bytes as without it. Of a longer response than the API server sends it holds a
//     bounded part.
//   - C4: A write of which the outcome is not known, or that no version shows (an
//     eviction, a binding), is never reported as seen: Ambiguous lists it until a later
//     response for that resource is recorded, or ten minutes have passed.
//   - C5: An owner's record goes when the cache shows its writes. Records that
//     nobody asks for again are swept, so the memory is proportional to the
//     owners with unseen writes.
//   - C6: No goroutine outlives a call. Caches are asked only while somebody
//     waits, and when an owner is asked for.
//   - C7: An object whose deletion was recorded is not in the store of its resource
//     when its owner is ready. A transport made by Wrap records the deletion when
//     the answer to a DELETE says that the object is gone, and when an update or a
//     patch has removed the last finalizer of an object being deleted.
//   - C8: LiveRead is true in a run exactly if, when it began, a recorded write or
//     deletion was not visible, a write was ambiguous, or one was refused as in C9 or
//     C10. Ready lets a run of the first two kinds go at latest when MaxWait and
//     AmbiguousWait have passed, and not before.
//   - C9: When an update, a patch or a deletion that carried a resource version is
//     refused with a conflict about its object, the owner is ready when the store
//     holds that object at a newer version or with another UID than the write carried,
//     or holds it no more; Ready lets it go at latest MaxWait after that, and then
//     LiveRead is true. So no version that came from the cache is tried twice, and a
//     foreign write costs one refused request at most.
//   - C10: A refused write of which the cache cannot show the cause is not waited
//     for, and LiveRead is true once, in the next run of the owner: it carried no
//     version, or none that can be read again (no GetBody); it was a JSON patch of
//     which a test failed (422); the conflict is not about its object; the store
//     cannot be asked for objects; or it has reached the version and never held the
//     object. A create that finds its name taken, what is not valid, and an apply of
//     fields that others manage record nothing.
//   - C11: Stores have nothing in common. Several can wrap one configuration, serve
//     several controllers with one key, and be used again after a controller ended:
//     each records the writes that were made with a context of its own Begin.
//   - C12: A write with a context from Begin to a resource with a store, which a 5xx
//     answers although it may have been carried out, is not repeated by client-go
//     itself: the transport takes Retry-After out of the answer's header.
//   - C13: An event looks only at the waiting owners whose version its store has reached,
//     and at those that wait for something else than a version. How many others wait
//     makes no difference.
//   - C14: If the API server's object differs from the cached one, ConfirmLive returns
//     ErrGone, ErrReplaced or ErrChanged, and takes no other 404 for ErrGone.
//   - C15: If etcd is restored from a backup and a store goes back to an older version,
//     nothing that was recorded before is waited for, and LiveRead is true in the next
//     run of its owner.
//
// # Caveats
//
//   - A Reconcile that does not ask LiveRead acts on the old cache when a bound is
//     reached. A negative MaxWait makes the bound of unseen writes go away.
//   - Ambiguous writes: when the connection breaks or the server answers 5xx, the
//     write may have happened, with a number nobody told. EnsureReady and Wait do not
//     wait for it; Ready waits for AmbiguousWait, so that the server can finish it, and
//     then asks for live reads. A server may in theory still carry out such a write
//     after the live read; no client can exclude that. Deterministic names make it
//     unnecessary for creates: the second one is refused.
//   - A deletion is seen by the absence of the UID. An object that somebody else made
//     just now, and that was deleted before the cache has shown it, may still come and
//     go. Evictions, and Status answers without a UID, are ambiguous, and so is the
//     deletion of a collection. So is a deletion where the store has only a version and
//     no objects to ask for. A namespace is waited for as being deleted, not as gone.
//   - An informer that selects (labels, fields, a namespace) sees a write outside its
//     selection only at the next bookmark, about a minute later; until then, or until
//     MaxWait, the key waits. One store for each resource: a resource that is read
//     through several informers needs one that answers with the lowest of their
//     versions.
//   - A transform that removes metadata.resourceVersion, or client-go's AtomicFIFO
//     feature turned off, leaves the store without a version: never ready.
//   - Client-go's fake clientset has no resource versions; nothing is recorded with it.
//   - Answers longer than 8 MiB count as ambiguous.
//   - Between a restore of etcd and the informer's next list, the version of an update
//     can be below that of the store, and counts as shown.
//   - A server that refuses a current version with a conflict about the very object, as
//     for a namespace that is being emptied, holds the key back until the next change
//     of the object, or MaxWait.
//   - A conflict after a live read that was newer than the cache is waited for as well:
//     until the cache has passed the version that was read.
package consistency
