// Package status writes the status of an object once or not at all, and keeps
// its conditions true to their generation.
//
// It stands beside meta.SetStatusCondition and the generated UpdateStatus
// methods. Most callers end their reconcile function with it:
//
//	_, err := status.Update(ctx, client, widget, func(w *v1.Widget) error {
//		w.Status.Replicas = ready
//		return status.Set(&w.Status.Conditions, w.Generation,
//			status.True("Ready", "Deployed", "all replicas are available"))
//	})
//	return err
//
// client is any client with the UpdateStatus method of the typed clients and the
// dynamic client. To read conditions use meta.FindStatusCondition and
// meta.IsStatusConditionTrue of k8s.io/apimachinery/pkg/api/meta.
//
// The function given to Update may return an error, because filling a status can
// fail: a condition can be invalid, and so can each setter for unstructured
// objects. Then nothing is written. One that cannot fail returns nothing:
//
//	_, err := status.Update(ctx, client, widget, func(w *v1.Widget) { w.Status.Replicas = ready })
//
// # Guarantees
//
//   - S1: Update makes one request if the status changed and none if it did not.
//     Equal is meant semantically: 1 and 1000m are one quantity, no list and an
//     empty list are one list.
//   - S2: Update never overwrites a status it has not seen. It writes with the
//     resourceVersion of the object it got and returns a Conflict as it is,
//     without a second try.
//   - S3: Update never changes the object it got, which may be the informer's.
//   - S4: Update refuses, before any request, a function that changes something
//     outside the status. The API server drops such changes silently, so the same
//     write would come again with every reconcile.
//   - S5: Set moves lastTransitionTime when a condition's status changes and at
//     no other time, and in whole seconds, as it is stored.
//   - S6: Set never lets observedGeneration go back: a result computed for an
//     older generation is an error and leaves the conditions as they are.
//   - S7: Set keeps the order and the conditions of others, and changes nothing
//     at all when one of the given conditions is invalid.
//   - S8: Summary is True only if every part is True for the generation asked
//     about.
//
// # Caveats
//
// A status that contains the time of the reconcile, or lists in random order, is
// a new status every time: one write for each reconcile, and one reconcile for each
// write. Update cannot see that.
//
// Kinds without a status subresource answer UpdateStatus with NotFound.
package status
