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
// [ApplyChanged] for the objects they own and [ApplyStatus] for what they report.
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
// # Guarantees
//
//   - A1: No request leaves with a field manager that is empty or longer than the
//     API accepts.
//   - A2: TryApply and TryApplyStatus never take a field from another manager.
//   - A3: ApplyChanged makes no request when live already shows, as owned by this
//     manager, exactly what the configuration says. Compared is the meaning: 1
//     and 1000m are one quantity. A field that another manager took or changed,
//     or that this manager owns and no longer applies, makes a difference.
//   - A4: An apply whose configuration carries a uid never creates an object: if
//     the object is gone or replaced, the answer is [ErrUIDMismatch].
//   - A5: A conflict about fields is a *ConflictError; a conflict about the
//     resourceVersion is not. apierrors.IsConflict is true for both.
//   - A6: Neither the configuration nor live is changed.
//
// # Assumptions
//
// Server-side apply creates what is missing, and a cache can still show what a user
// just deleted: applied from there, it comes back. If the object must exist, say so
// with WithUID on the configuration.
//
// ApplyChanged believes live. If live is older than the object, it can skip although
// the object has changed since; the event of that change then brings the key again.
// If live lacks managedFields, because a transform of the informer drops them, it
// cannot skip and always applies.
//
// # Caveats
//
// ApplyChanged errs on the side of applying. It cannot see that a difference is one
// the server will undo: a value that an admission webhook or the API server
// writes differently (stringData of a Secret, items of a set in another order) makes it
// apply each time. The server finds that nothing changes and keeps the
// resourceVersion, so there is no loop, only a request.
//
// Without a uid, Apply on an object that the caller believes absent merges into
// one that somebody else has created meanwhile. Where that matters Create the object
// first, or see with TryApply at least the fields that are contested.
//
// The first call of any generated ExtractX in a process parses the schema of all
// built-in types, which takes some hundred milliseconds.
//
// The dynamic client's Apply takes the name as well. Three lines make it fit:
//
//	type applier struct{ dynamic.ResourceInterface }
//
//	func (a applier) Apply(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
//		return a.ResourceInterface.Apply(ctx, config.GetName(), config, opts)
//	}
//
// client-go's fake clientset tracks fields, but its ApplyStatus writes more than the
// status. Test that on an API server.
package ssa
