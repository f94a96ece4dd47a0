package ssa_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/ssa"
)

// conversions is the Patch method of an API server that cannot convert its object to the
// removed versions. It then keeps the stored managedFields, or removes all of them as API
// servers before 1.37 do.
type conversions struct {
	stored         *unstructured.Unstructured
	removed        sets.Set[string]
	removesAll     bool
	keepsAll       bool  // whatever the versions are
	down           error // of the conversion webhook
	dryRuns, wrote int
}

func (c *conversions) send(pt types.PatchType, data []byte, opts metav1.PatchOptions) (*unstructured.Unstructured, error) {
	if pt == types.ApplyPatchType {
		if len(opts.DryRun) == 0 {
			return nil, errors.New("an apply that is no dry run")
		}
		c.dryRuns++
		var versions []string
		for _, e := range c.stored.GetManagedFields() {
			if c.removed.Has(e.APIVersion) {
				versions = append(versions, e.APIVersion)
			}
		}
		switch {
		case c.down != nil:
			return nil, c.down
		case len(versions) > 0:
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: 500, Message: "request to convert CR to an invalid group/version: " + versions[c.dryRuns%len(versions)],
			}}
		}
		return c.stored.DeepCopy(), nil
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	patched, err := patch.Apply(must2(c.stored.MarshalJSON()))
	if err != nil {
		return nil, err
	}
	next := &unstructured.Unstructured{}
	if err := next.UnmarshalJSON(patched); err != nil {
		return nil, err
	}
	for _, e := range next.GetManagedFields() {
		if c.removed.Has(e.APIVersion) || c.keepsAll {
			next.SetManagedFields(c.stored.GetManagedFields())
			if c.removesAll {
				next.SetManagedFields(nil)
			}
			break
		}
	}
	if len(opts.DryRun) > 0 {
		c.dryRuns++
		return next, nil
	}
	c.wrote++
	c.stored = next
	return next.DeepCopy(), nil
}

func (c *conversions) Untyped(_ context.Context, _ string, pt types.PatchType, data []byte, opts metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	return c.send(pt, data, opts)
}

// Typed returns objects without an apiVersion, as typed clients do.
func (c *conversions) Typed(_ context.Context, _ string, pt types.PatchType, data []byte, opts metav1.PatchOptions, _ ...string) (*corev1.ConfigMap, error) {
	u, err := c.send(pt, data, opts)
	if err != nil {
		return nil, err
	}
	return configMapFrom(u), nil
}

func configMapFrom(u *unstructured.Unstructured) *corev1.ConfigMap {
	obj := new(corev1.ConfigMap)
	must(json.Unmarshal(must2(u.MarshalJSON()), obj))
	obj.TypeMeta = metav1.TypeMeta{}
	return obj
}

// TestMigrateVersions: the requests of Migrate for entries of served and of removed
// versions, if live shows its version and if it does not.
func TestMigrateVersions(t *testing.T) {
	const v1, v2, v3 = "example.com/v1", "example.com/v2", "example.com/v3"
	fields := `{"f:data":{"f:color":{}}}`
	painter, tailor := entry("painter", "Update", v1, "", fields), entry("tailor", "Update", v2, "", fields)
	tailored := entry("tailor", "Update", v3, "", fields)
	finalizer := entry("painter", "Update", v3, "", `{"f:metadata":{"f:finalizers":{".":{},"v:\"example.com/f\"":{}}}}`)
	tests := []struct {
		name                   string
		entries                []metav1.ManagedFieldsEntry
		removed                []string
		managers               []string
		dryRuns, wrote         int // if live has its version
		typedRuns, typedWrites int // if not
		want                   []string
	}{
		{name: "one version", entries: []metav1.ManagedFieldsEntry{tailored}, managers: []string{"painter"}, want: []string{"tailor Update v3"}},
		{name: "one version, without managers", entries: []metav1.ManagedFieldsEntry{tailored}, typedRuns: 1, want: []string{"tailor Update v3"}},
		{name: "one version that migrates", entries: []metav1.ManagedFieldsEntry{tailored}, managers: []string{"tailor"}, wrote: 1, typedRuns: 1, typedWrites: 1, want: []string{"ours Apply v3"}},
		{name: "a finalizer alone, which does not migrate", entries: []metav1.ManagedFieldsEntry{finalizer}, managers: []string{"painter"}, want: []string{"painter Update v3"}},
		{name: "served versions", entries: []metav1.ManagedFieldsEntry{painter, tailor}, managers: []string{"x"}, dryRuns: 1, typedRuns: 1, want: []string{"painter Update v1", "tailor Update v2"}},
		{name: "one removed", entries: []metav1.ManagedFieldsEntry{painter, tailor}, removed: []string{v1}, dryRuns: 4, wrote: 1, typedRuns: 4, typedWrites: 1, want: []string{"tailor Update v2", "painter Update v3"}},
		{name: "all removed", entries: []metav1.ManagedFieldsEntry{painter, tailor}, removed: []string{v1, v2}, managers: []string{"x"}, dryRuns: 7, wrote: 1, typedRuns: 7, typedWrites: 1, want: []string{"painter Update v3", "tailor Update v3"}},
		{name: "one removed, one of the object", entries: []metav1.ManagedFieldsEntry{painter, tailored}, removed: []string{v1}, managers: []string{"tailor", "painter"}, dryRuns: 4, wrote: 1, typedRuns: 4, typedWrites: 1, want: []string{"ours Apply v3"}},
		{name: "a typed client cannot see one removed version", entries: []metav1.ManagedFieldsEntry{painter}, removed: []string{v1}, managers: []string{"x"}, dryRuns: 4, wrote: 1, want: []string{"painter Update v3"}},
	}
	for _, tt := range tests {
		for _, removesAll := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, removesAll), func(t *testing.T) {
				u := object(`{"apiVersion":"example.com/v3","kind":"ConfigMap","metadata":{"name":"one","uid":"u","resourceVersion":"1"},"data":{"color":"red"}}`)
				u.SetManagedFields(tt.entries)
				c := &conversions{stored: u.DeepCopy(), removed: sets.New(tt.removed...), removesAll: removesAll}
				check := func(dryRuns, wrote int, migrated bool, err error, want []string) {
					t.Helper()
					if err != nil || migrated != (wrote > 0) || c.dryRuns != dryRuns || c.wrote != wrote {
						t.Errorf("migrated = %v with %d dry runs and %d writes, error %v, want %d and %d", migrated, c.dryRuns, c.wrote, err, dryRuns, wrote)
					}
					var got []string
					for _, e := range c.stored.GetManagedFields() {
						_, version, _ := strings.Cut(e.APIVersion, "/")
						got = append(got, strings.ReplaceAll(fmt.Sprint(e.Manager, " ", e.Operation, " ", version), string(manager), "ours"))
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("managedFields (-want +got):\n%s", diff)
					}
				}
				_, migrated, err := ssa.Migrate(t.Context(), manager, c.Untyped, u, tt.managers...)
				check(tt.dryRuns, tt.wrote, migrated, err, tt.want)

				c = &conversions{stored: u.DeepCopy(), removed: c.removed, removesAll: removesAll}
				_, migrated, err = ssa.Migrate(t.Context(), manager, c.Typed, configMapFrom(u), tt.managers...)
				want := tt.want
				if tt.wrote > 0 && tt.typedWrites == 0 {
					want = []string{"painter Update v1"}
				}
				check(tt.typedRuns, tt.typedWrites, migrated, err, want)
			})
		}
	}
}

// TestMigrateVersionsUnknown: Migrate writes nothing if the API server drops changes of
// managedFields whatever their versions are, and if a served version cannot be converted
// because the conversion webhook is down.
func TestMigrateVersionsUnknown(t *testing.T) {
	u := object(`{"apiVersion":"example.com/v3","kind":"ConfigMap","metadata":{"name":"one","uid":"u","resourceVersion":"1"}}`)
	u.SetManagedFields([]metav1.ManagedFieldsEntry{entry("painter", "Update", "example.com/v1", "", `{"f:data":{}}`)})
	down := apierrors.NewInternalError(errors.New("conversion webhook failed"))
	for _, tt := range []struct {
		name string
		c    conversions
		want string
		is   error
	}{
		{name: "never stored", c: conversions{keepsAll: true}, want: "does not store changes of metadata.managedFields"},
		{name: "the webhook is down", c: conversions{removed: sets.New("example.com/v1"), down: down}, want: "conversion webhook failed", is: down},
	} {
		for _, managers := range [][]string{nil, {"painter"}, {"x"}} {
			c := tt.c
			c.stored = u.DeepCopy()
			_, migrated, err := ssa.Migrate(t.Context(), manager, c.Untyped, u, managers...)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) || migrated || c.wrote > 0 {
				t.Errorf("%s: migrated = %v with %d writes, error %v", tt.name, migrated, c.wrote, err)
			}
		}
	}
}

// TestMigrateVersionsHostile: a list of many items ends the search for absent fields, and
// the entry keeps the others.
func TestMigrateVersionsHostile(t *testing.T) {
	const n = 2_000 // the search compares each field with each item
	var items []any
	var fields strings.Builder
	for i := range n {
		items = append(items, map[string]any{"name": fmt.Sprint("item-", i)})
		fmt.Fprintf(&fields, `%q:{},`, fmt.Sprintf(`k:{"name":"absent-%d"}`, i))
	}
	u := object(`{"apiVersion":"example.com/v3","kind":"ConfigMap","metadata":{"name":"one","uid":"u","resourceVersion":"1"}}`)
	u.Object["items"] = items
	u.SetManagedFields([]metav1.ManagedFieldsEntry{entry("painter", "Update", "example.com/v1", "", `{"f:items":{`+strings.TrimSuffix(fields.String(), ",")+`}}`)})
	c := &conversions{stored: u.DeepCopy(), removed: sets.New("example.com/v1")}
	got, migrated, err := ssa.Migrate(t.Context(), manager, c.Untyped, u)
	if err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	if kept := strings.Count(got.GetManagedFields()[0].FieldsV1.GetRawString(), "absent-"); kept == 0 || kept == n {
		t.Errorf("%d of %d fields are kept, want those after the bound", kept, n)
	}
}

// paint is a custom resource.
type paint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              map[string]string `json:"spec,omitempty"`
}

func (p *paint) DeepCopyObject() runtime.Object {
	return &paint{TypeMeta: p.TypeMeta, ObjectMeta: *p.ObjectMeta.DeepCopy(), Spec: maps.Clone(p.Spec)}
}

// TestMigrateFakes: the fakes of client-go and of crd take the dry runs.
func TestMigrateFakes(t *testing.T) {
	paints, err := crdtest.NewFake[*paint](schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}, "paints")
	if err != nil {
		t.Fatal(err)
	}
	red, err := paints.Namespace("default").Create(t.Context(), &paint{ObjectMeta: metav1.ObjectMeta{Name: "red"}, Spec: map[string]string{"a": "1"}}, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	if same, migrated, err := ssa.Migrate(t.Context(), manager, paints.Namespace("default").Patch, red); err != nil || migrated || same != red {
		t.Errorf("crdtest, without managers: migrated = %v, error %v", migrated, err)
	}
	if red, migrated, err := ssa.Migrate(t.Context(), manager, paints.Namespace("default").Patch, red, "painter"); err != nil || !migrated {
		t.Errorf("crdtest: migrated = %v, error %v", migrated, err)
	} else if diff := cmp.Diff([]string{string(manager) + " Apply v1"}, slices.Sorted(maps.Keys(fieldsOf(t, red)))); diff != "" {
		t.Errorf("crdtest: managedFields (-want +got):\n%s", diff)
	}

	c := fake.NewClientset().NetworkingV1().Ingresses("default")
	one, err := c.Create(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	if one, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, one, "painter"); err != nil || !migrated {
		t.Errorf("client-go: migrated = %v, error %v", migrated, err)
	} else if diff := cmp.Diff([]string{string(manager) + " Apply v1"}, slices.Sorted(maps.Keys(fieldsOf(t, one)))); diff != "" {
		t.Errorf("client-go: managedFields (-want +got):\n%s", diff)
	}
}
