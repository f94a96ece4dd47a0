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
// # Guarantees
//
//   - C1: EnsureReady, Wait and Ready report an owner as ready only when every
//     recorded write of it is in the store of its resource. A store that has no
//     resource version yet, or one that cannot be compared, is not ready; neither
//     is a resource without a store.
//   - C2: When Ready returned false, its wake is called exactly once, when the
//     owner is ready, and at latest RecheckInterval after that; when Ready
//     returned true, never.
//   - C3: A transport made by Wrap records every write that was made with a
//     context from Begin, was answered with success, concerns a resource with a
//     store, and carries a resource version in its answer, in JSON or protobuf,
//     for the object or its subresources; it does so before the caller has the
//     answer. The caller reads the same bytes as without it. At most 8 MiB of an
//     answer are held.
//   - C4: A write of which the outcome is not known is never reported as seen: it
//     is listed by Ambiguous until a later answer for that resource is recorded.
//   - C5: An owner's record goes when the cache shows its writes. Records that
//     nobody asks for again are swept, so the memory is proportional to the
//     owners with unseen writes.
//   - C6: No goroutine outlives a call. Caches are asked only while somebody
//     waits, and when an owner is asked for.
//
// # Caveats
//
//   - Ambiguous writes: when the connection breaks or the server answers 5xx, the
//     write may have happened, with a number nobody told. No number to wait for
//     means that Ready and EnsureReady do not wait for it. A reconcile that must know
//     asks Ambiguous, reads the objects from the server (not the cache), and passes
//     the read's resource version to WroteAt, which turns "unknown" into a version
//     to wait for. Deterministic names make that unnecessary for creates: the second
//     one is refused. A server may in theory still carry out such a write after the
//     live read; no client can exclude that.
//   - Deletes are recorded where the answer carries the object (a pod that is
//     terminating, for example). Often it carries only a Status, and nothing is
//     recorded: the cache may go on showing an object that was deleted just now.
//     Deleting with a UID precondition makes repeating it harmless.
//   - An update that removes the last finalizer of an object being deleted is
//     answered with the object's old resource version. The cache has passed that
//     one already, and still shows the object for a moment.
//   - An informer that selects (labels, fields, a namespace) sees a write outside its
//     selection only at the next bookmark, about a minute later; until then the owner
//     waits. One store for each resource: a resource that is read through several
//     informers needs one that answers with the lowest of their versions.
//   - A transform that removes metadata.resourceVersion, or client-go's AtomicFIFO
//     feature turned off, leaves the store without a version: never ready.
//   - Client-go's fake clientset has no resource versions; nothing is recorded with it.
//   - CBOR answers, and answers longer than 8 MiB, count as ambiguous.
//
// The package is larger than most of this library because the transport reads two
// encodings and every form of path; the store itself is half of it.
package consistency
