// Package crd is a typed client, informer, lister and fake for a custom resource, made
// from its Go type. No code is generated but the type's DeepCopyObject.
//
// It replaces the clientset, informers and listers of client-gen, informer-gen and
// lister-gen, or the dynamic client and its conversions.
//
//	websites, err := crd.New[*v1.Website](config, v1.GroupVersion.WithKind("Website"), "websites")
//	if err != nil {
//		return err
//	}
//	source := websites.Informer(0, nil) // of all namespaces
//	set.Add("websites", source.Informer())
//	...
//	cached, err := source.Lister().Namespace(key.Namespace).Get(key.Name)
//	...
//	_, err = status.Update(ctx, websites.Namespace(key.Namespace), cached, mutate)
//
// A [Client] has the methods of a generated client, so the other packages take it as one.
// Most callers need [New], and [NewFake] for unit tests. [Dynamic] makes a dynamic client
// fit as well.
//
// # Apply
//
// The configuration of Apply and ApplyStatus is any value whose JSON has apiVersion, kind,
// metadata.name and the fields to own: a struct of pointers, an
// *unstructured.Unstructured, or a generated configuration. A T is the wrong
// configuration if it encodes fields that the caller did not set. In a call of package
// ssa, which takes such a method, the type of the configuration is any.
//
// # Guarantees
//
//   - CR1: If T, the kind, the resource or the config is unfit, New returns an error that
//     names it and the cure.
//   - CR2: If the API server responds with an object of another kind, the method returns
//     an error, and a Watch an event of type Error. No method returns an empty object for it.
//   - CR3: If the API server does not serve the resource, the error of each method is an
//     [ErrNotServed].
//   - CR4: If the Go type has a field that the schema lacks, a write of that field is
//     rejected, unless the options set FieldValidation.
//   - CR5: If a response to a single object had a field that the Go type lacks, the next
//     Update or UpdateStatus logs its name, once for each client.
//   - CR6: Requests and responses are JSON, or CBOR if client-go's feature gates say so,
//     for any content type in the config.
//   - CR7: If an object or configuration belongs to another namespace than the client, or
//     is nil, the method sends no request.
//   - CR8: A Client does not modify the objects that it receives.
//   - CR9: An informer of [Client.Informer] has the objects of its namespace and
//     selectors, and its lister the same objects.
//   - CR10: In the places of DESIGN where a typed client fits, [Dynamic] fits.
//   - CR11: If two writers use a [Fake], the second write from an old resourceVersion is a
//     Conflict, a failed test of a JSON patch is the API server's error, and an object
//     with finalizers stays until the last is removed.
//
// # Caveats
//
//   - Update sends the fields of the Go type. The API server removes the fields that the
//     type lacks, for example those of a newer schema. Patch and Apply leave them.
//   - The kind of the list must be that of the object with the suffix List, as
//     controller-gen has it.
//   - As with every typed client, returned objects have an empty apiVersion and kind.
//   - The scope is not known before a request. A client without a namespace reads all
//     namespaces, but reads and writes single objects only of a cluster-scoped resource.
//   - Each client has a rate limiter of its own, unless config.RateLimiter is set.
package crd
