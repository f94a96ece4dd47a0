// Package status writes the status of an object once or not at all, and keeps each
// condition true to its generation.
//
// It replaces meta.SetStatusCondition and direct calls of the generated UpdateStatus
// methods.
//
//	_, err := status.Update(ctx, client, widget, func(w *v1.Widget) error {
//		w.Status.Replicas = ready
//		return status.Set(&w.Status.Conditions, w.Generation,
//			status.True("Ready", "Deployed", "all replicas are available"))
//	})
//	return err
//
// Most callers end their reconcile function with [Update]. [Patch] sends only the changed
// fields, for clients that have no UpdateStatus and for types that do not know every field.
// [Apply] sends the conditions of one field manager, for controllers that share an object.
// After a Conflict, reconcile again from a newer copy.
//
// # Conditions for other programs
//
// Programs that wait for objects of any kind read Ready, Reconciling, Stalled and
// status.observedGeneration. Package [github.com/controllerkit/controllerkit/status/kstatus]
// makes these conditions, finds mistakes in a test, and reads those of other objects.
// [Summary] makes Ready from parts.
//
// # Guarantees
//
//   - S1: Update, Patch and Apply send one request, or none if by the given copy neither the
//     status nor its field managers would change.
//   - S2: If the object changed after it was read, a write by Update, Patch or Apply returns
//     a Conflict, without a retry.
//   - S3: Patch sends only the changed fields. Apply sends the given conditions, and so
//     removes those that its manager applied before and omits now. Both write only if the
//     object still has the version that the caller has read.
//   - S4: If a write would lower status.observedGeneration, or the highest one of a type in
//     status.conditions, or raise it above metadata.generation, it fails.
//
// # Caveats
//
//   - A status with the time of the reconcile, or with lists in random order, differs every
//     time: each reconcile writes it, and each write starts a reconcile.
//   - The status, its conditions and observedGeneration are found by their JSON names.
//     Conditions in other places, such as status.listeners of a Gateway, are not checked. If a
//     type is listed twice, only the entry with the highest observedGeneration is.
//   - Update sends the whole object, and the API server stores the metadata of built-in
//     kinds with the status. If a cache trims annotations, use Patch or Apply.
//   - A Role needs the verb update for Update, and patch for Patch and Apply, on the status
//     subresource.
package status
