package crdtest_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/crd/internal/site"
)

// various has fields whose JSON is not that of their Go kind.
type various struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec variousSpec `json:"spec"`
}

type variousSpec struct {
	variousInline `json:",inline"`

	Address  netip.Addr                 `json:"address"`
	Amount   resource.Quantity          `json:"amount"`
	Any      any                        `json:"any,omitempty"`
	Array    [2]uint8                   `json:"array"`
	Bytes    []byte                     `json:"bytes"`
	Children map[string][]variousSpec   `json:"children,omitempty"`
	Embedded *runtime.RawExtension      `json:"embedded,omitempty"`
	Float    float64                    `json:"float"`
	Hidden   func()                     `json:"-"`
	Port     intstr.IntOrString         `json:"port"`
	Raw      map[string]json.RawMessage `json:"raw,omitempty"`
	Since    *metav1.Time               `json:"since,omitempty"`
	Text     int64                      `json:"text,string"`
	Truth    *bool                      `json:"truth,omitempty"`
	Untagged string
}

type variousInline struct {
	Inline string      `json:"inline,omitempty"`
	Deep   variousDeep `json:"deep"`
}

type variousDeep struct {
	Mine   string `json:"mine,omitempty"`
	Theirs string `json:"theirs,omitempty"`
}

func (v *various) DeepCopyObject() runtime.Object { out := *v; return &out }

// An apply beside fields of each sort changes its own alone.
func TestTypes(t *testing.T) {
	fake, err := crdtest.NewFake[*various](site.Kind(), "websites")
	if err != nil {
		t.Fatal(err)
	}
	spec := variousSpec{
		variousInline: variousInline{"i", variousDeep{Theirs: "t"}}, Address: netip.MustParseAddr("::1"), Amount: resource.MustParse("100m"), Any: []any{"a", map[string]any{"b": "c"}},
		Array: [2]uint8{1, 2}, Bytes: []byte("bytes"), Embedded: &runtime.RawExtension{Raw: []byte(`{"a":[1,{"b":2}]}`)}, Float: 1.5,
		Port: intstr.FromString("http"), Raw: map[string]json.RawMessage{"r": json.RawMessage(`[1]`)}, Since: &metav1.Time{Time: time.Unix(1, 0)}, Text: 1<<53 + 1, Truth: new(bool), Untagged: "u",
	}
	spec.Children = map[string][]variousSpec{"c": {spec}}
	obj := &various{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: spec}
	if _, err := fake.Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "user"}); err != nil {
		t.Fatal(err)
	}
	want := spec
	for _, changes := range []map[string]any{{"inline": "j", "port": int64(8080), "deep": map[string]any{"mine": "m"}}, {"port": "https"}, {"port": "https", "lacking": "l"}} {
		config := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}, "spec": changes}}
		config.SetGroupVersionKind(site.Kind())
		got, err := fake.Apply(t.Context(), config, metav1.ApplyOptions{FieldManager: "controller", Force: true})
		if err != nil {
			t.Fatal(err)
		}
		want.Inline, _ = changes["inline"].(string)
		if want.Deep.Mine = ""; changes["deep"] != nil {
			want.Deep.Mine = "m"
		}
		if want.Port = intstr.FromString("https"); changes["port"] != "https" {
			want.Port = intstr.FromInt32(8080)
		}
		if diff := cmp.Diff(want, got.Spec, cmp.AllowUnexported(variousSpec{}), cmpopts.IgnoreFields(variousSpec{}, "Hidden"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", changes, diff)
		}
	}
}
