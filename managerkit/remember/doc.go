// Package remember runs a key again when an object changes that its last reconcile has read from the cache of
// a controller-runtime manager.
//
// It takes the place of Watches with a function that maps an object to requests, and of the
// predicates beside it:
//
//	reads, err := remember.New(mgr, &corev1.Secret{})
//	...
//	err = ctrl.NewControllerManagedBy(mgr).
//		For(&v1.Website{}).
//		WatchesRawSource(reads.Source()).
//		Complete(reads.Reconciler(&Reconciler{Client: mgr.GetClient(), Reads: reads}))
//
// A [Reader] is a client.Reader for the calls of one controller. In Reconcile, r.Reads.Get and
// r.Reads.List take the place of r.Get and r.List. The context of Reconcile says which key reads.
// An absent object is remembered too, so the key runs when it appears.
//
// It works with controller-runtime's own workers, with managerkit.Complete and with
// managerkit.Writes. Package enqueue/reads is the same for informers.
//
// # What a call has read
//
// What the last call of a request has read replaces what earlier calls have read, whether it returned an error or
// not. If the call panics, or its context is done when it returns, for example after a timeout, what it has read
// is added to that of earlier calls. A change during a call runs the request once more after it.
//
// A Reconciler that keeps a result, such as a parsed certificate, must read in each call what the result
// depends on.
//
// # Guarantees
//
//   - RR1: If an object that the last call of a reconcile.Request has read by its name from
//     the Reader changes, appears or is deleted, the Source adds the Request to the queue.
//   - RR2: If an object enters or leaves what the last call of a Request has listed from the
//     Reader by namespace, labels and indexed fields, or changes in it, the Source adds the
//     Request.
//   - RR3: If the last call of a Request has not read an object, and did not panic or end
//     with its context, an event of the object does not add the Request.
//   - RR4: If a read cannot be remembered, it returns an error that names the cure.
//   - RR5: If a call panics, or its context is done when it returns, what earlier calls have read stays
//     remembered.
//
// # Caveats
//
//   - Read the object of the key itself by the client. The predicates of For have no effect on the
//     events of a Source, and so a write of the status would run its key.
//   - Two controllers that read and write each other's objects call each other until neither
//     writes a change.
//   - The reads do not wait for own writes. EnableReadYourWritesConsistency is a setting of the client. Use
//     managerkit.Writes.
//   - Only requests of the type reconcile.Request are possible.
package remember
