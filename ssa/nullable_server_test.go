package ssa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// nullable is a kind whose fields can be null.
type nullable struct {
	dynamicClient
	kind, namespace string
	resource        dynamic.ResourceInterface
}

func newNullable(t *testing.T, kind string) nullable {
	t.Helper()
	crd := definition(kind)
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	var schemas map[string]any
	must(json.Unmarshal([]byte(`{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","nullable":true,"properties":{
		"atomicMap":{"type":"object","nullable":true,"x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}},
		"granularMap":{"type":"object","nullable":true,"additionalProperties":{"type":"string"}},
		"object":{"type":"object","nullable":true,"properties":{"a":{"type":"string","default":"d"},"in":{"type":"object","nullable":true,"x-kubernetes-map-type":"atomic","additionalProperties":{"type":"string"}}}},
		"atomicList":{"type":"array","nullable":true,"items":{"type":"string"}},
		"text":{"type":"string","nullable":true},
		"items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string","default":"z"},"object":{"type":"object","nullable":true,"additionalProperties":{"type":"string"}}}}}
	}}}}}`), &schemas))
	version["schema"] = schemas
	testserver.InstallCRD(t, crd)
	client := dynamic.NewForConfigOrDie(testserver.Config(t))
	gvk := schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: kind}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(gvk, meta.RESTScopeNamespace)
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	n := nullable{kind: kind, dynamicClient: newDynamicFor(client, mapper), namespace: testserver.Namespace(t)}
	n.resource = client.Resource(resource).Namespace(n.namespace)
	return n
}

func (n nullable) config(name, spec string) *unstructured.Unstructured {
	return object(fmt.Sprintf(`{"apiVersion":"ssa.example.com/v1","kind":%q,"metadata":{"name":%q,"namespace":%q},"spec":%s}`, n.kind, name, n.namespace, spec))
}

// With the extractor of client-go for unstructured objects, ApplyChanged applies the change of a
// nullable map to an empty one. The extractor reads OpenAPI v2, in which the field has no type.
//
// Proves A4.
func TestServerNullableEmptied(t *testing.T) {
	n := newNullable(t, "Emptied")
	client := discovery.NewDiscoveryClientForConfigOrDie(testserver.Config(t))
	for i, tt := range []struct{ full, empty, want string }{
		{`{"atomicMap":{"app":"old"}}`, `{"atomicMap":{}}`, `{"atomicMap":{}}`},
		{`{"granularMap":{"app":"old"}}`, `{"granularMap":{}}`, `{"granularMap":{}}`}, // null, except in Kubernetes 1.36
		{`{"object":{"in":{"app":"old"}}}`, `{"object":{"in":{}}}`, `{"object":{"a":"d","in":{}}}`},
		{`{"atomicList":["old"]}`, `{"atomicList":[]}`, `{"atomicList":[]}`},
	} {
		t.Run(tt.empty, func(t *testing.T) {
			name := fmt.Sprint("emptied-", i)
			live, err := ssa.Apply(t.Context(), manager, n.Apply, n.config(name, tt.full))
			if err != nil {
				t.Fatal(err)
			}
			// No event marks the moment at which OpenAPI has the kind.
			var extract func(*unstructured.Unstructured, string) (*unstructured.Unstructured, error)
			for {
				extractor, err := applymetav1.NewUnstructuredExtractor(client)
				if err == nil {
					_, err = extractor.Extract(live, string(manager))
					extract = extractor.Extract
				}
				if err == nil {
					break
				}
				select {
				case <-t.Context().Done():
					t.Fatal(err)
				case <-time.After(50 * time.Millisecond):
				}
			}
			_, applied, err := ssa.ApplyChanged(t.Context(), manager, n.Apply, n.config(name, tt.empty), live, extract)
			if err != nil || !applied {
				t.Errorf("applied = %v, error %v", applied, err)
			}
			got, err := n.resource.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if spec := string(must2(json.Marshal(got.Object["spec"]))); strings.Replace(spec, `"granularMap":null`, `"granularMap":{}`, 1) != tt.want {
				t.Errorf("spec is %s, want %s", spec, tt.want)
			}
		})
	}
}

// TryApply of null takes no map and no list that another manager owns as {} or [], also if the
// manager owned its contents.
//
// Proves A1.
func TestServerTryApplyNull(t *testing.T) {
	n := newNullable(t, "Nulled")
	const other = "example.org/fashion"
	for i, tt := range []struct {
		theirs, first, ours string
		want                string // the field of the conflict; "" means none
	}{
		{`{}`, ``, `null`, ".spec"},
		{`{"object":{}}`, ``, `{"object":null}`, ""}, // the API server keeps the object
		{`{"object":{}}`, `{"object":{"a":"x"}}`, `{"object":null}`, ".spec.object"},
		{`{"granularMap":{}}`, `{"granularMap":{}}`, `{"granularMap":null}`, ".spec.granularMap"},
		{`{"granularMap":{}}`, `{"granularMap":{"a":"x"}}`, `{"granularMap":null}`, ".spec.granularMap"},
		{`{"atomicMap":{"a":"x"}}`, ``, `{"atomicMap":null}`, ".spec.atomicMap"},
		{`{"atomicMap":{}}`, ``, `{"atomicMap":null}`, ".spec.atomicMap"},
		{`{"atomicList":[]}`, ``, `{"atomicList":null}`, ".spec.atomicList"},
		{`{"text":"x"}`, ``, `{"text":null}`, ".spec.text"},
		{`{"items":[{"k":"a","object":{}}]}`, `{"items":[{"k":"a","object":{"x":"y"}}]}`, `{"items":[{"k":"a","object":null}]}`, `.spec.items[k="a"].object`},
		{`{"object":null}`, ``, `{"object":null}`, ""},
		{`{"granularMap":null}`, ``, `{"granularMap":null}`, ""},
		{`{"text":"x"}`, ``, `{"object":null}`, ""},
	} {
		t.Run(tt.theirs+" "+tt.first+" "+tt.ours, func(t *testing.T) {
			name := fmt.Sprint("null-", i)
			live, err := ssa.Apply(t.Context(), other, n.Apply, n.config(name, tt.theirs))
			if err != nil {
				t.Fatal(err)
			}
			if tt.first != "" {
				if live, err = ssa.TryApply(t.Context(), manager, n.Apply, n.config(name, tt.first), live); err != nil {
					t.Fatal(err)
				}
			}
			before := entryOf(live, other)
			_, err = ssa.TryApply(t.Context(), manager, n.Apply, n.config(name, tt.ours), live)
			conflict, _ := errors.AsType[*ssa.ConflictError](err)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v", err)
			case tt.want != "" && (conflict == nil || conflict.Conflicts[0] != ssa.Conflict{Field: tt.want, Manager: other}):
				t.Errorf("error %v, want a conflict about %s", err, tt.want)
			}
			got, err := n.resource.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if after := entryOf(got, other); after != before {
				t.Errorf("%s owned %s and owns %s", other, before, after)
			}
			if before, after := must2(json.Marshal(live.Object["spec"])), must2(json.Marshal(got.Object["spec"])); tt.want != "" && string(before) != string(after) {
				t.Errorf("spec was %s and is %s", before, after)
			}
		})
	}
}

// The API server adds an item without its keys, all of which have defaults, at one apply and
// removes it at the next one. A Memory does not end that.
func TestServerDefaultedKeys(t *testing.T) {
	testserver.Since(t, "1.37", "Kubernetes 1.36 does not remove the item again")
	n := newNullable(t, "Defaulted")
	config := func() *unstructured.Unstructured { return n.config("defaulted", `{"items":[{},{"k":"b"}]}`) }
	live, err := ssa.Apply(t.Context(), manager, n.Apply, config())
	if err != nil {
		t.Fatal(err)
	}
	var memory ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]
	for range 4 {
		next, applied, err := memory.ApplyChanged(t.Context(), manager, n.Apply, config(), live, nil)
		if err != nil || !applied {
			t.Fatalf("applied = %v, error %v", applied, err)
		}
		before, after := string(must2(json.Marshal(live.Object["spec"]))), string(must2(json.Marshal(next.Object["spec"])))
		if before == after {
			t.Errorf("spec stays %s: the caveat of Memory is no longer true", after)
		}
		live = next
	}
}
