package ssa_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// What the API server says to each field manager that is refused here.
//
// Proves CK2.
func TestServerFieldManager(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	for _, tt := range []struct {
		name    string
		manager string
		valid   bool
	}{
		{name: "longest", manager: string(make128()), valid: true},
		{name: "too long", manager: string(make128()) + "a"},
		{name: "empty", manager: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			configuration := applycorev1.ConfigMap("one", s.namespace)
			_, err := c.Apply(t.Context(), configuration, metav1.ApplyOptions{FieldManager: tt.manager, Force: true})
			_, ours := ssa.Apply(t.Context(), ssa.FieldManager(tt.manager), c.Apply, configuration)
			if (err == nil) != tt.valid || (ours == nil) != tt.valid {
				t.Errorf("server: %v; ssa: %v; want valid = %v", err, ours, tt.valid)
			}
		})
	}
}

func make128() []byte {
	b := make([]byte, 128)
	for i := range b {
		b[i] = 'a'
	}
	return b
}

// misspelt is a configuration of a typed client with a field that no ConfigMap has.
type misspelt struct {
	applymetav1.TypeMetaApplyConfiguration    `json:",inline"`
	*applymetav1.ObjectMetaApplyConfiguration `json:"metadata,omitempty"`

	Date map[string]string `json:"date,omitempty"`
}

// A misspelt field is an error for every client, and nothing is written.
func TestServerStrict(t *testing.T) {
	s := newServer(t)
	var kinds []schema.GroupVersionKind
	for _, kind := range []string{"Strict", "Lax"} {
		testserver.InstallCRD(t, definition(kind))
		kinds = append(kinds, schema.GroupVersionKind{Group: "ssa.example.com", Version: "v1", Kind: kind})
	}
	c := newDynamic(t, kinds...)
	object := func(apiVersion, kind, more string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		if err := json.Unmarshal([]byte(more), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.Object["apiVersion"], u.Object["kind"] = apiVersion, kind
		u.SetName("one")
		u.SetNamespace(s.namespace)
		return u
	}
	typed := gentype.NewClientWithApply[*corev1.ConfigMap, *misspelt]("configmaps", s.CoreV1().RESTClient(), scheme.ParameterCodec, s.namespace, func() *corev1.ConfigMap { return &corev1.ConfigMap{} })
	base := applycorev1.ConfigMap("one", s.namespace)
	tests := []struct {
		name  string
		apply func() error
		field string
	}{
		{name: "typed", field: "date", apply: func() error {
			_, err := ssa.Apply(t.Context(), manager, typed.Apply, &misspelt{
				TypeMetaApplyConfiguration: base.TypeMetaApplyConfiguration, ObjectMetaApplyConfiguration: base.ObjectMetaApplyConfiguration, Date: map[string]string{"a": "b"},
			})
			return err
		}},
		{name: "unstructured", field: "date", apply: func() error {
			_, err := ssa.Apply(t.Context(), manager, c.Apply, object("v1", "ConfigMap", `{"date":{"a":"b"}}`))
			return err
		}},
		{name: "deep down", field: "imag", apply: func() error {
			_, err := ssa.Apply(t.Context(), manager, c.Apply, object("apps/v1", "Deployment", `{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","imag":"b"}]}}}}`))
			return err
		}},
		{name: "a resource of one's own", field: "tekst", apply: func() error {
			_, err := ssa.Apply(t.Context(), manager, c.Apply, object("ssa.example.com/v1", "Strict", `{"spec":{"tekst":"b"}}`))
			return err
		}},
		{name: "its metadata", field: "label", apply: func() error {
			_, err := ssa.Apply(t.Context(), manager, c.Apply, object("ssa.example.com/v1", "Strict", `{"metadata":{"label":{"a":"b"}}}`))
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.apply(); err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Errorf("error = %v, want one that names %s", err, tt.field)
			}
		})
	}
	// Only a schema makes a field one that the kind lacks.
	if _, err := ssa.Apply(t.Context(), manager, c.Apply, object("ssa.example.com/v1", "Lax", `{"spec":{"tekst":"b"}}`)); err != nil {
		t.Errorf("a kind without a schema: %v", err)
	}
	if list, err := s.CoreV1().ConfigMaps(s.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || slices.ContainsFunc(list.Items, func(o corev1.ConfigMap) bool { return o.Name == "one" }) {
		t.Errorf("something was written, error %v", err)
	}
}
