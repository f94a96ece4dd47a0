package ssa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/managedfields"
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
// version can have other fields.
func (m migration) replaceVersions(live metav1.Object, removed sets.Set[string], served string) (entries, error) {
	content := any(nil) // a typed object does not show every field
	if u, ok := live.(interface{ UnstructuredContent() map[string]any }); ok && versionOf(live) == served {
		content = u.UnstructuredContent()
	}
	return managedfields.Replace(live.GetManagedFields(), func(version string) bool { return removed.Has(version) }, served, content,
		func(e metav1.ManagedFieldsEntry) bool { return m.isOurs(e) || m.isTheirs(e) })
}

// identify returns the operations by which a patch fails unless live is the stored object,
// in its version.
func identify(live metav1.Object) []kube.Operation {
	return []kube.Operation{kube.TestUID(live), kube.Test("/metadata/resourceVersion", live.GetResourceVersion())}
}
