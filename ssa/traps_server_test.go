package ssa_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// What looks as if nothing would change, and does: each is rare among what
// TestServerAgrees generates.
//
// Proves A4.
func TestServerTraps(t *testing.T) {
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	testserver.InstallCRD(t, definition("Trap"))
	namespace := testserver.Namespace(t)
	familyOf := func(name string) family {
		i := slices.IndexFunc(families, func(f family) bool { return f.name == name })
		return families[i]
	}
	trap := familyOf("Schemed")
	trap.gvk = schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: "Trap"}
	deployment := func(containers, more string) string {
		return `{"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":` + containers + `}}` + more + `}}`
	}
	const rollingUpdate = `,"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":"25%"}}`
	tests := []struct {
		name   string
		of     family
		typed  bool
		learn  string   // applied to another object, for what the memory learns; "" means nothing
		before []string // applied one after the other
		other  string   // applied by another manager then; "" means nothing
		then   []string // applied one after the other then
		config string   // applied at last: it changes something
	}{
		{
			name: "a list in another order", of: trap,
			before: []string{`{"spec":{"set":["a","b"]}}`}, config: `{"spec":{"set":["b","a"]}}`,
		},
		{
			name: "a map in another order", of: trap,
			before: []string{`{"spec":{"map":[{"name":"a"},{"name":"b"}]}}`}, config: `{"spec":{"map":[{"name":"b"},{"name":"a"}]}}`,
		},
		{
			name: "a part of a key that has the default, and had none", of: trap,
			before: []string{`{"spec":{"map":[{"name":"a","zone":"y"}]}}`}, config: `{"spec":{"map":[{"name":"a"}]}}`,
		},
		{
			name: "a part of a key that is not the default's any more", of: familyOf("Deployment"), typed: true,
			before: []string{deployment(`[{"name":"a","image":"b","ports":[{"containerPort":80,"protocol":"UDP"}]}]`, "")},
			config: deployment(`[{"name":"a","image":"b","ports":[{"containerPort":80}]}]`, ""),
		},
		{
			name: "a key with the default that is owned now", of: familyOf("Deployment"), typed: true,
			before: []string{deployment(`[{"name":"a","image":"b","ports":[{"containerPort":80}]}]`, "")},
			config: deployment(`[{"name":"a","image":"b","ports":[{"containerPort":80,"protocol":"TCP"}]}]`, ""),
		},
		{
			name: "the defaults, of what was empty", of: familyOf("Deployment"), typed: true,
			before: []string{deployment(containers, `,"strategy":{}`)}, config: deployment(containers, rollingUpdate),
		},
		{
			name: "empty, where there were defaults", of: familyOf("Deployment"), typed: true,
			before: []string{deployment(containers, rollingUpdate)}, config: deployment(containers, `,"strategy":{}`),
		},
		{
			name: "another has filled what was empty", of: trap,
			before: []string{`{"spec":{"granularMap":{}}}`}, other: `{"spec":{"granularMap":{"a":"1"}}}`, config: `{"spec":{"granularMap":{"a":"1"}}}`,
		},
		{
			name: "zero, and owned by another too", of: familyOf("Deployment"), typed: true,
			before: []string{deployment(containers, `,"paused":false`)}, other: deployment(containers, `,"paused":false`), config: deployment(containers, `,"paused":false`),
		},
		{
			name: "stringData, and owned by another too", of: familyOf("Secret"), typed: true,
			before: []string{`{"stringData":{"a":"1"}}`}, other: `{"stringData":{}}`, config: `{"stringData":{"a":"1"}}`,
		},
		{
			name: "empty stringData, where there was none", of: familyOf("Secret"),
			before: []string{`{"type":"Opaque"}`}, config: `{"type":"Opaque","stringData":{}}`,
		},
		{
			name: "empty labels, and owned by another too", of: trap,
			before: []string{`{"metadata":{"labels":{"a":"1"}}}`}, other: `{"metadata":{"labels":{}}}`,
			then: []string{`{"metadata":{"labels":{}}}`}, config: `{"metadata":{"labels":{}}}`,
		},
		{
			name: "an empty list, whose items are just gone", of: trap,
			before: []string{`{"spec":{"map":[{"name":"a"}]}}`, `{"spec":{"map":[]}}`}, config: `{"spec":{"map":[]}}`,
		},
		{
			name: "empty, and null just before", of: familyOf("Deployment"),
			before: []string{deployment(containers, `,"minReadySeconds":5`)}, config: deployment(containers, ""),
		},
		{
			name: "defaulted inside, and taken by another", of: familyOf("RoleBinding"), typed: true,
			before: []string{`{"roleRef":{"kind":"ClusterRole","name":"view"},"subjects":[{"kind":"User","name":"u"}]}`},
			other:  `{"roleRef":{"kind":"ClusterRole","name":"view","apiGroup":"rbac.authorization.k8s.io"},"subjects":[{"kind":"User","name":"u","apiGroup":"rbac.authorization.k8s.io"}]}`,
			config: `{"roleRef":{"kind":"ClusterRole","name":"view"},"subjects":[{"kind":"User","name":"u"}]}`,
		},
		{
			name: "an object that another has filled, where others have a list", of: trap,
			learn:  `{"spec":{"free":{"a":[1]}}}`,
			before: []string{`{"spec":{"free":{"a":{}}}}`}, other: `{"spec":{"free":{"a":{"b":1}}}}`, config: `{"spec":{"free":{"a":{"b":1}}}}`,
		},
		{
			name: "nothing, where there are defaults and nobody owns anything", of: familyOf("Secret"), typed: true,
			before: []string{`{}`}, config: `{}`,
		},
		{
			name: "an owner reference that another has too, in other words", of: trap,
			before: []string{`{"metadata":{"ownerReferences":[{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"o","uid":"x"}]}}`},
			other:  `{"metadata":{"ownerReferences":[{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"o","uid":"x","controller":false}]}}`,
			config: `{"metadata":{"ownerReferences":[{"apiVersion":"unknown.example.com/v1","kind":"Owner","name":"o","uid":"x"}]}}`,
		},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := draft{f: &tt.of, name: "trap-" + string(rune('a'+i)), ns: namespace}
			render := func(config string) []byte {
				content := map[string]any{}
				must(json.Unmarshal([]byte(config), &content))
				head := d.head()
				content["apiVersion"], content["kind"] = head["apiVersion"], head["kind"]
				metadata, _ := content["metadata"].(map[string]any)
				if metadata == nil {
					metadata = map[string]any{}
				}
				metadata["name"], metadata["namespace"] = d.name, namespace
				content["metadata"] = metadata
				return must2(json.Marshal(content))
			}
			s := untyped()
			if tt.typed {
				s = tt.of.typed()
			}
			gvr, _ := meta.UnsafeGuessKindToResource(tt.of.gvk)
			raw := client.Resource(gvr).Namespace(namespace)
			if tt.learn != "" {
				d.name += "-learn"
				if _, _, err := s.changed(t.Context(), raw, render(tt.learn), nil); err != nil {
					t.Fatal(err)
				}
				d.name = strings.TrimSuffix(d.name, "-learn")
			}
			var live *unstructured.Unstructured
			apply := func(configs []string) {
				for _, config := range configs {
					var known []byte
					if live != nil {
						known = must2(live.MarshalJSON())
					}
					if live, _, err = s.changed(t.Context(), raw, render(config), known); err != nil || live == nil {
						t.Fatalf("applied %v, error %v", live, err)
					}
				}
			}
			apply(tt.before)
			if tt.other != "" {
				if live, err = raw.Patch(t.Context(), d.name, types.ApplyPatchType, render(tt.other), metav1.PatchOptions{FieldManager: "other", Force: ptr(true)}); err != nil {
					t.Fatal(err)
				}
			}
			apply(tt.then)
			config := render(tt.config)
			skips, _, err := s.skips(t.Context(), config, must2(live.MarshalJSON()))
			if err != nil || skips {
				t.Errorf("without a memory: skips = %v, error %v", skips, err)
			}
			after, _, err := s.changed(t.Context(), raw, config, must2(live.MarshalJSON()))
			if err != nil {
				t.Fatal(err)
			}
			if after == nil {
				t.Error("skipped with a memory")
				if after, err = raw.Patch(t.Context(), d.name, types.ApplyPatchType, s.body(config), metav1.PatchOptions{FieldManager: string(manager), Force: ptr(true)}); err != nil {
					t.Fatal(err)
				}
			}
			if content(after) == content(live) {
				t.Errorf("this is no trap: nothing changed in %s", must2(after.MarshalJSON()))
			}
		})
	}
}
