package ssa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrRemovedVersion is wrapped by the error of this package's applies if an entry of
// managedFields, of any manager, has a version that the CustomResourceDefinition no longer has. Each apply
// of the object fails until [Migrate] replaces that version:
//
//	if errors.Is(err, ssa.ErrRemovedVersion) {
//		live, _, err = ssa.Migrate(ctx, manager, client.Patch, live)
//	}
//
// The errors of the packages status and applyset also wrap it. The reconcile loop classes it
// as rejected.
var ErrRemovedVersion = kube.ErrRemovedVersion

// entries are the managedFields of one object.
type entries = []metav1.ManagedFieldsEntry

// prober finds the removed versions of an object by dry runs.
type prober[T metav1.Object] struct {
	patch patchFunc[T]
	live  T
}

// manager is the field manager of the dry runs. No entry has its name, because the version
// of the object is new.
func (p prober[T]) manager() string { return "probe-" + p.live.GetResourceVersion() }

// probe adds an entry of the version to the entries of with. If with is nil, it adds it to
// the stored entries. If version is empty, the entry has the version and the kind of the
// object. probe returns these two of the response, or "" if the API server cannot convert the
// object to the version of each entry. Then the API server ignores the change of
// managedFields, and reports success.
func (p prober[T]) probe(ctx context.Context, with entries, version string) (apiVersion, kind string, err error) {
	const first = "/metadata/managedFields/0"
	entry := metav1.ManagedFieldsEntry{
		Manager: p.manager(), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:controllerkit.github.io/probe":{}}}}`),
	}
	operations := identify(p.live)
	if with == nil {
		operations = append(operations, kube.Operation{Op: "add", Path: first, Value: entry})
	} else {
		operations = append(operations, kube.Operation{Op: "replace", Path: "/metadata/managedFields", Value: append(entries{entry}, with...)})
	}
	if version == "" {
		operations = append(operations,
			kube.Operation{Op: "copy", From: "/apiVersion", Path: first + "/apiVersion"}, kube.Operation{Op: "copy", From: "/kind", Path: first + "/subresource"})
	}
	response, err := kube.Patch(ctx, p.patch, p.live.GetName(), operations, metav1.PatchOptions{FieldManager: p.manager(), DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return "", "", fmt.Errorf("try metadata.managedFields in a dry run: %w", err)
	}
	for _, e := range response.GetManagedFields() {
		if e.Manager == entry.Manager {
			return e.APIVersion, e.Subresource, nil
		}
	}
	return "", "", nil
}

// maxTries bounds the dry runs that find the removed versions. Each names one at random.
const maxTries = 64

// replace returns the removed versions of the entries, and all entries with the version of
// the object that patch serves in place of them. Only a version that the API server names as
// removed is one: it can also be unable to convert because a webhook is down.
func (p prober[T]) replace(ctx context.Context, m migration) (replaced entries, removed sets.Set[string], err error) {
	if version, _, err := p.probe(ctx, nil, p.live.GetManagedFields()[0].APIVersion); err != nil || version != "" {
		return nil, nil, err
	}
	served, kind, err := p.probe(ctx, entries{}, "")
	switch {
	case err != nil:
		return nil, nil, err
	case served == "":
		return nil, nil, errNotStored
	}
	config, err := json.Marshal(map[string]any{"apiVersion": served, "kind": kind, "metadata": map[string]any{
		"name": p.live.GetName(), "uid": p.live.GetUID(), "resourceVersion": p.live.GetResourceVersion(),
	}})
	if err != nil {
		return nil, nil, err
	}
	force := true
	removed = sets.New[string]()
	for range maxTries {
		_, err := p.patch(ctx, p.live.GetName(), types.ApplyPatchType, config, metav1.PatchOptions{FieldManager: p.manager(), Force: &force, DryRun: []string{metav1.DryRunAll}})
		version := kube.RemovedVersion(err)
		switch {
		case err != nil && version == "":
			return nil, nil, fmt.Errorf("find the removed versions by a dry run of an apply: %w", err)
		case err == nil:
			return nil, nil, nil // the API server has dropped the entry of the probe, because a built-in kind lacks its version
		case removed.Has(version):
			continue
		}
		removed.Insert(version)
		if replaced, err = m.replaceVersions(p.live, removed, served); err != nil {
			return nil, nil, err
		}
		if accepted, _, err := p.probe(ctx, replaced, served); err != nil || accepted != "" {
			return replaced, removed, err
		}
	}
	return nil, nil, errNotStored
}

var errNotStored = errors.New("the API server, or an admission webhook, does not store changes of metadata.managedFields")

// mayBeRemoved reports whether live can have entries of removed versions. Only custom
// resources can: the API server drops entries of versions that a built-in kind has lost. If
// live shows no apiVersion, as typed clients return it, and has entries of one version, the
// result is unknown: it is that version, or a removed one.
func mayBeRemoved(live metav1.Object, unknown bool) bool {
	custom := sets.New[string]()
	for _, e := range live.GetManagedFields() {
		if group, _, ok := strings.Cut(e.APIVersion, "/"); ok && strings.Contains(group, ".") {
			custom.Insert(e.APIVersion)
		}
	}
	if version := versionOf(live); version != "" {
		return len(custom.Delete(version)) > 0
	}
	return len(custom) > 1 || len(custom) == 1 && unknown
}

// versionOf returns the apiVersion of an object, or "" if the object does not show it.
func versionOf(live metav1.Object) string {
	obj, ok := live.(runtime.Object)
	if !ok {
		return ""
	}
	gv := obj.GetObjectKind().GroupVersionKind().GroupVersion()
	if gv.Group == metav1.GroupName { // of metadata alone
		return ""
	}
	return gv.String()
}

// replaceVersions returns a copy of the entries with the served version in place of the
// removed ones. It omits the fields of other managers that live lacks, because the served
// version can have other fields. It omits entries without fields, unless no entry is left:
// without entries, the next apply makes the API server invent an owner of all fields.
func (m migration) replaceVersions(live metav1.Object, removed sets.Set[string], served string) (entries, error) {
	content := any(nil)
	if u, ok := live.(interface{ UnstructuredContent() map[string]any }); ok && versionOf(live) == served {
		content = u.UnstructuredContent()
	}
	all := live.GetManagedFields()
	replaced, err := replace(all, removed, served, func(e metav1.ManagedFieldsEntry, set *fieldpath.Set) *fieldpath.Set {
		if content == nil || m.isOurs(e) || m.isTheirs(e) { // a typed object does not show every field
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

func replace(all entries, removed sets.Set[string], served string, filter func(metav1.ManagedFieldsEntry, *fieldpath.Set) *fieldpath.Set) (entries, error) {
	var replaced entries
	for _, e := range all {
		if !removed.Has(e.APIVersion) {
			replaced = append(replaced, e)
		}
	}
	for _, e := range all {
		if !removed.Has(e.APIVersion) {
			continue
		}
		set, err := fieldSet(e)
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
			other, err := fieldSet(replaced[same])
			if err != nil {
				return nil, fmt.Errorf("metadata.managedFields of manager %q: %w", e.Manager, err)
			}
			if set = set.Union(other); e.Time == nil || e.Time.Before(replaced[same].Time) {
				e.Time = replaced[same].Time
			}
			replaced = slices.Delete(replaced, same, same+1)
		}
		if e.FieldsV1, err = fieldsV1(set); err != nil {
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

// identify returns the operations by which a patch fails unless live is the stored object,
// in its version.
func identify(live metav1.Object) []kube.Operation {
	return []kube.Operation{kube.TestUID(live), kube.Test("/metadata/resourceVersion", live.GetResourceVersion())}
}
