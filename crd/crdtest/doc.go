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
// managed fields. It works in a bubble of testing/synctest.
//
// # Guarantees
//
//   - CR5: One test of versions, conflicts, finalizers, patches, applies, statuses and
//     watch events passes with a [Fake] and with the API server.
//
// # Caveats
//
//   - A Fake has no schema: it applies no defaults, validation or pruning, an apply treats
//     each list as one value, and every resource has a status subresource.
//   - It has no garbage collector, admission, conversion, rights or paging, and accepts
//     writes to namespaces that do not exist.
//   - A Watch ignores selectors and timeouts, and reports deletions with the last stored
//     version. If a watcher leaves more than 100 events unread, client-go's fake panics.
//   - Field selectors know metadata.name and metadata.namespace.
package crdtest
