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
// # Three forms of one write
//
// All three take an object as the caller knows it, make one request or none, and
// write only to the version that was seen: any other is a Conflict, for which the
// caller reconciles again from a newer copy.
//
//   - Update sends the whole status. It is the one to begin with.
//   - Patch sends the fields that changed: for clients that have nothing else, and
//     for types that do not know every field of the status.
//   - Apply sends the conditions of one field manager: for controllers that share
//     an object.
//
// Update needs the verb update on the status subresource (poddisruptionbudgets/status
// in a Role), Patch and Apply need patch. None needs anything else.
//
// # Conditions for others
//
// What waits for objects of any kind reads Ready, and kstatus with it Reconciling,
// Stalled and status.observedGeneration. [ForKstatus] makes the three conditions,
// and [Check] tells a test what would be misread. [Summary] makes Ready out of
// parts, [Steady] keeps a blip of a part from flipping it, and [Phases] derives the
// one word that some kinds must have. [CheckDefinition] finds, at start, the custom
// resources whose status cannot be kept right.
//
// The package has more names than most, because each is one rule of a status: three
// ways to write it, what may be in it, and two checks, for tests and for the start.
//
// # Guarantees
//
//   - S1: Update makes one request if the status changed and none if it did not.
//     Equal is meant semantically: 1 and 1000m are one quantity, no list and an
//     empty list are one list. What is the same in JSON is equal too: a time with a
//     fraction of a second, an int and an int64 in a map.
//   - S2: Update never overwrites a status it has not seen. It writes with the
//     resourceVersion of the object it got and returns a Conflict,
//     wrapped, without a second try.
//   - S3: Update never changes the object it got, which may be the informer's.
//   - S4: Update refuses, before any request, a function that changes something
//     outside the status. The API server drops such changes silently, so the same
//     write would come again with every reconcile.
//   - S5: Set moves lastTransitionTime when a condition's status changes and at
//     no other time, and in whole seconds, as it is stored.
//   - S6: Set never lets observedGeneration go back: a result computed for an
//     older generation is an error and leaves the conditions as they are.
//   - S7: Set keeps the order and the conditions of others, and changes nothing
//     at all when one of the given conditions is invalid. A type that the list has
//     more than once is there once after it was set.
//   - S8: Summary is True only if every part is True for the generation asked
//     about.
//   - S9: Patch makes one request if the status changed and none if it did not. It
//     sends the fields that changed, the uid and the resourceVersion: a stale copy,
//     or an object that took the name of a deleted one, is a Conflict.
//   - S10: Apply sends the conditions that it is given, the uid and the
//     resourceVersion, and nothing else. Conditions and fields of others stay as they
//     are. A stale copy, or an object that took the name of a deleted one, is a
//     Conflict.
//   - S11: Apply makes no request if live shows that the field manager owns these
//     conditions with these values and nothing else in the status, and one if not.
//   - S12: If an observedGeneration of the status or of a condition would go back or run
//     ahead of metadata.generation, Update, Patch and Apply refuse the write, whatever
//     other conditions hold. Of a type that is there more than once the newest generation
//     counts.
//   - S13: Steady lets a condition flip only to what its parts have said for the
//     given time, and lets it a second after that at the latest, if it is asked again
//     when it said. What it waits for is stored with the object and survives a restart.
//   - S14: What passes Check is read by kstatus as it is meant, and what ForKstatus
//     makes passes Check.
//   - S15: Phases.Next returns only phases that the conditions say and the table
//     allows, and an error for all else.
//   - S16: CheckDefinition reports by name a version that is not served, a missing status
//     subresource, conditions that are not a map by type, and fields of a condition that
//     the server would drop or take values for that no client can read, also by the
//     version that is stored. It tells apart that it may not look.
//   - S17: What the API server would refuse or misunderstand is an error that names
//     the field, before any request: a client or an object that is nil, an object
//     without name, uid or resourceVersion, a field manager that is empty or too long,
//     a configuration without a kind or with other content than its name, a status of
//     more than 1 MiB.
//   - S18: A controller that dies at any of its writes, before or after it, and
//     starts again from a copy of any age, ends with the same status.
//   - S19: Each form works with the one verb that is documented above.
//
// # Caveats
//
// A status that contains the time of the reconcile, or lists in random order, is
// a new status every time: one write for each reconcile, and one reconcile for each
// write. Update cannot see that.
//
// The package finds the status, its conditions and its observedGeneration by their
// names in JSON, in structs as in maps, so a type needs no methods. What another
// type than []metav1.Condition holds is not checked, and Apply refuses it.
//
// Update sends the whole object, and with the status of a built-in kind the API server
// stores metadata too. From a cache that trims annotations, as informer.Trim does, use
// Patch or Apply for such a kind, or they are gone from the object.
//
// Steady cannot see what goes round between the parts, or between False and Unknown,
// faster than its time.
//
// Kinds without a status subresource answer with NotFound.
package status
