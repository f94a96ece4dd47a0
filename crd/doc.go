// Package crd makes a typed client, informer and lister for a custom resource from its Go
// type. The only generated code is the DeepCopyObject of the type.
//
// It replaces the clientset, informers and listers of client-gen, informer-gen and
// lister-gen, and the conversions of a dynamic client.
//
//	websites, err := crd.New[*v1.Website](config, v1.GroupVersion.WithKind("Website"), "websites")
//	if err != nil {
//		return err
//	}
//	source := websites.Informer(0, nil) // all namespaces
//	set.Add("websites", source.Informer())
//	...
//	cached, err := source.Lister().Namespace(key.Namespace).Get(key.Name)
//	...
//	_, err = status.Update(ctx, websites.Namespace(key.Namespace), cached, mutate)
//
// A [Client] has the methods of a generated client, so the packages of this library accept
// it. Most callers need [New]. Package crdtest has a fake for unit tests, and [Dynamic]
// adapts a dynamic client. docs/crd.md is the way from Go types to a controller.
//
// # Apply
//
// The configuration of Apply and ApplyStatus is a value whose JSON has apiVersion, kind,
// metadata.name and the fields to own: a struct of pointers, an
// *unstructured.Unstructured, or a generated configuration. A T is usually wrong, because
// it encodes fields that the caller did not set. For package ssa the type of the configuration
// is that of the method's parameter, any:
//
//	ssa.Apply(ctx, fieldManager, websites.Apply, any(config))
//
// # Guarantees
//
//   - CR1: If the API server responds with another kind, the method returns an error and
//     no object, and a Watch sends an event of type Error.
//   - CR2: If a Create, Update, Patch or Apply sets a field that the schema lacks, it is
//     rejected, unless the options set FieldValidation.
//   - CR3: If an object does not fit the Go type, an informer of [Client.Informer] continues
//     with all others. Get of the lister and of the client returns an [ErrMalformed], and a
//     list returns the other objects and an ErrMalformed.
//   - CR4: If an object ceases to fit the Go type, handlers get an update, and no deletion until
//     it is deleted.
//
// # Caveats
//
//   - Update removes the fields that the Go type lacks, for example fields of a newer
//     schema. Patch and Apply keep them.
//   - Handlers get no malformed object. If an object ceases to fit, they get an update to its
//     last state that fits, with the new metadata. If a handler has not seen it fit, its first event is its
//     deletion, a cache.DeletedFinalStateUnknown without an object of the type. The List of
//     the informer's cache omits malformed objects without an error: use the Lister.
//   - The kind of the list must be the kind of the object with the suffix List, which is
//     the default.
//   - As with every typed client, returned objects have an empty apiVersion and kind.
//   - A client without a namespace lists and watches all namespaces. It reads and writes
//     single objects of cluster-scoped resources only.
//   - Each client has its own rate limiter, unless config.RateLimiter is set.
package crd
