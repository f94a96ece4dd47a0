// Package ssa calls server-side apply under a field manager that cannot be forgotten,
// skips no-op applies, and returns conflicts as data.
//
// It takes client-go's Apply methods and apply configurations:
//
//	const manager ssa.FieldManager = "example.com/widgets"
//
//	configMaps := client.CoreV1().ConfigMaps(namespace)
//	config := applycorev1.ConfigMap(name, namespace).WithData(data)
//	_, applied, err := ssa.ApplyChanged(ctx, manager, configMaps.Apply, config, live,
//		applycorev1.ExtractConfigMap)
//
// Most callers use [ApplyChanged] for the objects that they own, with live from a
// lister, and [Apply] for their status. [TryApply] is for objects of other owners,
// [Dynamic] for unstructured objects, and [Migrate] for objects that were written
// without server-side apply or in a version that is removed.
//
// ApplyChanged skips most applies that would change nothing. If the API server drops or rewrites a
// value of the configuration, live never equals it, and each call applies: use a [Memory], which
// remembers what the server made of it.
//
// # Force
//
// Apply and ApplyChanged force: each field of the configuration becomes a field of this
// manager. Two controllers that force the same field overwrite each other in a loop. A
// field that the manager applied before and now omits is removed, or gets its default, unless
// another manager owns it. So two parts of a program that apply one object need two managers, and
// a field is given away only after its new manager has applied it. Neither checks the object's controller: if
// the name could be taken, check metav1.IsControlledBy(live, owner) first.
//
// # Guarantees
//
//   - A1: If an apply would change or remove a field that another manager owns in live,
//     TryApply makes no write and returns a [*ConflictError].
//   - A2: If live has each value of the configuration, the manager owns exactly its fields
//     and extract is not nil, ApplyChanged makes no request, except as under Caveats.
//   - A3: If the configuration, or live of ApplyChanged, has a uid that no object has, the
//     apply writes nothing, and the error is [ErrUIDMismatch].
//   - A4: If an apply would change a value or an owner of a field, ApplyChanged applies,
//     except as under Caveats.
//
// # Caveats
//
// If live is stale, ApplyChanged can skip an apply. The event of the missed change brings
// the key back. If a new schema makes a granular field atomic, it can skip until the next
// write of the object, and with a Memory for ten minutes.
//
// ApplyChanged also applies if only the API server can decide: about defaults inside atomic
// fields, quantities in unstructured objects, empty values, objects of 3 MiB, kubectl's own
// manager, and a list in which another manager repeats a key, such as an environment variable.
//
// A Role needs the verb patch, and create for objects that an apply creates.
//
// Bound quantities in a custom resource's schema: 1e999999999 costs the API server and its
// clients seconds of CPU.
package ssa
