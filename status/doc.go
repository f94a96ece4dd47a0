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
// status.observedGeneration. [ForKstatus] makes these conditions, and [Check] finds
// mistakes in a test. [Summary] makes Ready from parts, [Debounce] delays its flips, and
// [Phases] derives the one word that some kinds must have.
//
// # Guarantees
//
//   - S1: Update sends one request if mutate changed a value of the status, and otherwise
//     no request.
//   - S2: If the object changed after it was read, Update returns a Conflict and does not
//     retry.
//   - S4: If mutate changes a field outside the status, Update and Patch fail without a
//     request.
//   - S5: If Set changes a condition's status, and only then, it sets lastTransitionTime,
//     in whole seconds.
//   - S9: Patch sends the changed fields in one request, to that version of that object
//     only, and no request without a change.
//   - S10: Apply sends only the given conditions, to that version of that object only, and
//     keeps all others.
//   - S11: If live has the given conditions and shows that the field manager owns these
//     and no others, Apply sends no request, and otherwise one.
//   - S12: If a write lowers an observedGeneration or raises one above
//     metadata.generation, it fails, whatever the other conditions hold.
//   - S14: If an object passes Check, as one with the conditions of ForKstatus does,
//     kstatus reads it as intended.
//   - S19: The verb update (for Update) or patch on the status subresource is enough.
//
// # Caveats
//
//   - A status with the time of the reconcile, or with lists in random order, differs every
//     time: each reconcile writes it, and each write starts a reconcile.
//   - The status, its conditions and observedGeneration are found by their JSON names.
//   - Update sends the whole object, and the API server stores the metadata of built-in
//     kinds with the status. If a cache trims annotations, use Patch or Apply.
package status
