// Package reads remembers what each call of a reconcile has read from caches, and runs the key again
// when that changes.
//
// It takes the place of the functions that map an object to the keys that depend on it, and of the
// predicates beside them:
//
//	var tracker reads.Tracker[types.NamespacedName]
//	secrets, err := reads.From[*corev1.Secret](&tracker, corev1.Resource("secrets"), informer, nil)
//	...
//	loop.Reconcile = reads.Track(&tracker, func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
//		secret, err := secrets.Get(ctx, key.Namespace, name) // remembered
//		...
//	})
//	_, err = loop.Handle(informer, secrets.Handler(loop.Source("secrets")))
//
// A read is remembered before the cache is read. An object that does not exist is remembered too, and
// so are the selector of a List and the value of an index. Package operator does all this in its
// function Reads.
//
// # What a call has read
//
// What the last call of a key has read replaces what earlier calls have read, whether it returned an error or not.
// If the call panics, or its context is done when it returns, for example after a timeout, what it
// has read is added to that of earlier calls. A change during a call runs the key once more after it.
//
// A function that keeps a result, such as a parsed certificate, must read in each call what the result
// depends on: the example of Tracker shows it.
//
// # Guarantees
//
//   - RM1: If an object that the last call of a key has read changes, appears or is deleted, its Handler
//     adds the key.
//   - RM2: If an object enters or leaves what the last call of a key has listed, or changes in
//     it, its Handler adds the key.
//   - RM3: If the last call of a key has not read an object, and did not panic or end with
//     its context, an event of the object does not add the key.
//   - RM4: A read returns an error and no object, unless its context is that of a running call or
//     derived from it.
//
// # Caveats
//
//   - What a client reads from the API server is not remembered.
//   - Two controllers that read and write each other's objects call each other until neither
//     writes a change.
//   - A name is remembered as a hash of 64 bits. If two collide, a key runs once more than needed.
//   - An object that never fit its Go type adds no key before it fits or is deleted.
package reads
