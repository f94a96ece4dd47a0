// Package managedfields replaces versions in the managedFields of objects, and finds the entries of
// former managers. The packages ssa, crd/migrate and operator use it.
package managedfields

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Set returns the fields of an entry.
func Set(entry metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := fieldpath.NewSet()
	if entry.FieldsV1 == nil {
		return set, nil
	}
	return set, set.FromJSON(entry.FieldsV1.GetRawReader())
}

// FieldsV1 encodes the fields of an entry.
func FieldsV1(set *fieldpath.Set) (*metav1.FieldsV1, error) {
	b, err := set.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("encode metadata.managedFields: %w", err)
	}
	fields := new(metav1.FieldsV1)
	fields.SetRawBytes(b)
	return fields, nil
}

// Replace returns a copy of the entries with the version served in place of the removed ones. If
// content, the object in that version, is not nil, an entry loses the fields that content lacks,
// unless keep returns true for it. Replace omits entries without fields, unless no entry is left:
// without entries, the next apply makes the API server invent an owner of all fields.
func Replace(all []metav1.ManagedFieldsEntry, removed func(version string) bool, served string, content any, keep func(metav1.ManagedFieldsEntry) bool) ([]metav1.ManagedFieldsEntry, error) {
	replaced, err := replace(all, removed, served, func(e metav1.ManagedFieldsEntry, set *fieldpath.Set) *fieldpath.Set {
		if content == nil || keep != nil && keep(e) {
			return set
		}
		steps := maxPresent
		return present(set, content, &steps)
	})
	if err == nil && len(replaced) == 0 {
		replaced, err = replace(all, removed, served, func(_ metav1.ManagedFieldsEntry, set *fieldpath.Set) *fieldpath.Set { return set })
	}
	return replaced, err
}

func replace(all []metav1.ManagedFieldsEntry, removed func(string) bool, served string, filter func(metav1.ManagedFieldsEntry, *fieldpath.Set) *fieldpath.Set) ([]metav1.ManagedFieldsEntry, error) {
	var replaced []metav1.ManagedFieldsEntry
	for _, e := range all {
		if !removed(e.APIVersion) {
			replaced = append(replaced, e)
		}
	}
	for _, e := range all {
		if !removed(e.APIVersion) {
			continue
		}
		set, err := Set(e)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields of manager %q: %w", e.Manager, err)
		}
		if set = filter(e, set); set.Empty() {
			continue
		}
		e.APIVersion = served
		// If a manager updated the object in both versions, it has two entries, and the API
		// server would store one of them.
		same := slices.IndexFunc(replaced, func(o metav1.ManagedFieldsEntry) bool {
			return o.Manager == e.Manager && o.Operation == e.Operation && o.Subresource == e.Subresource && o.APIVersion == served
		})
		if same >= 0 {
			other, err := Set(replaced[same])
			if err != nil {
				return nil, fmt.Errorf("metadata.managedFields of manager %q: %w", e.Manager, err)
			}
			if set = set.Union(other); e.Time == nil || e.Time.Before(replaced[same].Time) {
				e.Time = replaced[same].Time
			}
			replaced = slices.Delete(replaced, same, same+1)
		}
		if e.FieldsV1, err = FieldsV1(set); err != nil {
			return nil, err
		}
		replaced = append(replaced, e)
	}
	return replaced, nil
}

// maxPresent bounds the comparisons of present for one entry. Fields after it count as
// present.
const maxPresent = 1 << 20

// present returns the fields of the set that the content has.
func present(set *fieldpath.Set, content any, steps *int) *fieldpath.Set {
	found := fieldpath.NewSet()
	set.Members.Iterate(func(pe fieldpath.PathElement) {
		if _, ok := child(content, pe, steps); ok {
			found.Members.Insert(pe)
		}
	})
	set.Children.Iterate(func(pe fieldpath.PathElement) {
		below, ok := set.Children.Get(pe)
		if at, exists := child(content, pe, steps); ok && exists {
			if *steps > 0 {
				below = present(below, at, steps)
			}
			if !below.Empty() {
				*found.Children.Descend(pe) = *below
			}
		}
	})
	return found
}

// child returns the member or the item of content at the element.
func child(content any, pe fieldpath.PathElement, steps *int) (any, bool) {
	if *steps--; *steps <= 0 {
		return nil, true
	}
	if pe.FieldName != nil {
		members, _ := content.(map[string]any)
		member, ok := members[*pe.FieldName]
		return member, ok
	}
	items, _ := content.([]any)
	if pe.Index != nil {
		if i := *pe.Index; i >= 0 && i < len(items) {
			return items[i], true
		}
		return nil, false
	}
	for _, item := range items {
		if *steps--; *steps <= 0 {
			return nil, true
		}
		if pe.Value != nil && value.Equals(*pe.Value, value.NewValueInterface(item)) {
			return item, true
		}
		if pe.Key != nil && hasKey(item, *pe.Key) {
			return item, true
		}
	}
	return nil, false
}

func hasKey(item any, key value.FieldList) bool {
	members, ok := item.(map[string]any)
	for _, k := range key {
		member, has := members[k.Name]
		ok = ok && has && value.Equals(k.Value, value.NewValueInterface(member))
	}
	return ok
}
