package ssa

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Owner is a manager that has a contested field, as the managedFields of the object
// tell it.
type Owner struct {
	Field       string                            // as in [Conflict]
	Manager     string                            // as in [Conflict]
	Operation   metav1.ManagedFieldsOperationType // "" if managedFields do not tell
	Subresource string                            // through which it wrote; "" is the main resource
	Time        time.Time                         // when its set of fields or one of their values last changed; zero if managedFields do not tell
}

// Owners says more about the conflicts of e: how and when the other managers wrote.
// The rest is in the managedFields of the object. Owners makes no request for them, as
// most callers need no more than the Conflicts.
//
// live is the object of the conflict: from the lister if its managedFields are kept,
// which may be older than the conflict, or from a Get, which is one request and may
// be younger. fm is the manager that applied: what it has applied itself is no
// conflict, what it has written by Update is one, and so is what it has applied
// through another subresource, such as scale.
//
// The order is that of the Conflicts, each of which has an Owner at least: where live
// does not have the manager with that field, only Field and Manager are set.
func (e *ConflictError) Owners(fm FieldManager, live metav1.Object) []Owner {
	var entries []metav1.ManagedFieldsEntry
	if !isNil(live) {
		entries = live.GetManagedFields()
	}
	var all []Owner
	for _, entry := range entries {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Manager == string(fm) && (entry.Subresource == "" || entry.Subresource == "status") {
			continue // the one that applied: neither of the two has fields of the other
		}
		set, err := fieldSet(entry)
		if err != nil {
			continue // nobody knows what this one has
		}
		owner := Owner{Manager: entry.Manager, Operation: entry.Operation, Subresource: entry.Subresource}
		if entry.Time != nil {
			owner.Time = entry.Time.Time
		}
		set.Iterate(func(p fieldpath.Path) {
			owner.Field = p.String()
			all = append(all, owner)
		})
	}
	var owners []Owner
	// A manager that wrote in two versions of the API is in two conflicts.
	for _, c := range slices.Compact(slices.Clone(e.Conflicts)) {
		found := false
		for _, owner := range all {
			if owner.Field == c.Field && (owner.Manager == c.Manager || c.Manager == "") {
				owners, found = append(owners, owner), true
			}
		}
		if !found {
			owners = append(owners, Owner{Field: c.Field, Manager: c.Manager})
		}
	}
	return owners
}

// fieldSet decodes what an entry owns.
func fieldSet(entry metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := fieldpath.NewSet()
	if entry.FieldsV1 == nil {
		return set, nil
	}
	return set, set.FromJSON(entry.FieldsV1.GetRawReader())
}
