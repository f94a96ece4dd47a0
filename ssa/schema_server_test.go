package ssa_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerSchemaChange: live has the owners of the schema at its last write. After a
// change of the schema, ApplyChanged misses exactly the effects that the caveat names.
//
// Proves A4.
func TestServerSchemaChange(t *testing.T) {
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	kind := "Shift" + strings.ReplaceAll(namespace, "-", "") + "ed" // the definition of an earlier run can still exist
	gvk := schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: kind}
	versions := func(replace ...string) []any {
		var s map[string]any
		must(json.Unmarshal([]byte(strings.NewReplacer(replace...).Replace(`{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
			"map":{"type":"object","x-kubernetes-map-type":"granular","additionalProperties":{"type":"string"}},
			"list":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
			"whole":{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}}
		}}}}}`)), &s))
		return []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": s}}
	}
	d := definition(gvk.Kind)
	must(unstructured.SetNestedSlice(d, versions(), "spec", "versions"))
	testserver.InstallCRD(t, d)
	c := newDynamic(t, gvk)
	shifts := client.Resource(gvk.GroupVersion().WithResource(strings.ToLower(kind) + "s")).Namespace(namespace)

	// old is an extract function of the earlier schema.
	old := func(live *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) {
		u := object(`{"apiVersion":"ssa.example.com/v1","kind":"` + kind + `","metadata":{"name":"` + live.GetName() + `","namespace":"` + live.GetNamespace() + `"}}`)
		whole, _, err := unstructured.NestedStringMap(live.Object, "spec", "whole")
		if err == nil {
			err = unstructured.SetNestedStringMap(u.Object, whole, "spec", "whole")
		}
		return u, err
	}
	tests := []struct {
		name         string
		ours, theirs string // specs; "" means none
		extract      func(*unstructured.Unstructured, string) (*unstructured.Unstructured, error)
		memory       bool
		skips        [2]bool // after the change, and after a write by another user
	}{
		{name: "a-map-becomes-atomic", ours: `{"map":{"a":"1"}}`, theirs: `{"map":{"b":"2"}}`, skips: [2]bool{true, false}},
		{name: "a-list-becomes-atomic", ours: `{"list":["a"]}`, theirs: `{"list":["b"]}`, skips: [2]bool{true, false}},
		{name: "an-empty-map-becomes-atomic", ours: `{"map":{}}`, theirs: `{"map":{"b":"2"}}`},
		{name: "the-same-with-a-memory", ours: `{"map":{}}`, theirs: `{"map":{"b":"2"}}`, memory: true, skips: [2]bool{true, false}},
		{name: "a-map-becomes-granular", ours: `{"whole":{"a":"1"}}`},
		{name: "the-same-with-an-old-extract", ours: `{"whole":{"a":"1"}}`, extract: old, skips: [2]bool{true, true}},
	}
	config := func(name, spec string) *unstructured.Unstructured {
		return object(`{"apiVersion":"ssa.example.com/v1","kind":"` + kind + `","metadata":{"name":"` + name + `","namespace":"` + namespace + `"},"spec":` + spec + `}`)
	}
	dryRun := func(ctx context.Context, config *unstructured.Unstructured) *unstructured.Unstructured {
		t.Helper()
		response, err := shifts.Patch(ctx, config.GetName(), types.ApplyPatchType, must2(config.MarshalJSON()), metav1.PatchOptions{
			FieldManager: string(manager), Force: ptr(true), DryRun: []string{metav1.DryRunAll},
		})
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	var memory ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]
	for _, tt := range tests {
		live, err := ssa.Apply(t.Context(), manager, c.Apply, config(tt.name, tt.ours))
		if err == nil && tt.theirs != "" {
			live, err = ssa.Apply(t.Context(), "theirs", c.Apply, config(tt.name, tt.theirs))
		}
		if err == nil && tt.memory {
			_, _, err = memory.ApplyChanged(t.Context(), manager, c.Apply, config(tt.name, tt.ours), live, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if content(dryRun(t.Context(), config(tt.name, tt.ours))) != content(live) {
			t.Errorf("%s: an apply is no no-op before the change", tt.name)
		}
	}

	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	stored, err := definitions.Get(t.Context(), strings.ToLower(kind)+"s.ssa.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	must(unstructured.SetNestedSlice(stored.Object, versions("granular", "atomic", `"atomic"`, `"granular"`, `"set"`, `"atomic"`), "spec", "versions"))
	if _, err := definitions.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for first := tests[0]; len(dryRun(ctx, config(first.name, first.ours)).Object["spec"].(map[string]any)["map"].(map[string]any)) > 1; {
		time.Sleep(50 * time.Millisecond) // no event shows when the API server uses the new schema
	}

	for i, when := range []string{"after the change", "after a write"} {
		for _, tt := range tests {
			t.Run(tt.name+" "+when, func(t *testing.T) {
				live, err := shifts.Get(t.Context(), tt.name, metav1.GetOptions{})
				if err == nil && i == 1 {
					live, err = shifts.Patch(t.Context(), tt.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				if content(dryRun(t.Context(), config(tt.name, tt.ours))) == content(live) {
					t.Fatal("an apply is a no-op")
				}
				of := &memory
				if !tt.memory {
					of = nil
				}
				_, applied, err := of.ApplyChanged(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, config(tt.name, tt.ours), live, tt.extract)
				if err != nil || applied == tt.skips[i] {
					t.Errorf("applied %t, error %v; live %s", applied, err, must2(live.MarshalJSON()))
				}
			})
		}
	}
}
