package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/managedfields"
)

// Migrate makes fm the owner of the fields of live that the named managers own: because
// they created or updated the object, as controllers without server-side apply do and
// kubectl apply, or because they applied it, as a former name of fm did. Without a
// migration, a field that config omits stays in the object, because the other manager still
// owns it. Call Migrate before the first apply or after it; both lead to the same object.
//
// patch is the Patch method of a client. migrated reports whether Migrate changed the
// object. If the managers own no fields and no version was removed, it returns live, the same pointer, so a controller
// can call it each time. Otherwise it patches managedFields. If the uid or the
// resourceVersion of live is not the stored one, Migrate makes no change and returns an
// error, for the resourceVersion a Conflict. The values of the fields stay, and the fields of
// other managers.
//
// managers are names in metadata.managedFields. Common names are kubectl-client-side-apply,
// kubectl-create, kubectl-edit, kubectl of kubectl apply --server-side, the file name of a controller's program, and
// before-first-apply, which the API server makes up for an object that has no managedFields
// at its first apply.
//
// The next apply removes the fields that a named manager owned and the configuration
// omits, for example the annotation of kubectl apply. Finalizers stay with their
// manager, because each one stands for work that the manager does. Fields of the status
// stay too; see [MigrateStatus].
//
// It is an error if live has no managedFields. It is also an error if fm and the managers wrote
// in different versions of the API that still exist: a field can have another name in each.
//
// Migrate also ends [ErrRemovedVersion], and without managers it does only that. If a
// CustomResourceDefinition loses a version in which any manager wrote the object, Kubernetes
// 1.37 responds as follows until no entry of managedFields has that version:
//
//	apply, also of the status or as a dry run  500
//	update, patch, also of the status          success, but managedFields do not change
//	get, list, watch, delete                   success
//
// Before 1.37 an update or a patch removes all managedFields of the object. After it an apply
// succeeds, and the manager before-first-apply owns the other fields.
//
// In the entries of all managers and subresources, Migrate replaces that version by the
// version of patch. If live is unstructured, the entry of another manager loses the fields
// that live lacks, because the version can lack them. An entry without fields is omitted,
// unless it is the only one left. Entries of versions that the definition has stay.
//
// If a custom resource has entries of several versions, or managers is empty, Migrate finds
// the removed versions by dry runs of patch; one shows that there are none, and none is
// needed if live shows that all entries have its own version. A typed object without an
// apiVersion does not show a single removed version, so omit managers after
// ErrRemovedVersion. Built-in kinds have no such error: the API server drops their
// entries of removed versions.
func Migrate[T metav1.Object](ctx context.Context, fm FieldManager, patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error), live T, managers ...string) (response T, migrated bool, err error) {
	return migrate(ctx, fm, patch, live, "", managers)
}

// MigrateStatus is Migrate for the fields that the managers wrote through the status
// subresource. Controllers that called UpdateStatus need it before they apply the
// status. Like Migrate, it needs the verb patch on the resource itself, and ends
// [ErrRemovedVersion].
func MigrateStatus[T metav1.Object](ctx context.Context, fm FieldManager, patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error), live T, managers ...string) (response T, migrated bool, err error) {
	return migrate(ctx, fm, patch, live, "status", managers)
}

func migrate[T metav1.Object](ctx context.Context, fm FieldManager, patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error), live T, subresource string, managers []string) (response T, migrated bool, err error) {
	if err := apply.CheckManager(string(fm)); err != nil {
		return response, false, prefixed(err)
	}
	switch {
	case patch == nil:
		return response, false, errors.New("ssa: migrate: patch is nil: pass the Patch method of a client")
	case kube.IsNil(live):
		return response, false, errors.New("ssa: migrate: live is nil: pass an object that the API server returned")
	case slices.Contains(managers, ""):
		return response, false, errors.New("ssa: migrate: managers has an empty name: name the managers whose fields to migrate")
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
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	if len(live.GetManagedFields()) == 0 {
		return fail(errors.New("metadata.managedFields of live is empty: pass an object whose managedFields no transform removed; if the stored object has no managedFields, apply first and migrate before-first-apply"))
	}
	m := migration{fm: fm, subresource: subresource, managers: managers}
	after, removed, err := plan(ctx, m, prober[T]{patch, live})
	switch err = cmp.Or(err, ctx.Err()); {
	case err != nil:
		return fail(err)
	case after == nil:
		return live, false, nil
	}
	response, err = kube.Patch(ctx, patchFunc[T](patch), live.GetName(),
		append(identify(live), kube.Operation{Op: "replace", Path: "/metadata/managedFields", Value: after}), metav1.PatchOptions{FieldManager: string(fm)})
	if err == nil && slices.ContainsFunc(response.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return removed.Has(e.APIVersion) }) {
		err = fmt.Errorf("the API server did not store the change of metadata.managedFields, which has entries of the removed versions %q", sets.List(removed))
	}
	if err != nil {
		return fail(err)
	}
	return response, true, nil
}

// plan returns the entries of the object after the migration, or nil if it makes no change,
// and the removed versions, whose entries it replaced.
func plan[T metav1.Object](ctx context.Context, m migration, p prober[T]) (after entries, removed sets.Set[string], err error) {
	after, err = m.move(p.live.GetManagedFields())
	if !mayBeRemoved(p.live, len(m.managers) == 0 || after != nil || err != nil) {
		return after, nil, err
	}
	replaced, removed, probeErr := p.replace(ctx, m)
	if probeErr != nil || len(removed) == 0 {
		return after, nil, cmp.Or(probeErr, err)
	}
	if after, err = m.move(replaced); after == nil {
		after = replaced
	}
	return after, removed, err
}

// patchFunc is a Patch method as a client.
type patchFunc[T any] func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)

func (f patchFunc[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	return f(ctx, name, pt, data, opts, subresources...)
}

// migration is which fields become those of fm.
type migration struct {
	fm          FieldManager
	subresource string
	managers    []string
}

// isTheirs reports whether the entry is of a named manager.
func (m migration) isTheirs(e metav1.ManagedFieldsEntry) bool {
	return managedfields.IsFormer(e, string(m.fm), m.subresource, m.managers)
}

// isOurs reports whether the entry is that of the applies of fm.
func (m migration) isOurs(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == string(m.fm) && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == m.subresource
}

// move returns a copy of the entries in which fm owns the fields of the managers. It
// returns nil if they own no fields.
func (m migration) move(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	if !slices.ContainsFunc(entries, m.isTheirs) {
		return nil, nil // the usual case; it needs no decoding
	}
	merged := metav1.ManagedFieldsEntry{
		Manager: string(m.fm), Operation: metav1.ManagedFieldsOperationApply, Subresource: m.subresource, FieldsType: "FieldsV1",
	}
	all, finalizers := fieldpath.NewSet(), fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "finalizers"))
	var others []metav1.ManagedFieldsEntry
	moved, first := false, ""
	for _, entry := range entries {
		theirs := m.isTheirs(entry)
		if !theirs && !m.isOurs(entry) {
			others = append(others, entry)
			continue
		}
		set, err := managedfields.Set(entry)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields of manager %q: %w", entry.Manager, err)
		}
		if theirs {
			moves := set.RecursiveDifference(finalizers)
			if stays := set.Difference(moves); !stays.Empty() {
				left := entry
				if left.FieldsV1, err = managedfields.FieldsV1(stays); err != nil {
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
			return nil, fmt.Errorf("metadata.managedFields: %q wrote %s and %q wrote %s, in which fields can have different names: apply in the version of the manager to migrate, then migrate it alone",
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
	if merged.FieldsV1, err = managedfields.FieldsV1(all); err != nil {
		return nil, err
	}
	return append(others, merged), nil
}
