package ssa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applyautoscalingv2 "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// versioned is a custom resource that loses versions, and a namespace for its objects.
type versioned struct {
	*testserver.Versioned
	namespace string
}

func newVersioned(t *testing.T) versioned {
	t.Helper()
	return versioned{testserver.InstallVersioned(t), testserver.Namespace(t)}
}

// object returns an object in a version. body has its other fields.
func (v versioned) object(version, name, body string) *unstructured.Unstructured {
	u := object(body)
	u.SetAPIVersion(v.Kind.Group + "/" + version)
	u.SetKind(v.Kind.Kind)
	u.SetNamespace(v.namespace)
	u.SetName(name)
	return u
}

func (v versioned) get(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	live, err := v.At("v1", v.namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// write is one write of an object before the versions are removed.
type write struct {
	manager, version string
	apply, status    bool
	body             string
}

func (v versioned) write(t *testing.T, name string, w write) {
	t.Helper()
	if err := v.try(t, name, w); err != nil {
		t.Fatalf("%s: %+v: %v", name, w, err)
	}
}

func (v versioned) try(t *testing.T, name string, w write) error {
	c := v.At(w.version, v.namespace)
	var subresources []string
	if w.status {
		subresources = []string{"status"}
	}
	u := v.object(w.version, name, w.body)
	_, err := c.Get(t.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !w.apply && !w.status:
		_, err = c.Create(t.Context(), u, metav1.CreateOptions{FieldManager: w.manager})
	case w.apply:
		_, err = c.Patch(t.Context(), name, types.ApplyPatchType, must2(u.MarshalJSON()), metav1.PatchOptions{FieldManager: w.manager, Force: ptr(true)}, subresources...)
	default:
		_, err = c.Patch(t.Context(), name, types.MergePatchType, must2(u.MarshalJSON()), metav1.PatchOptions{FieldManager: w.manager}, subresources...)
	}
	return err
}

// fieldsOf returns the leaves of each entry by its manager, operation, subresource and version.
func fieldsOf(t *testing.T, live metav1.Object) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, e := range live.GetManagedFields() {
		_, version, _ := strings.Cut(e.APIVersion, "/")
		key := strings.TrimSpace(fmt.Sprint(e.Manager, " ", e.Operation, " ", version, " ", e.Subresource))
		if found[key] != nil {
			t.Errorf("%s has two entries", key)
		}
		set := fieldpath.NewSet()
		must(set.FromJSON(e.FieldsV1.GetRawReader()))
		found[key] = []string{}
		set.Leaves().Iterate(func(p fieldpath.Path) { found[key] = append(found[key], strings.TrimPrefix(p.String(), ".")) })
		slices.Sort(found[key])
	}
	return found
}

func isRejected(err error) bool {
	var rejected controllerkit.RejectedError
	return errors.As(err, &rejected) && rejected.Rejected()
}

// removesAll is what older API servers do with entries of a removed version.
const removesAll = "a write removes all managedFields of an object with an entry of a removed version"

// TestServerRemovedVersion: what the comment of Migrate says about an object with an entry
// of a version that the CustomResourceDefinition has lost.
func TestServerRemovedVersion(t *testing.T) {
	t.Parallel()
	testserver.Since(t, "1.37", removesAll)
	v := newVersioned(t)
	create := write{manager: "creator", version: "v1alpha1", body: `{"spec":{"a":"1","b":"2"}}`}
	names := []string{"get", "update", "merge", "json", "status", "delete", "apply", "try", "again", "applystatus", "forge"}
	for _, name := range names {
		v.write(t, name, create)
	}
	v.Remove(t, "v1alpha1")
	c := v.At("v1", v.namespace)
	d := newDynamic(t, v.Kind)
	wantOwners := map[string][]string{"creator Update v1alpha1": {"spec.a", "spec.b"}}
	update := func(name string, change func(u *unstructured.Unstructured)) *unstructured.Unstructured {
		u := v.get(t, name)
		change(u)
		return u
	}

	// All requests but applies succeed. They have no effect on managedFields.
	for _, tt := range []struct {
		name string
		call func(name string) (*unstructured.Unstructured, error)
	}{
		{"get", func(name string) (*unstructured.Unstructured, error) {
			return c.Get(t.Context(), name, metav1.GetOptions{})
		}},
		{"update", func(name string) (*unstructured.Unstructured, error) {
			return c.Update(t.Context(), update(name, func(u *unstructured.Unstructured) { must(unstructured.SetNestedField(u.Object, "x", "spec", "a")) }), metav1.UpdateOptions{FieldManager: "other"})
		}},
		{"merge", func(name string) (*unstructured.Unstructured, error) {
			return c.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"a":"x"}}`), metav1.PatchOptions{FieldManager: "other"})
		}},
		{"json", func(name string) (*unstructured.Unstructured, error) {
			return c.Patch(t.Context(), name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/a","value":"x"}]`), metav1.PatchOptions{FieldManager: "other"})
		}},
		{"status", func(name string) (*unstructured.Unstructured, error) {
			return c.UpdateStatus(t.Context(), update(name, func(u *unstructured.Unstructured) {
				must(unstructured.SetNestedField(u.Object, int64(1), "status", "n"))
			}), metav1.UpdateOptions{FieldManager: "other"})
		}},
		{"forge", func(name string) (*unstructured.Unstructured, error) {
			return c.Update(t.Context(), update(name, func(u *unstructured.Unstructured) {
				u.SetManagedFields(append(u.GetManagedFields(), u.GetManagedFields()...))
			}), metav1.UpdateOptions{FieldManager: "other"})
		}},
	} {
		got, err := tt.call(tt.name)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if diff := cmp.Diff(wantOwners, fieldsOf(t, got)); diff != "" {
			t.Errorf("%s: managedFields (-want +got):\n%s", tt.name, diff)
		}
	}
	if err := c.Delete(t.Context(), "delete", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}

	// Each apply fails, and its error says so.
	spec, stat := `{"spec":{"a":"3"}}`, `{"status":{"n":1}}`
	for name, call := range map[string]func(name string) error{
		"apply": func(name string) error {
			_, err := ssa.Apply(t.Context(), manager, d.Apply, v.object("v1", name, spec))
			return err
		},
		"try": func(name string) error {
			_, err := ssa.TryApply(t.Context(), manager, d.Apply, v.object("v1", name, spec), v.get(t, name))
			return err
		},
		"again": func(name string) error {
			_, _, err := ssa.ApplyChanged(t.Context(), manager, d.Apply, v.object("v1", name, spec), v.get(t, name), nil)
			return err
		},
		"applystatus": func(name string) error {
			_, err := ssa.Apply(t.Context(), manager, d.ApplyStatus, v.object("v1", name, stat))
			return err
		},
	} {
		err := call(name)
		var status apierrors.APIStatus
		if !errors.Is(err, ssa.ErrRemovedVersion) || !isRejected(err) || !errors.As(err, &status) || status.Status().Code != http.StatusInternalServerError {
			t.Errorf("%s: error %v, want a rejected ErrRemovedVersion with the response", name, err)
		}
		for _, want := range []string{`ssa: apply as "` + string(manager), `"versions.example.com/v1alpha1"`, "ssa.Migrate"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: error %v lacks %q", name, err, want)
			}
		}
		live := v.get(t, name)
		got, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live)
		if err != nil || !migrated {
			t.Fatalf("%s: migrated = %v, error %v", name, migrated, err)
		}
		if diff := cmp.Diff(map[string][]string{"creator Update v1": {"spec.a", "spec.b"}}, fieldsOf(t, got)); diff != "" {
			t.Errorf("%s: managedFields (-want +got):\n%s", name, diff)
		}
		if same, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, got); err != nil || migrated || same != got {
			t.Errorf("%s: the second Migrate: migrated = %v, error %v", name, migrated, err)
		}
		var conflict *ssa.ConflictError
		if err = call(name); name == "try" {
			if !errors.As(err, &conflict) || conflict.Conflicts[0] != (ssa.Conflict{Field: ".spec.a", Manager: "creator"}) {
				t.Errorf("%s: error %v after Migrate, want a conflict about spec.a", name, err)
			}
		} else if err != nil {
			t.Errorf("%s: error %v after Migrate", name, err)
		}
	}
}

// TestServerMigrateRemovedVersion: the fields of each manager after a migration, and after
// the next apply.
func TestServerMigrateRemovedVersion(t *testing.T) {
	t.Parallel()
	v := newVersioned(t)
	type sets = map[string][]string
	const config = `{"spec":{"a":"ours"}}`
	applied := string(manager) + " Apply v1"
	creates := write{manager: "creator", version: "v1alpha1", body: `{"spec":{"a":"1","b":"2"}}`}
	tests := []struct {
		name     string
		writes   []write
		managers []string
		migrated sets
		applied  sets
		spec     map[string]any // after the apply
	}{
		{
			name: "a-foreign-entry", writes: []write{creates},
			migrated: sets{"creator Update v1": {"spec.a", "spec.b"}},
			applied:  sets{"creator Update v1": {"spec.b"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2"},
		},
		{
			name: "a-named-entry", writes: []write{creates}, managers: []string{"creator"},
			migrated: sets{applied: {"spec.a", "spec.b"}},
			applied:  sets{applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours"},
		},
		{
			name: "another-entry-is-named", writes: []write{creates, {manager: "other", version: "v1", body: `{"spec":{"c":"3"}}`}}, managers: []string{"other"},
			migrated: sets{"creator Update v1": {"spec.a", "spec.b"}, applied: {"spec.c"}},
			applied:  sets{"creator Update v1": {"spec.b"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2"},
		},
		{
			name: "an-absent-manager-is-named", writes: []write{creates, {manager: "other", version: "v1", body: `{"spec":{"c":"3"}}`}}, managers: []string{"absent"},
			migrated: sets{"creator Update v1": {"spec.a", "spec.b"}, "other Update v1": {"spec.c"}},
			applied:  sets{"creator Update v1": {"spec.b"}, "other Update v1": {"spec.c"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2", "c": "3"},
		},
		{
			name: "an-own-entry", writes: []write{{manager: string(manager), version: "v1alpha1", apply: true, body: `{"spec":{"a":"1","c":"3"}}`}},
			migrated: sets{applied: {"spec.a", "spec.c"}},
			applied:  sets{applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours"},
		},
		{
			name: "an-own-entry-and-a-named-one-of-v1", writes: []write{
				{manager: string(manager), version: "v1alpha1", apply: true, body: `{"spec":{"a":"1","c":"3"}}`}, {manager: "other", version: "v1", body: `{"spec":{"b":"2"}}`},
			}, managers: []string{"other"},
			migrated: sets{applied: {"spec.a", "spec.b", "spec.c"}},
			applied:  sets{applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours"},
		},
		{
			name: "both-removed-versions-and-v1-of-one-manager", writes: []write{
				creates, {manager: "creator", version: "v1beta1", body: `{"spec":{"b":"3"}}`}, {manager: "creator", version: "v1", body: `{"spec":{"c":"4"}}`},
			},
			migrated: sets{"creator Update v1": {"spec.a", "spec.b", "spec.c"}},
			applied:  sets{"creator Update v1": {"spec.b", "spec.c"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "3", "c": "4"},
		},
		{
			name: "appliers-of-each-version", writes: []write{
				{manager: "one", version: "v1alpha1", apply: true, body: `{"spec":{"a":"1","labels":{"x":"1"}}}`},
				{manager: "two", version: "v1beta1", apply: true, body: `{"spec":{"b":"1","labels":{"y":"1"},"items":[{"name":"i","value":"1"},{"name":"j"}]}}`},
				{manager: "three", version: "v1", apply: true, body: `{"spec":{"c":"1","labels":{"x":"1"}}}`},
			},
			migrated: sets{"one Apply v1": {"spec.a", "spec.labels.x"}, "two Apply v1": {`spec.b`, `spec.items[name="i"].name`, `spec.items[name="i"].value`, `spec.items[name="j"].name`, `spec.labels.y`}, "three Apply v1": {"spec.c", "spec.labels.x"}},
			applied:  sets{"one Apply v1": {"spec.labels.x"}, "two Apply v1": {`spec.b`, `spec.items[name="i"].name`, `spec.items[name="i"].value`, `spec.items[name="j"].name`, `spec.labels.y`}, "three Apply v1": {"spec.c", "spec.labels.x"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "1", "c": "1", "labels": map[string]any{"x": "1", "y": "1"}, "items": []any{map[string]any{"name": "i", "value": "1"}, map[string]any{"name": "j"}}},
		},
		{
			name: "a-field-that-v1-lacks", writes: []write{{manager: "creator", version: "v1alpha1", body: `{"metadata":{"labels":{"l":"1"}},"spec":{"b":"2","old":"3"}}`}},
			migrated: sets{"creator Update v1": {"metadata.labels.l", "spec.b"}},
			applied:  sets{"creator Update v1": {"metadata.labels.l", "spec.b"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2"},
		},
		{
			name: "only-a-field-that-v1-lacks", writes: []write{
				{manager: "creator", version: "v1alpha1", body: `{"spec":{"b":"2"}}`}, {manager: "other", version: "v1beta1", body: `{"spec":{"old":"3"}}`},
			},
			migrated: sets{"creator Update v1": {"spec.b"}},
			applied:  sets{"creator Update v1": {"spec.b"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2"},
		},
		{
			// No entry would be left, and the next apply would find the owner before-first-apply.
			name: "the-last-entry-has-only-a-field-that-v1-lacks", writes: []write{{manager: "creator", version: "v1alpha1", apply: true, body: `{"spec":{"old":"3"}}`}},
			migrated: sets{"creator Apply v1": {"spec.old"}},
			applied:  sets{"creator Apply v1": {"spec.old"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours"},
		},
		{
			name: "a-removed-item", writes: []write{
				{manager: "creator", version: "v1alpha1", body: `{"spec":{"items":[{"name":"i","value":"1"},{"name":"j"}],"labels":{"x":"1"}}}`}, {manager: "creator", version: "gone"},
			},
			migrated: sets{"creator Update v1": {`spec.items[name="j"].name`}},
			applied:  sets{"creator Update v1": {`spec.items[name="j"].name`}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "items": []any{map[string]any{"name": "j"}}},
		},
		{
			name: "of-the-status", writes: []write{
				{manager: "creator", version: "v1", body: `{"spec":{"b":"2"}}`}, {manager: "status", version: "v1alpha1", status: true, body: `{"status":{"n":1,"conditions":[{"type":"T","status":"True"}]}}`},
			}, managers: []string{"status"},
			migrated: sets{"creator Update v1": {"spec.b"}, "status Update v1 status": {`status.conditions[type="T"].status`, `status.conditions[type="T"].type`, "status.n"}},
			applied:  sets{"creator Update v1": {"spec.b"}, "status Update v1 status": {`status.conditions[type="T"].status`, `status.conditions[type="T"].type`, "status.n"}, applied: {"spec.a"}},
			spec:     map[string]any{"a": "ours", "b": "2"},
		},
	}
	for _, tt := range tests {
		for _, w := range tt.writes {
			if w.version != "gone" {
				v.write(t, tt.name, w)
			}
		}
	}
	v.Remove(t, "v1alpha1", "v1beta1")
	c, d := v.At("v1", v.namespace), newDynamic(t, v.Kind)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.writes[len(tt.writes)-1].version == "gone" {
				// A write that the API server does not track.
				testserver.Since(t, "1.37", removesAll)
				if _, err := c.Patch(t.Context(), tt.name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/items/0"},{"op":"remove","path":"/spec/labels"}]`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			live := v.get(t, tt.name)
			got, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live, tt.managers...)
			if err != nil || !migrated {
				t.Fatalf("migrated = %v, error %v", migrated, err)
			}
			if diff := cmp.Diff(tt.migrated, fieldsOf(t, got)); diff != "" {
				t.Errorf("managedFields after Migrate (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(live.Object["spec"], got.Object["spec"]); diff != "" {
				t.Errorf("Migrate changed the spec (-before +after):\n%s", diff)
			}
			if got, err = ssa.Apply(t.Context(), manager, d.Apply, v.object("v1", tt.name, config)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.applied, fieldsOf(t, got)); diff != "" {
				t.Errorf("managedFields after Apply (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(any(tt.spec), got.Object["spec"]); diff != "" {
				t.Errorf("spec after Apply (-want +got):\n%s", diff)
			}
			if same, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, got, tt.managers...); err != nil || migrated || same != got {
				t.Errorf("the second Migrate: migrated = %v, error %v", migrated, err)
			}
		})
	}
}

// TestServerMigrateServedVersion: entries of other versions that are served stay, and cost
// one request, which writes nothing.
func TestServerMigrateServedVersion(t *testing.T) {
	t.Parallel()
	v := newVersioned(t)
	v.write(t, "one", write{manager: "creator", version: "v1beta1", body: `{"spec":{"a":"1","old":"2"}}`})
	v.write(t, "one", write{manager: "other", version: "v1", body: `{"spec":{"b":"1"}}`})
	v.write(t, "two", write{manager: "creator", version: "v1alpha1", body: `{"spec":{"a":"1"}}`})
	v.write(t, "two", write{manager: "other", version: "v1beta1", body: `{"spec":{"b":"1","old":"2"}}`})
	v.Remove(t, "v1alpha1")
	c := v.At("v1", v.namespace)
	live := v.get(t, "one")
	if got, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live); err != nil || migrated || got != live {
		t.Errorf("migrated = %v, error %v", migrated, err)
	}
	if got := v.get(t, "one"); got.GetResourceVersion() != live.GetResourceVersion() {
		t.Error("the dry run changed the object")
	}
	got, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, v.get(t, "two"))
	if err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	want := map[string][]string{"creator Update v1": {"spec.a"}, "other Update v1beta1": {"spec.b", "spec.old"}}
	if diff := cmp.Diff(want, fieldsOf(t, got)); diff != "" {
		t.Errorf("managedFields (-want +got):\n%s", diff)
	}
}

// TestServerMigrateRemovedVersionAtRandom: whatever the entries are, and with a client of
// any kind, an apply succeeds after Migrate, and no manager that is not named loses a field
// that the object has.
func TestServerMigrateRemovedVersionAtRandom(t *testing.T) {
	t.Parallel()
	testserver.Since(t, "1.37", removesAll)
	v := newVersioned(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	value := func() string { return fmt.Sprintf("%d", r.IntN(1000)) }
	body := func(by, version string) string {
		spec := map[string]any{pick("a", "b", "c"): value()}
		if by != string(manager) && r.IntN(2) == 0 { // Apply removes all fields of manager, and an empty map is not valid
			spec["labels"] = map[string]any{pick("x", "y"): value()}
		}
		if version != "v1" && r.IntN(2) == 0 {
			spec["old"] = value()
		}
		return string(must2(json.Marshal(map[string]any{"spec": spec})))
	}
	managers := []string{string(manager), "m1", "m2", "m3"}
	const objects = 40
	for n := range objects {
		v.write(t, fmt.Sprint("object-", n), write{manager: pick(managers[1:]...), version: "v1alpha1", body: body("", "v1alpha1")})
		for range r.IntN(4) {
			by, version := pick(managers...), pick("v1alpha1", "v1beta1", "v1")
			w := write{manager: by, version: version, apply: r.IntN(2) == 0, body: body(by, version)}
			if r.IntN(5) == 0 {
				w.status, w.body = true, `{"status":{"n":`+value()+`}}`
			}
			// The API server rejects an apply with old beside an entry of v1, and one that removes the last label
			// that its manager has applied, because it leaves null.
			if err := v.try(t, fmt.Sprint("object-", n), w); err != nil && !strings.Contains(err.Error(), "old: field not declared in schema") &&
				!(w.apply && strings.Contains(err.Error(), `spec.labels in body must be of type object: "null"`)) {
				t.Fatal(err)
			}
		}
	}
	removed := []string{"v1alpha1", "v1beta1"}[:1+r.IntN(2)]
	v.Remove(t, removed...)
	c, d := v.At("v1", v.namespace), newDynamic(t, v.Kind)
	meta := metadata.NewForConfigOrDie(testserver.Config(t)).Resource(v.GVR).Namespace(v.namespace)
	for n := range objects {
		name := fmt.Sprint("object-", n)
		live := v.get(t, name)
		before := fieldsOf(t, live)
		stale := false
		for entry := range before {
			stale = stale || slices.Contains(removed, strings.Fields(entry)[2])
		}
		var after metav1.Object
		var err error
		kind := r.IntN(3)
		switch kind {
		case 0:
			after, _, err = ssa.Migrate(t.Context(), manager, c.Patch, live)
		case 1:
			after, _, err = ssa.MigrateStatus(t.Context(), manager, c.Patch, live)
		default:
			var partial *metav1.PartialObjectMetadata
			if partial, err = meta.Get(t.Context(), name, metav1.GetOptions{}); err == nil {
				after, _, err = ssa.Migrate(t.Context(), manager, meta.Patch, partial)
			}
		}
		if err != nil {
			t.Fatalf("%s: %v; before %v", name, err, before)
		}
		got := fieldsOf(t, after)
		for entry, fields := range before {
			parts := strings.Fields(entry)
			if slices.Contains(removed, parts[2]) {
				parts[2] = "v1"
			}
			for _, field := range fields {
				_, exists, _ := unstructured.NestedFieldNoCopy(live.Object, strings.Split(field, ".")...)
				kept := slices.ContainsFunc(got[strings.Join(parts, " ")], func(f string) bool { return f == field || strings.HasPrefix(f, field+".") })
				if exists && !kept {
					t.Errorf("%s: %s lost %s: before %v, after %v", name, entry, field, before, got)
				}
			}
		}
		if !stale && after.GetResourceVersion() != live.GetResourceVersion() {
			t.Errorf("%s: Migrate changed an object without removed versions", name)
		}
		applied, err := ssa.Apply(t.Context(), manager, d.Apply, v.object("v1", name, `{"spec":{"a":"ours"}}`))
		if err != nil {
			t.Fatalf("%s: %v; before %v, after %v", name, err, before, got)
		}
		for entry := range fieldsOf(t, applied) {
			if parts := strings.Fields(entry); parts[0] == "before-first-apply" || slices.Contains(removed, parts[2]) {
				t.Errorf("%s: entry %s; before %v", name, entry, before)
			}
		}
	}
}

// TestServerRemovedBuiltIn: the API server itself drops an entry of a version that a kind
// of its own has lost.
func TestServerRemovedBuiltIn(t *testing.T) {
	s := newServer(t)
	c := s.AutoscalingV2().HorizontalPodAutoscalers(s.namespace)
	live, err := c.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		MaxReplicas: 3, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
	}}, metav1.CreateOptions{FieldManager: "creator"})
	if err != nil {
		t.Fatal(err)
	}
	removed := live.ManagedFields[0]
	removed.Manager, removed.APIVersion = "removed", "autoscaling/v2beta1"
	patch := must2(json.Marshal([]map[string]any{{"op": "add", "path": "/metadata/managedFields/0", "value": removed}, {"op": "add", "path": "/metadata/labels", "value": map[string]string{"a": "b"}}}))
	if live, err = c.Patch(t.Context(), "one", types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "creator"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"creator Update v2"}, slices.Sorted(maps.Keys(fieldsOf(t, live)))); diff != "" {
		t.Errorf("managedFields (-want +got):\n%s", diff)
	}
	if _, err := ssa.Apply(t.Context(), manager, c.Apply, applyautoscalingv2.HorizontalPodAutoscaler("one", s.namespace).WithLabels(map[string]string{"c": "d"})); err != nil {
		t.Error(err)
	}
}
