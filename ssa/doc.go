// Package ssa calls server-side apply with a field manager that cannot be
// forgotten, skips applies that would change nothing, and returns conflicts as
// data.
//
// It stands beside the generated Apply methods and the apply configurations of
// client-go, and takes both as they are:
//
//	const manager ssa.FieldManager = "example.com/widgets"
//
//	config := applycorev1.ConfigMap(name, namespace).WithData(data)
//	config.WithOwnerReferences(owner)
//	_, applied, err := ssa.ApplyChanged(ctx, manager, client.CoreV1().ConfigMaps(namespace),
//		config, live, applycorev1.ExtractConfigMap)
//
// live is the object from the lister, nil if there is none. Most callers need
// [ApplyChanged] for the objects they own and [ApplyStatus] for what they report. A
// controller that runs for long has a [Memory] for each kind and calls its
// ApplyChanged. For unstructured objects there is [Dynamic], for sets of them [Batch],
// and for objects that were written without server-side apply [Migrate]. These parts
// stand side by side; the package is larger than its neighbours for them, and for the
// decision not to apply.
//
// # Force
//
// Apply, ApplyStatus and ApplyChanged force: a field in the configuration becomes
// this manager's, whoever had it. That is what Kubernetes recommends to
// controllers, and the reason is that a controller has nobody to ask. It states
// what its own objects must look like, and an apply that stops at a
// conflict leaves such an object wrong until a human comes. The cost is that two
// controllers that force the same field undo each other for ever. So put into a
// configuration only what the controller decides, and use [TryApply] and
// [TryApplyStatus], which do not force, for objects that belong to somebody else: the
// conflict is then a [*ConflictError] that says which field and whose.
//
// One manager name stands for one intent. Everything it applied before and does not
// apply now is removed, so two places in a program that apply different parts of one
// object need two names.
//
// # Permissions
//
// An apply needs the verb patch, on the resource or, for a status, on the resource's
// status subresource. Where it creates the object the API server wants create as well:
// without it the apply of a missing object is Forbidden. Nothing needs get, but for a
// [Batch], which says what it needs. [Migrate] and [MigrateStatus] need patch on the
// resource itself.
//
// # Guarantees
//
//   - A1: No request leaves with a field manager that is empty or longer than the
//     API accepts.
//   - A2: TryApply and TryApplyStatus never take a field from another manager.
//   - A3: ApplyChanged makes no request when live already shows, as owned by this
//     manager, exactly what the configuration says. Compared is the meaning: in typed
//     configurations 1 and 1000m are one quantity. A field that another manager took or changed,
//     or that this manager owns and no longer applies, makes a difference.
//   - A4: An apply whose configuration carries a uid never creates an object: if
//     the object is gone or replaced, the answer is [ErrUIDMismatch].
//   - A5: A conflict about fields is a *ConflictError; a conflict about the
//     resourceVersion is not. apierrors.IsConflict is true for both.
//   - A6: Neither the configuration nor live is changed.
//   - A7: ApplyChanged, with a [Memory] and without, never skips an apply that would
//     change a field of the object or who owns one. Where live is as the server
//     answered to the same configuration, a Memory skips. Only a configuration of nothing,
//     after which nobody owns anything, is applied once more.
//   - A8: ApplyChanged with a live object applies to that object or to none: it brings
//     back nothing that was deleted.
//   - A9: A field that the kind does not have is an error, for typed clients and for
//     unstructured objects, and nothing is written.
//   - A10: A configuration without apiVersion, kind or name, with an empty uid or
//     resourceVersion, or longer than the API server reads, a live object of another
//     kind, name or namespace, a type of configuration into which the uid of live cannot be
//     put, a kind or scope that the RESTMapper does not have, and a nil client are errors
//     that name the field, before any request.
//   - A11: The decision about a Deployment of 8 KiB makes at most 400 allocations with a
//     Memory that has seen its kind, and at most 60 when it has seen the object.
//   - A20: Each conflict has an Owner with the operation, the subresource and the time
//     that the managedFields of the object have for the manager and the field. What the
//     manager itself applied through another subresource, such as scale, can be one too.
//     Owners makes no request.
//   - A21: After a migration an apply that leaves out a field which a named manager had
//     removes it. The migration changes no value, leaves finalizers with who has them,
//     and changes nothing that other managers or the other subresources have.
//   - A22: A migration is one patch that holds for the uid and the resourceVersion of
//     live, and none at all if there is nothing to migrate.
//   - A23: An object of a Batch is applied, or the error has an ObjectError for it, also
//     when another object stopped the batch. Applied again, a Batch changes no field and
//     no owner.
//   - A24: A Batch begins with its second stage when all of the first has been applied and
//     its CustomResourceDefinitions are established; if that fails or takes too long, or
//     one of the first stage is being deleted, it does not begin.
//   - A25: A Batch has no more requests under way than Concurrency. When its context ends it
//     makes none any more, and each object that it made none for has ErrNotTried.
//   - A26: Delete of a Batch deletes no object of another uid, and no CustomResourceDefinition
//     or Namespace before the deletion of the others is accepted. What is gone or
//     replaced is no error. A kind that the API server does not serve is one, unless its
//     CustomResourceDefinition is among the objects.
//   - A27: What is wrong with an object of a Batch or a migration, and can be known without
//     the API server, is an error before the first request that names the object and
//     the field.
//   - A28: A Batch, or a migration with the apply after it, that died at any of its writes and
//     is made again ends as one that did not.
//   - A29: Objects of a Batch with an Owner are garbage collected after it. An Owner in
//     another namespace, one that is visibly not of OwnerKind or its scope, one that is the
//     object itself, and a second controller are errors.
//   - A30: Each form works with the verbs that are documented, and reads nothing but what
//     the comment of Batch names.
//
// # What changes nothing
//
// Server-side apply changes nothing if each value of the configuration is in the object,
// and the manager's entry in managedFields is what the configuration would make it.
// ApplyChanged compares both without a request and without a schema: what the server
// defaulted is nobody's, so it makes no difference; the keys of list items and the
// values of sets are in managedFields. The order of items counts, as it does for the
// server.
//
// What is owned as one (atomic lists and maps, such as the selector of a Deployment)
// looks in managedFields as what once was applied empty. Of owner references it is known
// that they are owned as one. Elsewhere extract decides, or a Memory, which learns it from
// the server's answers; else ApplyChanged applies. A dry
// run would be a request too, and tell no more.
//
// Other things only the server can tell: defaults inside of what is owned as one
// (fieldRef.apiVersion), quantities of unstructured objects (1000m is stored as 1), and
// what is empty, zero or null in them. ApplyChanged applies then. A Memory sees that
// nothing came of it, and skips from then on until something else in the object or the
// configuration changes; a new status is no reason to ask again.
//
// The server itself moves the resourceVersion, or the generation, without changing
// anything at each apply of some configurations: an empty list that it does not store
// is enough. With a Memory that does not become a loop. Two managers that own the same
// empty field take it from each other at each apply: that no Memory ends.
//
// # Field validation
//
// ApplyOptions have no fieldValidation. They need none: the server refuses an apply with
// a field that the schema lacks, whatever it is set to. [Dynamic] sends Strict
// besides, which also refuses duplicates. Kinds without a schema take anything.
//
// # Assumptions
//
// Server-side apply creates what is missing, and a cache can still show what a user
// just deleted: applied from there, it would come back. ApplyChanged sends the uid of
// live for that reason. Where there is no live object but one must exist, say so with
// WithUID on the configuration.
//
// ApplyChanged believes live. If live is older than the object, it can skip although
// the object has changed since; the event of that change then brings the key again.
// If live lacks managedFields, because a transform of the informer drops them, it
// cannot skip and always applies; with a Memory it applies at most twice, and then skips
// until the resourceVersion changes.
//
// # Caveats
//
// ApplyChanged errs on the side of applying. It cannot see that a difference is one
// the server will undo: a value that an admission webhook writes differently makes it
// apply each time. A Memory stops that once an apply has changed nothing.
//
// It cannot see either what an apply would change besides the configuration: defaults
// of a new version of the server, an object that is stored in an old version, webhooks
// that change the object at each write. Such changes come with the next write.
//
// Without a uid, Apply on an object that the caller believes absent merges into
// one that somebody else has created meanwhile. Where that matters Create the object
// first, or see with TryApply at least the fields that are contested.
//
// The first call of any generated ExtractX in a process parses the schema of all
// built-in types, which takes some hundred milliseconds.
//
// Each API server begins to serve a new or changed CustomResourceDefinition by itself, a
// moment after it has answered. A Batch tries the objects of such kinds once more after a
// second; where an API server is later than that, apply again.
//
// client-go's fake clientset tracks fields, but its ApplyStatus writes more than the
// status. Test that on an API server.
package ssa
