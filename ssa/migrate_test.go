package ssa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/controllerkit/controllerkit/ssa"
)

// patches answers each patch with the object that has the managedFields of the patch.
type patches struct {
	calls int
	patch []struct {
		Op, Path string
		Value    json.RawMessage
	}
}

func (p *patches) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.ConfigMap, error) {
	p.calls++
	if err := json.Unmarshal(data, &p.patch); err != nil {
		return nil, err
	}
	answer := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "2"}}
	err := json.Unmarshal(p.patch[len(p.patch)-1].Value, &answer.ManagedFields)
	return answer, err
}

func entry(manager, operation, version, subresource, fields string) metav1.ManagedFieldsEntry {
	e := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), APIVersion: version, Subresource: subresource,
		FieldsType: "FieldsV1", FieldsV1: new(metav1.FieldsV1),
	}
	e.FieldsV1.SetRawBytes([]byte(fields))
	return e
}

// Bad input is an error before any request, which names the field.
//
// Proves CK2.
func TestMigrateBadInput(t *testing.T) {
	good := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", ManagedFields: []metav1.ManagedFieldsEntry{
			entry("painter", "Update", "v1", "", `{"f:data":{"f:color":{}}}`),
		}}}
	}
	tests := []struct {
		name     string
		manager  ssa.FieldManager
		managers []string
		live     func(*corev1.ConfigMap) *corev1.ConfigMap
		want     string
	}{
		{name: "good", want: ""},
		{name: "no manager", manager: "none", want: "field manager"},
		{name: "a manager without name", managers: []string{"painter", ""}, want: "managers"},
		{name: "no object", live: func(*corev1.ConfigMap) *corev1.ConfigMap { return nil }, want: "live"},
		{name: "no name", live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.Name = ""; return o }, want: "metadata.name"},
		{name: "no uid", live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.UID = ""; return o }, want: "metadata.uid"},
		{name: "no resourceVersion", live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ResourceVersion = ""; return o }, want: "metadata.resourceVersion"},
		{name: "no managedFields", live: func(o *corev1.ConfigMap) *corev1.ConfigMap { o.ManagedFields = nil; return o }, want: "metadata.managedFields"},
		{name: "broken managedFields", live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields[0].FieldsV1.SetRawBytes([]byte(`{"x":1}`))
			return o
		}, want: `metadata.managedFields of manager "painter"`},
		{name: "two versions", live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields = append(o.ManagedFields, entry("painter", "Update", "v0", "", `{"f:data":{"f:size":{}}}`))
			return o
		}, want: `"painter" wrote v1 and "painter" wrote v0`},
		{name: "applied in another version", live: func(o *corev1.ConfigMap) *corev1.ConfigMap {
			o.ManagedFields = append(o.ManagedFields, entry(string(manager), "Apply", "v0", "", `{"f:data":{"f:size":{}}}`))
			return o
		}, want: `"painter" wrote v1 and "` + string(manager) + `" wrote v0, in which fields can have different names: apply in the version`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			live, fm, managers := good(), manager, []string{"painter"}
			if tt.live != nil {
				live = tt.live(live)
			}
			if tt.manager != "" {
				fm = ""
			}
			if tt.managers != nil {
				managers = tt.managers
			}
			c := new(patches)
			answer, migrated, err := ssa.Migrate(t.Context(), fm, c.Patch, live, managers...)
			if tt.want == "" {
				if err != nil || !migrated || c.calls != 1 {
					t.Errorf("migrated = %v with %d requests, error %v", migrated, c.calls, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || c.calls != 0 || migrated || answer != nil {
				t.Errorf("migrated = %v with %d requests, error %v, want one that names %s", migrated, c.calls, err, tt.want)
			}
		})
	}
	if live, c := good(), new(patches); true {
		got, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live)
		if err != nil || migrated || got != live || c.calls != 0 {
			t.Errorf("no managers: migrated = %v with %d requests, error %v", migrated, c.calls, err)
		}
	}
	if _, _, err := ssa.Migrate(t.Context(), manager, nil, good(), "painter"); err == nil || !strings.Contains(err.Error(), "patch is nil") {
		t.Errorf("no patch: error %v", err)
	}
}

// Whatever managedFields look like: what the managers, of which fm is one, and fm had is fm's, finalizers
// aside, everything else is as it was, and live is not touched.
func TestMigrateFields(t *testing.T) {
	paths := []fieldpath.Path{
		fieldpath.MakePathOrDie("metadata", "labels"),
		fieldpath.MakePathOrDie("metadata", "labels", "a"),
		fieldpath.MakePathOrDie("metadata", "finalizers"),
		fieldpath.MakePathOrDie("metadata", "finalizers", value.NewValueInterface("example.com/f")),
		fieldpath.MakePathOrDie("data", "color"),
		fieldpath.MakePathOrDie("data", "size"),
		fieldpath.MakePathOrDie("ports", fieldpath.KeyByFields("port", 80)),
		fieldpath.MakePathOrDie("ports", fieldpath.KeyByFields("port", 80), "name"),
	}
	read := func(t *rapid.T, e metav1.ManagedFieldsEntry) *fieldpath.Set {
		set := fieldpath.NewSet()
		if err := set.FromJSON(e.FieldsV1.GetRawReader()); err != nil {
			t.Fatal(err)
		}
		return set
	}
	rapid.Check(t, func(t *rapid.T) {
		var entries []metav1.ManagedFieldsEntry
		for _, m := range []string{"painter", "tailor", "bystander", string(manager)} {
			for _, operation := range []string{"Update", "Apply"} {
				for _, subresource := range []string{"", "status", "scale"} {
					set := fieldpath.NewSet(rapid.SliceOfDistinct(rapid.SampledFrom(paths), fieldpath.Path.String).Draw(t, "paths")...)
					if set.Empty() {
						continue
					}
					b, err := set.ToJSON()
					if err != nil {
						t.Fatal(err)
					}
					e := entry(m, operation, "v1", subresource, string(b))
					e.Time = &metav1.Time{Time: time.Unix(rapid.Int64Range(1, 9).Draw(t, "time"), 0)}
					entries = append(entries, e)
				}
			}
		}
		if entries == nil {
			return
		}
		entries = rapid.Permutation(entries).Draw(t, "order")
		live := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", ManagedFields: entries}}
		before := live.DeepCopy()
		c := new(patches)
		answer, migrated, err := ssa.Migrate(context.Background(), manager, c.Patch, live, "painter", "tailor", string(manager))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, live); diff != "" {
			t.Errorf("live changed: -before +after:\n%s", diff)
		}
		finalizers := fieldpath.NewSet(paths[2])
		ours := func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == string(manager) && e.Operation == "Apply" && e.Subresource == ""
		}
		theirs := func(e metav1.ManagedFieldsEntry) bool {
			return (e.Manager == "painter" || e.Manager == "tailor" || e.Manager == string(manager) && e.Operation == "Update") && e.Subresource == ""
		}
		// What is wanted, from the entries by themselves.
		want, wantOthers, move := fieldpath.NewSet(), map[string]string{}, false
		latest := time.Time{}
		sign := func(e metav1.ManagedFieldsEntry) string {
			return fmt.Sprint(e.Manager, e.Operation, e.Subresource, e.APIVersion)
		}
		for _, e := range entries {
			set := read(t, e)
			switch {
			case ours(e):
				want = want.Union(set)
			case theirs(e):
				moves := set.RecursiveDifference(finalizers)
				want, move = want.Union(moves), move || !moves.Empty()
				if rest := set.Difference(moves); !rest.Empty() {
					wantOthers[sign(e)] = rest.String()
				}
			default:
				wantOthers[sign(e)] = set.String()
			}
			if ours(e) || theirs(e) && !read(t, e).RecursiveDifference(finalizers).Empty() {
				if e.Time.After(latest) {
					latest = e.Time.Time
				}
			}
		}
		if migrated != move || c.calls > 1 || migrated != (c.calls == 1) {
			t.Fatalf("migrated = %v with %d requests, want %v", migrated, c.calls, move)
		}
		if !move {
			if answer != live {
				t.Error("nothing to do, and another object")
			}
			return
		}
		for i, want := range []string{"test /metadata/uid", "test /metadata/resourceVersion", "replace /metadata/managedFields"} {
			if o := c.patch[i]; o.Op+" "+o.Path != want {
				t.Errorf("operation %d is %s %s, want %s", i, o.Op, o.Path, want)
			}
		}
		if string(c.patch[0].Value) != `"u"` || string(c.patch[1].Value) != `"1"` {
			t.Errorf("guarded by %s and %s", c.patch[0].Value, c.patch[1].Value)
		}
		i := slices.IndexFunc(answer.ManagedFields, ours)
		if i < 0 || !read(t, answer.ManagedFields[i]).Equals(want) || !answer.ManagedFields[i].Time.Time.Equal(latest) {
			t.Errorf("managedFields are %v, want ours to be %v at %v", answer.ManagedFields, want, latest)
		}
		got := map[string]string{}
		for _, e := range slices.Delete(slices.Clone(answer.ManagedFields), i, i+1) {
			got[sign(e)] = read(t, e).String()
		}
		if diff := cmp.Diff(wantOthers, got); diff != "" {
			t.Errorf("the others: -want +got:\n%s", diff)
		}
		if again, migrated, err := ssa.Migrate(context.Background(), manager, c.Patch, answer, "painter", "tailor"); err != nil || migrated || again != answer || c.calls != 1 {
			t.Errorf("again: migrated = %v, error %v", migrated, err)
		}
	})
}
