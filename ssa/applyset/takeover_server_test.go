package applyset_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// retool changes the tool of a set, as another tool or its user does.
func (g gallery) retool(t *testing.T, parent *corev1.ConfigMap, tool string) {
	t.Helper()
	patch := `{"metadata":{"annotations":{"` + tooling + `":"` + tool + `"}}}`
	if _, err := g.CoreV1().ConfigMaps(g.one).Patch(t.Context(), parent.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-annotate"}); err != nil {
		t.Fatal(err)
	}
}

// TestServerSetTakeOver: a set of another tool becomes one of the Set if the caller names
// the tool, and its members are then known. The other sets stay.
func TestServerSetTakeOver(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	var intrude bool // whether another user changes the parent before a write
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		if !intrude || !op.IsWrite() {
			return fault.Fault{}
		}
		return fault.Fault{Before: func() { g.retool(t, parent, "helm/v4") }}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	s.MaxPrunePercent = 100

	takeOver := func(tool, want string) {
		t.Helper()
		before := g.read(t, parent)
		err := s.TakeOver(t.Context(), before, tool)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("take over the set of %q: error %v, want %q", tool, err, want)
		}
		if after := g.read(t, parent); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("take over the set of %q: the parent changed: %v", tool, after)
		}
	}
	takeOver("kubectl", "the parent has no set")
	takeOver("", "the tool is empty")

	if _, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.two, "one", "red"), wantConfigMap(g.two, "two", "red")); err != nil {
		t.Fatal(err)
	}
	own := g.read(t, parent)
	if err := s.TakeOver(t.Context(), own, "kubectl"); err != nil || g.read(t, parent).ResourceVersion != own.ResourceVersion {
		t.Errorf("take over the Set's own: error %v", err)
	}

	// The other tool works on it meanwhile.
	g.retool(t, parent, "kubectl/v1.37.2")
	created := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"by-kubectl","labels":{"`+partOf+`":%q}}}`, inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, g.one, "parent"))
	if _, err := g.objects.Resource(configMapResource).Namespace(g.two).Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	takeOver("helm", `is "kubectl/v1.37.2"`)
	if _, err := newSet(t, testserver.Config(t)).Apply(t.Context(), g.read(t, parent), wantConfigMap(g.two, "one", "red")); err == nil || !strings.Contains(err.Error(), "another tool") {
		t.Errorf("apply on the set of another tool: error %v", err)
	}
	intrude = true
	if err := s.TakeOver(t.Context(), g.read(t, parent), "kubectl"); !apierrors.IsConflict(err) {
		t.Errorf("the parent changed during the call: error %v, want a Conflict", err)
	}
	intrude = false
	if got := g.read(t, parent).Annotations[tooling]; got != "helm/v4" {
		t.Errorf("the tool is %s", got)
	}
	g.retool(t, parent, "kubectl/v1.37.2")

	versions := g.versions(t)
	if err := s.TakeOver(t.Context(), g.read(t, parent), "kubectl"); err != nil {
		t.Fatal(err)
	}
	after := g.versions(t)
	delete(versions, g.one+"/configmaps/parent")
	for name, version := range versions {
		if after[name] != version {
			t.Errorf("%s changed", name)
		}
	}
	if live := g.read(t, parent); live.Annotations[tooling] != manager+"/v1" || live.Annotations[groupKinds] != "ConfigMap" || live.Annotations[namespaces] != g.two {
		t.Errorf("the inventory is %v", live.Annotations)
	}
	results, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.two, "one", "red"))
	if got := actions(results); err != nil || got != "ConfigMap by-kubectl Pruned, ConfigMap one Unchanged, ConfigMap two Pruned" {
		t.Errorf("%s, error %v", got, err)
	}

	// A parent that could go without its members stays the other tool's.
	g.retool(t, parent, "kubectl/v1.37.2")
	if _, err := g.CoreV1().ConfigMaps(g.one).Patch(t.Context(), "parent", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	takeOver("kubectl", "lacks the finalizer")
}
