// Package conform is the specification of a crd.Client and of what is behind it, for the tests
// of crd and crdtest.
package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/internal/site"
	"github.com/controllerkit/controllerkit/internal/kube"
)

type m = map[string]any

// Requests checks that a client of an empty namespace, and what is behind it, behaves as
// the API server does.
func Requests(t *testing.T, c *crd.Client[*site.Website], ns string) {
	ctx := t.Context()
	must := func(w *site.Website, err error) *site.Website {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	is := func(what string, class func(error) bool, w *site.Website, err error) {
		t.Helper()
		if !class(err) {
			t.Errorf("%s: %v", what, err)
		}
		if w != nil {
			t.Errorf("%s: an object beside the error", what)
		}
	}
	conflict, invalid, badRequest, notFound := apierrors.IsConflict, apierrors.IsInvalid, apierrors.IsBadRequest, apierrors.IsNotFound
	only := func(_ any, err error) error { return err }

	// Create.
	w := site.New("", "a")
	w.Labels = map[string]string{"tier": "front"}
	w.Status.ObservedGeneration = 9
	a := must(c.Create(ctx, w, metav1.CreateOptions{FieldManager: "creator"}))
	if a.Namespace != ns || a.Name != "a" || a.UID == "" || a.ResourceVersion == "" || a.Generation != 1 || a.CreationTimestamp.IsZero() || a.Spec.Host != "a.example.com" {
		t.Errorf("created: %+v", a)
	}
	if a.Status.ObservedGeneration != 0 {
		t.Error("Create stored a status")
	}
	if len(a.ManagedFields) != 1 || a.ManagedFields[0].Manager != "creator" || a.ManagedFields[0].Operation != "Update" || a.ManagedFields[0].APIVersion != "crd.example.com/v1" {
		t.Errorf("managed fields after Create: %v", a.ManagedFields)
	}
	if a.Kind != "" || a.APIVersion != "" {
		t.Errorf("type meta: %v", a.TypeMeta)
	}
	_, err := c.Create(ctx, a.DeepCopy(), metav1.CreateOptions{})
	is("a resourceVersion", func(err error) bool { return err != nil && !apierrors.IsAlreadyExists(err) }, nil, err)
	again, err := c.Create(ctx, site.New(ns, "a"), metav1.CreateOptions{})
	is("again", apierrors.IsAlreadyExists, again, err)
	unnamed, err := c.Create(ctx, &site.Website{}, metav1.CreateOptions{})
	is("no name", invalid, unnamed, err)
	generated := must(c.Create(ctx, &site.Website{ObjectMeta: metav1.ObjectMeta{GenerateName: "g-"}}, metav1.CreateOptions{}))
	if !strings.HasPrefix(generated.Name, "g-") || len(generated.Name) != 7 {
		t.Errorf("generated name %q", generated.Name)
	}
	must(c.Create(ctx, site.New("", "dry"), metav1.CreateOptions{DryRun: []string{"All"}}))
	dry, err := c.Get(ctx, "dry", metav1.GetOptions{})
	is("a dry run", func(err error) bool { return kube.IsGone(err, "dry") }, dry, err)
	if err := c.Delete(ctx, generated.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	// Get, List.
	if got := must(c.Get(ctx, "a", metav1.GetOptions{})); cmp.Diff(a, got) != "" {
		t.Errorf("Get: %s", cmp.Diff(a, got))
	}
	b := must(c.Create(ctx, site.New("", "b"), metav1.CreateOptions{}))
	for _, tt := range []struct {
		opts metav1.ListOptions
		want []string
	}{
		{metav1.ListOptions{}, []string{"a", "b"}},
		{metav1.ListOptions{LabelSelector: "tier=front"}, []string{"a"}},
		{metav1.ListOptions{LabelSelector: "tier!=front"}, []string{"b"}},
		{metav1.ListOptions{LabelSelector: "tier=back"}, nil},
		{metav1.ListOptions{FieldSelector: "metadata.name=b"}, []string{"b"}},
		{metav1.ListOptions{FieldSelector: "metadata.name!=b,metadata.namespace=" + ns}, []string{"a"}},
	} {
		list, err := c.List(ctx, tt.opts)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
			if item.Kind != "" || item.APIVersion != "" {
				t.Errorf("type meta in a list: %v", item.TypeMeta)
			}
		}
		if !slices.Equal(names, tt.want) || list.ResourceVersion == "" {
			t.Errorf("List(%+v) = %q in version %q, want %q", tt.opts, names, list.ResourceVersion, tt.want)
		}
	}
	if err := only(c.List(ctx, metav1.ListOptions{FieldSelector: "spec.replicas=1"})); !badRequest(err) {
		t.Errorf("an unknown field selector: %v", err)
	}

	// Update.
	if same := must(c.Update(ctx, a, metav1.UpdateOptions{FieldManager: "creator"})); same.ResourceVersion != a.ResourceVersion {
		t.Errorf("an update without a change made version %s of %s", same.ResourceVersion, a.ResourceVersion)
	}
	change := a.DeepCopy()
	change.Spec.Replicas, change.Status.ObservedGeneration = 3, 7
	change.UID, change.CreationTimestamp, change.Generation = "", metav1.Time{}, 55
	if dry := must(c.Update(ctx, change, metav1.UpdateOptions{DryRun: []string{"All"}})); dry.Spec.Replicas != 3 {
		t.Errorf("dry run: %v", dry)
	}
	a2 := must(c.Update(ctx, change, metav1.UpdateOptions{}))
	if a2.Spec.Replicas != 3 || a2.Generation != 2 || a2.ResourceVersion == a.ResourceVersion || a2.UID != a.UID || !a2.CreationTimestamp.Equal(&a.CreationTimestamp) || a2.Status.ObservedGeneration != 0 {
		t.Errorf("updated: %+v", a2)
	}
	old, err := c.Update(ctx, a, metav1.UpdateOptions{})
	is("an old version", conflict, old, err)
	unversioned := a2.DeepCopy()
	unversioned.ResourceVersion = ""
	old, err = c.Update(ctx, unversioned, metav1.UpdateOptions{})
	is("no version", invalid, old, err)
	other := a2.DeepCopy()
	other.UID = "other"
	old, err = c.Update(ctx, other, metav1.UpdateOptions{})
	is("another uid", conflict, old, err)
	absent, err := c.Update(ctx, site.New("", "absent"), metav1.UpdateOptions{})
	is("an absent object", func(err error) bool { return err != nil && !conflict(err) }, absent, err)
	relabel := a2.DeepCopy()
	relabel.Labels["x"] = "y"
	a2 = must(c.Update(ctx, relabel, metav1.UpdateOptions{}))
	if a2.Generation != 2 || a2.Labels["x"] != "y" {
		t.Errorf("a label: %+v", a2)
	}

	// UpdateStatus.
	change = a2.DeepCopy()
	change.Spec.Replicas, change.Status.ObservedGeneration = 9, 2
	change.Labels["x"] = "z"
	a3 := must(c.UpdateStatus(ctx, change, metav1.UpdateOptions{FieldManager: "reporter"}))
	if a3.Spec.Replicas != 3 || a3.Generation != 2 || a3.Status.ObservedGeneration != 2 || a3.ResourceVersion == a2.ResourceVersion || a3.Labels["x"] != "y" {
		t.Errorf("updated status: %+v", a3)
	}
	if !slices.ContainsFunc(a3.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "reporter" && e.Subresource == "status" }) {
		t.Errorf("managed fields after UpdateStatus: %v", a3.ManagedFields)
	}
	old, err = c.UpdateStatus(ctx, a2, metav1.UpdateOptions{})
	is("an old status", conflict, old, err)
	change = a3.DeepCopy()
	change.Status.ObservedGeneration = 1<<53 + 1
	if a3 = must(c.UpdateStatus(ctx, change, metav1.UpdateOptions{})); a3.Status.ObservedGeneration != 1<<53+1 {
		t.Errorf("wrote %d, read %d", change.Status.ObservedGeneration, a3.Status.ObservedGeneration)
	}
	change = a3.DeepCopy()
	change.Status = site.Status{}
	if cleared := must(c.UpdateStatus(ctx, change, metav1.UpdateOptions{})); cleared.Status.ObservedGeneration != 0 {
		t.Errorf("cleared status: %+v", cleared.Status)
	}

	// Patch.
	patched := must(c.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":null}},"spec":{"host":"h","aliases":["i"]},"status":{"observedGeneration":5}}`), metav1.PatchOptions{}))
	if patched.Spec.Host != "h" || patched.Generation != 3 || patched.Status.ObservedGeneration != 0 || patched.Labels["x"] != "" {
		t.Errorf("merge patch: %+v", patched)
	}
	patched = must(c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"host":"i"},"status":{"observedGeneration":3}}`), metav1.PatchOptions{}, "status"))
	if patched.Spec.Host != "h" || patched.Generation != 3 || patched.Status.ObservedGeneration != 3 {
		t.Errorf("patch of the status: %+v", patched)
	}
	stale, err := c.Patch(ctx, "a", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"spec":{"host":"j"}}`, a.ResourceVersion), metav1.PatchOptions{})
	is("a merge patch of an old version", conflict, stale, err)
	stale, err = c.Patch(ctx, "a", types.JSONPatchType, fmt.Appendf(nil, `[{"op":"test","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/metadata/finalizers","value":["example.com/f"]}]`, a.ResourceVersion), metav1.PatchOptions{})
	is("a JSON patch of an old version", func(err error) bool { return kube.IsFailedTest(kube.AsConflict(err)) }, stale, err)
	stale, err = c.Patch(ctx, "a", types.JSONPatchType, []byte(`{`), metav1.PatchOptions{})
	is("no JSON patch", badRequest, stale, err)
	stale, err = c.Patch(ctx, "a", types.MergePatchType, []byte(`{`), metav1.PatchOptions{})
	is("no merge patch", badRequest, stale, err)
	stale, err = c.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	is("a strategic merge patch", apierrors.IsUnsupportedMediaType, stale, err)
	stale, err = c.Patch(ctx, "absent", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	is("a patch of an absent object", notFound, stale, err)
	stale, err = c.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "scale")
	is("a patch of a subresource that is none", func(err error) bool { return errors.Is(err, crd.ErrNotServed) && !notFound(err) }, stale, err)
	patched = must(c.Patch(ctx, "a", types.JSONPatchType, fmt.Appendf(nil, `[{"op":"test","path":"/metadata/uid","value":%q},{"op":"add","path":"/metadata/finalizers","value":["example.com/f"]}]`, a.UID), metav1.PatchOptions{}))
	if !slices.Equal(patched.Finalizers, []string{"example.com/f"}) || patched.Generation != 3 {
		t.Errorf("JSON patch: %+v", patched)
	}

	// Apply.
	config := site.NewConfig("applied")
	host, replicas := "one", int32(1)
	config.Spec = &site.SpecConfig{Host: &host, Replicas: &replicas}
	one := metav1.ApplyOptions{FieldManager: "one"}
	statusConfig := site.NewConfig("applied")
	generation := int64(1)
	statusConfig.Status = &site.StatusConfig{ObservedGeneration: &generation}
	absent, err = c.ApplyStatus(ctx, statusConfig, one)
	is("ApplyStatus of an absent object", notFound, absent, err)
	guarded := site.NewConfig("applied")
	guarded.WithUID("u")
	absent, err = c.Apply(ctx, guarded, one)
	is("Apply with a uid of an absent object", conflict, absent, err)
	applied := must(c.Apply(ctx, config, one))
	if applied.Spec.Host != "one" || applied.Generation != 1 || applied.UID == "" || len(applied.ManagedFields) != 1 || applied.ManagedFields[0].Operation != "Apply" {
		t.Errorf("applied: %+v", applied)
	}
	if same := must(c.Apply(ctx, config, one)); same.ResourceVersion != applied.ResourceVersion {
		t.Errorf("an apply without a change made version %s of %s", same.ResourceVersion, applied.ResourceVersion)
	}
	two := &unstructured.Unstructured{Object: m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"name": "applied", "namespace": ns}, "spec": m{"host": "two"}}}
	lost, err := c.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two"})
	is("an apply of another manager's field", conflict, lost, err)
	if err == nil || !strings.Contains(err.Error(), `.spec.host`) || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("the conflict is %v", err)
	}
	applied = must(c.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two", Force: true}))
	if applied.Spec.Host != "two" || applied.Spec.Replicas != 1 || applied.Generation != 2 {
		t.Errorf("forced: %+v", applied)
	}
	config.Spec = nil
	if applied = must(c.Apply(ctx, config, one)); applied.Spec.Host != "two" || applied.Spec.Replicas != 0 {
		t.Errorf("omitted: %+v", applied.Spec)
	}
	if applied = must(c.ApplyStatus(ctx, statusConfig, one)); applied.Status.ObservedGeneration != 1 || applied.Spec.Host != "two" {
		t.Errorf("applied status: %+v", applied)
	}
	must(c.Create(ctx, site.New("", "shared"), metav1.CreateOptions{FieldManager: "user"}))
	shared := site.NewConfig("shared")
	shared.Spec = &site.SpecConfig{Replicas: &replicas}
	must(c.Apply(ctx, shared, one))
	shared.Spec = nil
	if omitted := must(c.Apply(ctx, shared, one)); omitted.Spec.Host != "shared.example.com" || omitted.Spec.Replicas != 0 {
		t.Errorf("an apply that omits its only field: %+v", omitted.Spec)
	}
	for _, manager := range []string{"one", "two"} { // each owns its finalizer
		shared.ObjectMetaApplyConfiguration = applymetav1.ObjectMeta().WithName("shared").WithFinalizers("example.com/" + manager)
		must(c.Apply(ctx, shared, metav1.ApplyOptions{FieldManager: manager}))
	}
	must(c.Patch(ctx, "shared", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	if err := c.Delete(ctx, "shared", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	version := site.NewConfig("applied")
	version.WithResourceVersion(a.ResourceVersion)
	lost, err = c.Apply(ctx, version, one)
	is("an apply to an old version", conflict, lost, err)

	// Delete.
	uid, rv := types.UID("other"), "1"
	for _, p := range []*metav1.Preconditions{{UID: &uid}, {ResourceVersion: &rv}} {
		if err := c.Delete(ctx, "b", metav1.DeleteOptions{Preconditions: p}); !conflict(err) {
			t.Errorf("delete with another uid or version: %v", err)
		}
	}
	if err := c.Delete(ctx, "b", metav1.DeleteOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx, "b", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion}}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx, "b", metav1.DeleteOptions{}); !kube.IsGone(err, "b") {
		t.Errorf("delete of an absent object: %v", err)
	}
	for range 2 {
		if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	a = must(c.Get(ctx, "a", metav1.GetOptions{}))
	if a.DeletionTimestamp == nil || a.Generation != 4 {
		t.Errorf("an object with a finalizer after Delete: %+v", a)
	}
	late := a.DeepCopy()
	late.Finalizers = append(late.Finalizers, "example.com/late")
	gone, err := c.Update(ctx, late, metav1.UpdateOptions{})
	is("a new finalizer of an object in deletion", invalid, gone, err)
	revived := a.DeepCopy()
	revived.DeletionTimestamp = nil
	if revived = must(c.Update(ctx, revived, metav1.UpdateOptions{})); revived.DeletionTimestamp == nil {
		t.Error("an update ended the deletion")
	}
	must(c.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	gone, err = c.Get(ctx, "a", metav1.GetOptions{})
	is("the last finalizer is removed", func(err error) bool { return kube.IsGone(err, "a") }, gone, err)

	for _, name := range []string{"c1", "c2", "c3"} {
		w := site.New("", name)
		w.Labels = map[string]string{"keep": fmt.Sprint(name == "c2")}
		must(c.Create(ctx, w, metav1.CreateOptions{}))
	}
	if err := c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "keep=false"}); err != nil {
		t.Error(err)
	}
	list, err := c.List(ctx, metav1.ListOptions{LabelSelector: "keep"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "c2" {
		t.Errorf("after DeleteCollection: %v, %v", list, err)
	}
}

// Watches checks the events of a client in an empty namespace.
func Watches(t *testing.T, c *crd.Client[*site.Website]) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Create(ctx, site.New("", "before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatal(list, err)
	}
	if _, err := c.Create(ctx, site.New("", "between"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	want := func(kind watch.EventType, name string) *site.Website {
		t.Helper()
		event := <-w.ResultChan()
		obj, ok := event.Object.(*site.Website)
		if event.Type != kind || !ok || obj.Name != name {
			t.Fatalf("got %v, want %s of %s", event, kind, name)
		}
		return obj
	}
	want(watch.Added, "between")
	created, err := c.Create(ctx, site.New("", "a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(created, want(watch.Added, "a")); diff != "" {
		t.Error(diff)
	}
	created.Spec.Replicas = 5
	updated, err := c.Update(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(updated, want(watch.Modified, "a")); diff != "" {
		t.Error(diff)
	}
	if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want(watch.Deleted, "a")
}
