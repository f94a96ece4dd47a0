package inventory_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// The ids are those that kubectl computes for these parents, in its own tests.
//
// Proves AS2.
func TestID(t *testing.T) {
	for _, tt := range []struct {
		kind            schema.GroupKind
		namespace, want string
	}{
		{schema.GroupKind{Kind: "Secret"}, "test", "applyset-0eFHV8ySqp7XoShsGvyWFQD3s96yqwHmzc4e0HR1dsY-v1"},
		{schema.GroupKind{Group: "company.com", Kind: "ApplySet"}, "", "applyset-rhp1a-HVAVT_dFgyEygyA1BEB82HPp2o10UiFTpqtAs-v1"},
	} {
		if got := inventory.ID(tt.kind, tt.namespace, "my-set"); got != tt.want {
			t.Errorf("the id for a %s is %s, want %s", tt.kind, got, tt.want)
		}
	}
}

// Read returns what Metadata has written.
//
// Proves AS8.
func TestRead(t *testing.T) {
	i := inventory.New()
	i.Add(schema.GroupKind{Kind: "ConfigMap"}, "home", "home")
	i.Add(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "b", "home")
	i.Add(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "a", "home")
	i.Add(schema.GroupKind{Kind: "Namespace"}, "", "home")
	labels, annotations := i.Metadata("id", "example.com/tool")
	want := map[string]string{
		"applyset.kubernetes.io/tooling":               "example.com/tool/v1",
		"applyset.kubernetes.io/contains-group-kinds":  "ConfigMap,Deployment.apps,Namespace",
		"applyset.kubernetes.io/additional-namespaces": "a,b",
	}
	if diff := cmp.Diff(want, annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	parent := &metav1.ObjectMeta{Labels: labels, Annotations: annotations}
	got, found, err := inventory.Read(parent, "id", "example.com/tool")
	if err != nil || !found || !got.Equal(i) {
		t.Errorf("read %v, %v, %v", got, found, err)
	}
	for _, tool := range []string{"example.com", "example.com/tool/v1", "example.com/too"} {
		if _, _, err := inventory.Read(parent, "id", tool); err == nil || !strings.Contains(err.Error(), "another tool") {
			t.Errorf("tool %s: error %v", tool, err)
		}
	}
	if _, found, err := inventory.Read(&metav1.ObjectMeta{}, "id", "example.com/tool"); err != nil || found {
		t.Errorf("an object that is no parent: %v, %v", found, err)
	}
}

// CheckSize counts the bytes as the API server does: see TestServerSetSize.
func TestCheckSize(t *testing.T) {
	i := inventory.New()
	i.Add(schema.GroupKind{Kind: "ConfigMap"}, "a", "home")
	_, own := i.Metadata("id", "example.com/tool")
	size := 0
	for name, value := range own {
		size += len(name) + len(value)
	}
	for more, fits := range map[int]bool{0: true, 1: false} {
		parent := &metav1.ObjectMeta{Annotations: map[string]string{
			"applyset.kubernetes.io/additional-namespaces": strings.Repeat("b,", 1000), // replaced
			"other": strings.Repeat("a", 256<<10-size-len("other")+more),
		}}
		if err := i.CheckSize(parent, "example.com/tool"); (err == nil) != fits {
			t.Errorf("%d bytes more than the limit: error %v", more, err)
		}
	}
}
