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
// A call that returns by itself, with or without an error, depends on what it has read, and on nothing
// that earlier calls have read. After a panic, and if the context of the call is done when it returns, what
// earlier calls have read stays as well.
//
// A function that keeps what it has read, for example in a map, must read it again in each call: the
// example of Tracker shows it.
//
// # Guarantees
//
//   - RM1: If an object that the last call of a key has read changes, appears or is deleted, its Handler
//     adds the key.
//   - RM2: If an object enters or leaves what the last call of a key has listed, or changes in
//     it, its Handler adds the key.
//   - RM3: If the last call of a key that returned by itself has not read an object, an event of
//     the object does not add the key.
//   - RM4: If a read has no context of a running call, it returns an error.
//
// # Caveats
//
//   - A read of a cache alone is remembered. Use Watches or a handler for what is read by a client.
//   - Two controllers that read and write each other's objects call each other until neither
//     writes a change.
//   - A name is remembered as a hash of 64 bits. If two collide, a key runs once more than needed.
//   - An object that never fit its Go type adds no key before it fits or is deleted.
package reads
