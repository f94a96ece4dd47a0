// Package applyset applies and deletes sets of objects of any kinds by server-side apply,
// several at a time. A [Set] also prunes what is no longer wanted, across crashes.
//
// It replaces a loop over a dynamic client that applies the files of a release, and the
// labels and lists by which a controller finds objects to delete:
//
//	set := &applyset.Set{
//		Client: client, Metadata: metadata, Mapper: mapper, Manager: "example.com/widgets",
//		ParentKind: widgetKind, Finalizer: "example.com/widgets",
//	}
//	results, err := set.Apply(ctx, widget, applyset.Member{Object: config, Live: live})
//
// The parent is the object that the controller reconciles: a ConfigMap, a Secret, or a custom
// resource whose definition has the label applyset.kubernetes.io/is-parent-type. Most callers
// store its finalizer by finalizer.Ensure, whose cleanup calls [Set.Delete], and then call
// [Set.Apply] with all wanted objects, each with its copy in the cache as Live. Apply prunes:
// it deletes objects that earlier calls applied and this one omits. A [Batch] applies objects
// without a parent.
//
// # Guarantees
//
//   - AS1: If a Namespace or CustomResourceDefinition fails, is being deleted, or is not
//     established in time, no object of another kind is applied.
//   - AS2: If a program dies at any request of a Set, the next call leads to the wanted
//     objects and no others.
//   - AS3: If an object belongs to another set, has another controller, or Keep reports
//     it, prune leaves it, also if that changed during the call.
//   - AS4: If Apply would prune more than the bounds of the Set allow, or a Namespace
//     without PruneNamespaces, or a CustomResourceDefinition without PruneCRDs, it prunes no
//     object and returns an error.
//   - AS5: If the Set has listed the members within an hour, and in this term of package leader
//     or shard, each is wanted with its Live, and nothing has changed, Set.Apply makes no
//     request.
//   - AS6: If an existing object was never a member, and neither Adopt nor Force allows it,
//     Set.Apply changes no existing value of it.
//   - AS7: If a former member is being deleted or fails, those of lower stages stay until
//     a later call.
//   - AS8: If the parent is another tool's, has an inventory of no Set, lacks the
//     finalizer or is being deleted, Set.Apply creates no object.
//   - AS9: If Set.Delete returns nil, a list from the API server had no member, except
//     kept ones, or the parent was deleted with --cascade=orphan.
//   - AS10: If the deletion of a Namespace or CustomResourceDefinition would delete the
//     parent, a wanted object or a kept member, prune leaves it.
//
// # Caveats
//
// If another user deletes a CustomResourceDefinition, its kind stays in the inventory, and
// Set.Delete returns an error with the cure.
//
// If two processes work for one parent, a late request of one can create an object that
// the other does not see for an hour. Without a term of package leader or shard in its context,
// a process does not see for an hour what others have done between two times of its work.
package applyset
