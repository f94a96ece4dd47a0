// Package crdtest has a fake API server of one custom resource, for unit tests of code
// that uses a [crd.Client].
//
//	fake, err := crdtest.NewFake(v1.GroupVersion.WithKind("Website"), "websites", shop)
//	...
//	r := &reconciler{websites: fake.Client}
//	fake.PrependReactor("update", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
//		return true, nil, apierrors.NewInternalError(errors.New("full"))
//	})
//
// The client of a [Fake] is the client of production, with the same encoding and errors.
// Only its transport is another one: it responds from memory, and starts no server. Unlike
// the fakes of client-gen, a Fake has the resource versions, uids, generations, conflicts
// and finalizers of the API server, a status that only requests for the status change, and
// managed fields. It rejects metadata that the API server rejects. It works in a bubble of
// testing/synctest.
//
// # Guarantees
//
//   - CR5: One test of versions, conflicts, finalizers, patches, applies, statuses and
//     watch events passes with a [Fake] and with the API server.
//
// # Caveats
//
//   - The comment of [Fake] lists its differences from an API server.
//   - In a bubble the first failed list or watch of an informer can sleep for decades: see
//     docs/testing.md for a line of TestMain.
//   - If a watcher leaves more than 100 events unread, client-go's fake panics.
package crdtest
