package ssa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// TypedPatcher is the one method of a client that [Migrate] calls. Typed clients have
// it, and so have the resources of a dynamic client.
type TypedPatcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Migrate gives fm the fields of live that the named managers own because they
// created or updated it, as kubectl apply and controllers without server-side apply
// do. Without that, a field that fm's configuration no longer has stays for ever,
// because the old manager still has it. Call it before fm applies, or afterwards: both
// lead to the same.
//
// migrated reports whether there was anything to do. If not, Migrate returns live, the
// same pointer, without a request, so it can be called each time. Otherwise it makes
// one patch of managedFields, which holds for the uid and the resourceVersion of live:
// if the object has changed since, the error is a Conflict and nothing is written. The
// values of the fields, and what other managers own, stay as they are.
//
// managers are the names in metadata.managedFields, at least one. Common ones are
// kubectl-client-side-apply, kubectl-create, kubectl-edit, the file name of a
// controller's program, and before-first-apply, which the API server makes up for
// objects that had no managedFields at their first apply.
//
// With the next apply all that goes which a named manager had and the configuration
// does not have; the annotation that kubectl apply keeps for itself is one of these.
// Finalizers stay where they are: they say that work is to be done, and not what the
// object looks like. Fields of the status stay too; see [MigrateStatus].
//
// It is an error, and nothing is written, if live has no managedFields, which it must,
// or if the managers wrote in different versions of the API, which can have different
// names for a field.
func Migrate[T metav1.Object](ctx context.Context, fm FieldManager, c TypedPatcher[T], live T, managers ...string) (answer T, migrated bool, err error) {
	return migrate(ctx, fm, c, live, "", managers)
}

// MigrateStatus is Migrate for what the managers own through the status subresource:
// for controllers that called UpdateStatus and now call [ApplyStatus]. It patches
// managedFields, so it needs the verb patch on the resource itself, as Migrate does.
func MigrateStatus[T metav1.Object](ctx context.Context, fm FieldManager, c TypedPatcher[T], live T, managers ...string) (answer T, migrated bool, err error) {
	return migrate(ctx, fm, c, live, "status", managers)
}

func migrate[T metav1.Object](ctx context.Context, fm FieldManager, c TypedPatcher[T], live T, subresource string, managers []string) (answer T, migrated bool, err error) {
	if err := fm.check(); err != nil {
		return answer, false, err
	}
	switch {
	case isNil(c):
		return answer, false, errors.New("ssa: migrate: the client is nil: pass one of the object's resource and namespace")
	case isNil(live):
		return answer, false, errors.New("ssa: migrate: live is nil: pass an object that the API server returned")
	case len(managers) == 0 || slices.Contains(managers, ""):
		return answer, false, errors.New("ssa: migrate: managers is empty, or has an empty name: name whose fields are to be migrated")
	}
	fail := func(err error) (T, bool, error) {
		var none T
		return none, false, fmt.Errorf("ssa: migrate %q to %q: %w", live.GetName(), fm, err)
	}
	for _, field := range []struct{ name, value string }{
		{"name", live.GetName()}, {"uid", string(live.GetUID())}, {"resourceVersion", live.GetResourceVersion()},
	} {
		if field.value == "" {
			return fail(fmt.Errorf("metadata.%s of live is empty: pass an object that the API server returned", field.name))
		}
	}
	entries, err := migratedFields(live.GetManagedFields(), fm, subresource, managers)
	if err != nil {
		return fail(err)
	}
	if entries == nil {
		return live, false, nil
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A test that fails is a 422, as a bad patch is. What replaces a value by itself
	// is a Conflict where the value is another one.
	patch, err := json.Marshal([]operation{
		{"replace", "/metadata/uid", live.GetUID()},
		{"replace", "/metadata/resourceVersion", live.GetResourceVersion()},
		{"replace", "/metadata/managedFields", entries},
	})
	if err != nil {
		return fail(fmt.Errorf("encode metadata.managedFields: %w", err))
	}
	answer, err = c.Patch(ctx, live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: string(fm)})
	if err != nil {
		return fail(explain(err))
	}
	return answer, true, nil
}

// migratedFields returns the entries with those of the managers merged into fm's, nil
// if there is nothing to merge. It changes none of the given ones.
func migratedFields(entries []metav1.ManagedFieldsEntry, fm FieldManager, subresource string, managers []string) ([]metav1.ManagedFieldsEntry, error) {
	if len(entries) == 0 {
		return nil, errors.New("metadata.managedFields of live is empty: pass an object whose managedFields no transform dropped; if it has none on the server either, apply first, and migrate before-first-apply")
	}
	isTheirs := func(e metav1.ManagedFieldsEntry) bool {
		return slices.Contains(managers, e.Manager) && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == subresource
	}
	if !slices.ContainsFunc(entries, isTheirs) {
		return nil, nil // the usual case decodes nothing
	}
	merged := metav1.ManagedFieldsEntry{
		Manager: string(fm), Operation: metav1.ManagedFieldsOperationApply, Subresource: subresource, FieldsType: "FieldsV1",
	}
	all, finalizers := fieldpath.NewSet(), fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "finalizers"))
	var others []metav1.ManagedFieldsEntry
	moved, first := false, ""
	for _, entry := range entries {
		theirs := isTheirs(entry)
		ours := entry.Manager == string(fm) && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == subresource
		if !ours && !theirs {
			others = append(others, entry)
			continue
		}
		set, err := fieldSet(entry)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields of manager %q: %w", entry.Manager, err)
		}
		if theirs {
			moves := set.RecursiveDifference(finalizers)
			if stays := set.Difference(moves); !stays.Empty() {
				left := entry
				if left.FieldsV1, err = fieldsV1(stays); err != nil {
					return nil, err
				}
				others = append(others, left)
			}
			if moves.Empty() {
				continue
			}
			set, moved = moves, true
		}
		if merged.APIVersion != "" && merged.APIVersion != entry.APIVersion {
			return nil, fmt.Errorf("metadata.managedFields: the fields of %q were written as %s and those of %q as %s, and their names may differ: apply in the version of a manager that is to be migrated, then migrate it alone",
				first, merged.APIVersion, entry.Manager, entry.APIVersion)
		}
		if merged.APIVersion == "" {
			merged.APIVersion, first = entry.APIVersion, entry.Manager
		}
		if merged.Time == nil || merged.Time.Before(entry.Time) {
			merged.Time = entry.Time
		}
		all = all.Union(set)
	}
	if !moved {
		return nil, nil
	}
	var err error
	if merged.FieldsV1, err = fieldsV1(all); err != nil {
		return nil, err
	}
	return append(others, merged), nil
}

// fieldsV1 encodes what an entry owns.
func fieldsV1(set *fieldpath.Set) (*metav1.FieldsV1, error) {
	b, err := set.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("encode metadata.managedFields: %w", err)
	}
	fields := new(metav1.FieldsV1)
	fields.SetRawBytes(b)
	return fields, nil
}
