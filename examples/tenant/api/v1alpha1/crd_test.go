package v1alpha1_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
)

// schema is the part of a CRD's schema that the test reads. The original types are
// in apiextensions-apiserver, which the root module does not require.
type schema struct {
	Type                 string            `json:"type"`
	Format               string            `json:"format"`
	IntOrString          bool              `json:"x-kubernetes-int-or-string"`
	ListType             string            `json:"x-kubernetes-list-type"`
	ListMapKeys          []string          `json:"x-kubernetes-list-map-keys"`
	Enum                 []any             `json:"enum"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties *schema           `json:"additionalProperties"`
	Items                *schema           `json:"items"`
}

type crd struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Kind     string `json:"kind"`
			ListKind string `json:"listKind"`
			Plural   string `json:"plural"`
		} `json:"names"`
		Versions []struct {
			Name         string         `json:"name"`
			Subresources map[string]any `json:"subresources"`
			Schema       struct {
				OpenAPIV3Schema schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

func readCRD(t *testing.T) crd {
	t.Helper()
	data, err := os.ReadFile("../../config/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c crd
	if err := yaml.Unmarshal(data, &c); err != nil {
		t.Fatalf("config/crd.yaml: %v", err)
	}
	if len(c.Spec.Versions) != 1 {
		t.Fatalf("config/crd.yaml has %d versions, want 1", len(c.Spec.Versions))
	}
	return c
}

// schemaLeaves and typeLeaves append one line for each field, of the schema and of
// the Go types. The lines are equal if both describe the same fields.
func schemaLeaves(path string, s schema, out *[]string) {
	switch {
	case s.IntOrString:
		*out = append(*out, path+" quantity")
	case s.Type == "object" && s.AdditionalProperties != nil:
		schemaLeaves(path+"{}", *s.AdditionalProperties, out)
	case s.Type == "object":
		for name, p := range s.Properties {
			schemaLeaves(path+"."+name, p, out)
		}
	case s.Type == "array":
		schemaLeaves(path+"[]", *s.Items, out)
	case s.Format != "" && s.Type == "string":
		*out = append(*out, path+" "+s.Format)
	default:
		*out = append(*out, path+" "+s.Type)
	}
}

func typeLeaves(path string, t reflect.Type, out *[]string) {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		*out = append(*out, path+" quantity")
		return
	case reflect.TypeFor[metav1.Time]():
		*out = append(*out, path+" date-time")
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			typeLeaves(path+"."+name, t.Field(i).Type, out)
		}
	case reflect.Slice:
		typeLeaves(path+"[]", t.Elem(), out)
	case reflect.Map:
		typeLeaves(path+"{}", t.Elem(), out)
	case reflect.Bool:
		*out = append(*out, path+" boolean")
	case reflect.Int64:
		*out = append(*out, path+" integer")
	default:
		*out = append(*out, path+" "+t.Kind().String())
	}
}

func TestCRDFields(t *testing.T) {
	root := readCRD(t).Spec.Versions[0].Schema.OpenAPIV3Schema
	var fromSchema, fromTypes []string
	schemaLeaves("spec", root.Properties["spec"], &fromSchema)
	schemaLeaves("status", root.Properties["status"], &fromSchema)
	typeLeaves("spec", reflect.TypeFor[v1alpha1.TenantSpec](), &fromTypes)
	typeLeaves("status", reflect.TypeFor[v1alpha1.TenantStatus](), &fromTypes)
	slices.Sort(fromSchema)
	slices.Sort(fromTypes)
	if diff := cmp.Diff(fromTypes, fromSchema); diff != "" {
		t.Errorf("config/crd.yaml differs from types.go (-types +schema):\n%s", diff)
	}
}

func TestCRDNames(t *testing.T) {
	c := readCRD(t)
	version := c.Spec.Versions[0]
	tests := []struct{ name, got, want string }{
		{name: "group", got: c.Spec.Group, want: v1alpha1.GroupName},
		{name: "version", got: version.Name, want: v1alpha1.SchemeGroupVersion.Version},
		{name: "scope", got: c.Spec.Scope, want: "Cluster"},
		{name: "kind", got: c.Spec.Names.Kind, want: reflect.TypeFor[v1alpha1.Tenant]().Name()},
		{name: "list kind", got: c.Spec.Names.ListKind, want: reflect.TypeFor[v1alpha1.TenantList]().Name()},
		{name: "name", got: c.Metadata.Name, want: c.Spec.Names.Plural + "." + c.Spec.Group},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %q, want %q", tt.got, tt.want)
			}
		})
	}
	if _, ok := version.Subresources["status"]; !ok {
		t.Error("the status subresource is missing: status.Update needs it")
	}
	spec := version.Schema.OpenAPIV3Schema.Properties["spec"]
	plans := []any{string(v1alpha1.PlanBasic), string(v1alpha1.PlanStandard), string(v1alpha1.PlanPremium)}
	if diff := cmp.Diff(plans, spec.Properties["account"].Properties["plan"].Enum); diff != "" {
		t.Errorf("plans (-types +schema):\n%s", diff)
	}
	conditions := version.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]
	if conditions.ListType != "map" || !slices.Equal(conditions.ListMapKeys, []string{"type"}) {
		t.Errorf("conditions are a list of type %q with keys %q, want map and [type]", conditions.ListType, conditions.ListMapKeys)
	}
}
