package controllertest

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestWrote holds what a user creates again: what the user has written, and nothing
// that others have.
func TestWrote(t *testing.T) {
	const (
		created = `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"a","labels":{"mine":"1"},"creationTimestamp":null},"spec":{"size":1,"list":[1,2]},"status":{}}`
		stored  = `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"a","namespace":"ns","uid":"u1","resourceVersion":"7","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z",
			"managedFields":[{"manager":"x"}],"labels":{"mine":"1","theirs":"1"},"annotations":{"theirs":"1"},"finalizers":["theirs"]},
			"spec":{"size":1,"list":[1,2],"default":true,"inner":{"default":true}},"status":{"ready":true}}`
		meta = `"metadata":{"name":"a","labels":{"mine":"1"}}`
	)
	// edited is what is stored after a change, and what an update of it sends.
	edited := func(edit func(metadata, spec map[string]any)) string {
		o := object(t, stored)
		edit(o.Object["metadata"].(map[string]any), o.Object["spec"].(map[string]any))
		b, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	bigger := edited(func(_, spec map[string]any) { spec["size"] = int64(2) })
	tests := []struct {
		name   string
		op     fault.Op
		stored string // "" means as before
		want   string
	}{
		{name: "an update", op: fault.Op{Verb: "update", Body: []byte(bigger)}, stored: bigger, want: `{"apiVersion":"v1","kind":"Widget",` + meta + `,"spec":{"size":2,"list":[1,2]},"status":{}}`},
		{
			name: "an update of a list, a new map and a map that is removed",
			op: fault.Op{Verb: "update", Body: []byte(edited(func(metadata, spec map[string]any) {
				spec["list"], spec["map"] = []any{int64(3)}, map[string]any{"k": map[string]any{"l": "v"}}
				delete(metadata, "labels")
			}))},
			stored: edited(func(metadata, spec map[string]any) {
				spec["list"], spec["map"] = []any{int64(3)}, map[string]any{"k": map[string]any{"l": "v", "default": "x"}}
				delete(metadata, "labels")
			}),
			want: `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1,"list":[3],"map":{"k":{"l":"v"}}},"status":{}}`,
		},
		{name: "an update of nothing", op: fault.Op{Verb: "update", Body: []byte(stored)}, want: `{"apiVersion":"v1","kind":"Widget",` + meta + `,"spec":{"size":1,"list":[1,2]},"status":{}}`},
		{
			name: "a merge patch", stored: edited(func(metadata, spec map[string]any) {
				metadata["annotations"].(map[string]any)["mine"] = "2"
				delete(spec, "size")
			}),
			op:   fault.Op{Verb: "patch", ContentType: string(types.MergePatchType), Body: []byte(`{"metadata":{"annotations":{"mine":"2"}},"spec":{"size":null}}`)},
			want: `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"a","labels":{"mine":"1"},"annotations":{"mine":"2"}},"spec":{"list":[1,2]},"status":{}}`,
		},
		{
			name: "a JSON patch", stored: edited(func(metadata, spec map[string]any) {
				metadata["annotations"].(map[string]any)["a/b"] = "2"
				spec["list"] = []any{int64(1), int64(2), int64(3)}
			}),
			op: fault.Op{Verb: "patch", ContentType: string(types.JSONPatchType), Body: []byte(
				`[{"op":"test","path":"/spec/default","value":true},{"op":"add","path":"/metadata/annotations/a~1b","value":"2"},{"op":"add","path":"/spec/list/-","value":3},{"op":"add","path":"/metadata/finalizers/-","value":"mine"}]`)},
			want: `{"apiVersion":"v1","kind":"Widget","metadata":{"name":"a","labels":{"mine":"1"},"annotations":{"a/b":"2"}},"spec":{"size":1,"list":[1,2,3]},"status":{}}`,
		},
		{
			name: "an apply", stored: bigger,
			op:   fault.Op{Verb: "apply", ContentType: string(types.ApplyYAMLPatchType), Body: []byte("apiVersion: v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 2}\nstatus: {ready: true}\n")},
			want: `{"apiVersion":"v1","kind":"Widget",` + meta + `,"spec":{"size":2,"list":[1,2]},"status":{}}`,
		},
		{name: "what is no object", op: fault.Op{Verb: "patch", ContentType: string(types.JSONPatchType), Body: []byte(`{`)}, want: `{"apiVersion":"v1","kind":"Widget",` + meta + `,"spec":{"size":1,"list":[1,2]},"status":{}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ns")
			key := objectKey{"widgets.example.com", "ns", "a"}
			first := object(t, stored)
			r.learnLocked(key, first)
			r.wrote = map[objectKey]*unstructured.Unstructured{}
			r.wrote[key] = r.wroteLocked(key, &fault.Op{Verb: "create", Body: []byte(created)}, first)
			before := r.wrote[key].DeepCopy()
			if test.stored == "" {
				test.stored = stored
			}
			got := r.wroteLocked(key, &test.op, object(t, test.stored))
			if diff := cmp.Diff(text(object(t, test.want).Object), text(got.Object)); diff != "" {
				t.Errorf("the user wrote (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, r.wrote[key]); diff != "" {
				t.Errorf("what was written before was modified (-before +after):\n%s", diff)
			}
		})
	}
}

// TestAsUser holds which requests of the user succeed, and what the user owns after them.
func TestAsUser(t *testing.T) {
	const a = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ct-1"}}`
	tests := []struct {
		name     string
		verb     string
		status   int
		before   bool // the user owns the object before the request
		acted    bool
		owned    bool
		unwanted bool
	}{
		{name: "a creation", verb: "create", status: 201, acted: true, owned: true},
		{name: "a creation that is refused", verb: "create", status: 403},
		{name: "a creation of an object that exists", verb: "create", status: 409, owned: true},
		{name: "an update", verb: "update", status: 200, before: true, acted: true, owned: true},
		{name: "an update of an object that is absent", verb: "update", status: 404, before: true, owned: true},
		{name: "a deletion", verb: "delete", status: 200, before: true, acted: true, unwanted: true},
		{name: "a deletion of an object that is absent", verb: "delete", status: 404, before: true, acted: true, unwanted: true},
		{name: "a deletion that fails", verb: "delete", status: 500, before: true, unwanted: true},
		{name: "a read", verb: "get", status: 200, before: true, owned: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ct-1")
			r.x.observer = newObserver(t.Context(), "ct")
			r.step = 2
			key := objectKey{"configmaps", "ct-1", "a"}
			r.owned, r.wrote, r.unwanted, r.edited = map[objectKey]*unstructured.Unstructured{}, map[objectKey]*unstructured.Unstructured{}, map[objectKey]bool{}, map[objectKey]types.UID{}
			if test.before {
				r.owned[key], r.wrote[key] = object(t, a), object(t, a)
			}
			op := &fault.Op{Verb: test.verb, Resource: "configmaps", Namespace: "ct-1", Name: "a", Body: []byte(a)}
			body := []byte(a)
			if test.status > 299 {
				body = []byte(`{"kind":"Status"}`)
			}
			if op.IsWrite() {
				r.asksLocked(op)
			}
			changed := r.changed
			r.asUser(op, test.status, body)
			select {
			case <-changed:
				if !test.acted {
					t.Error("the waiters were woken")
				}
			default:
				if test.acted {
					t.Error("the waiters were not woken")
				}
			}
			if acted, owned := r.acted == 2, r.owned[key] != nil; acted != test.acted || owned != test.owned || r.unwanted[key] != test.unwanted {
				t.Errorf("acted %t, owned %t, unwanted %t; want %t, %t, %t", acted, owned, r.unwanted[key], test.acted, test.owned, test.unwanted)
			}
		})
	}
}

// FuzzHostile holds that no request is too strange to be named in a plan, and to be
// done again by its user.
func FuzzHostile(f *testing.F) {
	f.Add("update", "", "a", []byte(`{"metadata":{"resourceVersion":"7","labels":null},"spec":[{}]}`))
	f.Add("patch", string(types.JSONPatchType), "a", []byte(`[{"op":"add","path":"/metadata/labels/x~1y","value":1},{"op":"remove","path":""}]`))
	f.Add("apply", string(types.ApplyYAMLPatchType), "a#1 + 409@b", []byte("metadata: {labels: 1}\n? {}\n: []\n"))
	f.Add("create", "", "", []byte(`{"metadata":[]}`))
	f.Fuzz(func(t *testing.T, verb, contentType, name string, body []byte) {
		r := quietRun(Scenario{}, "ns")
		key := objectKey{"configmaps", "ns", "a"}
		first := object(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns","uid":"u1","resourceVersion":"7","labels":{"l":"1"}},"data":{"k":"v"}}`)
		r.learnLocked(key, first)
		r.wrote = map[objectKey]*unstructured.Unstructured{key: first.DeepCopy()}
		op := &fault.Op{Verb: verb, Resource: "configmaps", Namespace: "ns", Name: name, ContentType: contentType, Body: body}
		id := r.countLocked(r.signatureLocked(op))
		if p, err := parsePlan(string(Conflict) + "@" + id); err != nil || len(p) != 1 {
			t.Errorf("%q is read as %v, %v", id, p, err)
		}
		wrote := r.wroteLocked(key, op, first)
		if _, err := wrote.MarshalJSON(); err != nil || wrote.GetName() != "a" && verb != "create" { // the server has accepted what is created

			t.Errorf("the user wrote %v: %v", wrote, err)
		}
	})
}
