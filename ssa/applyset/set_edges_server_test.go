package applyset_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// A wanted object that is being deleted is an error, and no apply gives it fields that its
// successor would lack. The next call creates the successor.
//
// Proves AS2, AS6.
func TestServerSetDeleting(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	maps := g.CoreV1().ConfigMaps(g.two)
	wanted := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":%q,"finalizers":["example.com/held"]},"data":{"color":"red"}}`, g.two)
	if _, err := s.Apply(t.Context(), g.read(t, parent), applyset.Member{Object: wanted}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := maps.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || before.DeletionTimestamp == nil {
		t.Fatalf("the object is %v, error %v", before, err)
	}
	for name, live := range map[string]metav1.Object{"unknown": nil, "a cache": before} {
		for _, process := range []*applyset.Set{s, newSet(t, testserver.Config(t))} {
			m := wantConfigMap(g.two, "one", "blue")
			m.Live, m.Force = live, true
			results, err := process.Apply(t.Context(), g.read(t, parent), m)
			if err == nil || !strings.Contains(err.Error(), "ConfigMap "+g.two+"/one") || !strings.Contains(err.Error(), "it is being deleted") {
				t.Errorf("live from %s: %s, error %v", name, actions(results), err)
			}
		}
	}
	// Also if an apply would be a no-op.
	if results, err := s.Apply(t.Context(), g.read(t, parent), applyset.Member{Object: wanted, Live: before}); err == nil || !strings.Contains(err.Error(), "it is being deleted") {
		t.Errorf("a no-op: %s, error %v", actions(results), err)
	}
	after, err := maps.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the object is %v, error %v", after, err)
	}
	if _, err := maps.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	m := wantConfigMap(g.two, "one", "blue")
	m.Live = before // a stale cache
	if _, err := s.Apply(t.Context(), g.read(t, parent), m); err == nil || !strings.Contains(err.Error(), "it is being deleted") {
		t.Errorf("from a stale cache: error %v", err)
	}
	results, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.two, "one", "blue"))
	if got := actions(results); err != nil || got != "ConfigMap one Created" {
		t.Errorf("%s, error %v", got, err)
	}
}

// A kind that the API server does not serve stays in the inventory with all namespaces, in
// which it can have members. What another user removes from the inventory, while a late
// request creates a member, is found by the process that remembers it.
//
// Proves AS2, AS9.
func TestServerSetInventory(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	s.MaxPrunePercent = 100
	keep := wantConfigMap(g.one, "one", "red")
	apply := func(what, want, kinds, spaces string, wanted ...applyset.Member) {
		t.Helper()
		results, err := s.Apply(t.Context(), g.read(t, parent), wanted...)
		if got := actions(results); err != nil || got != want {
			t.Errorf("%s: %s, error %v, want %s", what, got, err, want)
		}
		if live := g.read(t, parent); live.Annotations[groupKinds] != kinds || live.Annotations[namespaces] != spaces {
			t.Errorf("%s: the inventory is %v, want %s in %s", what, live.Annotations, kinds, spaces)
		}
	}
	edit := func(kinds, spaces string) {
		t.Helper()
		patch := `{"metadata":{"annotations":{"` + groupKinds + `":"` + kinds + `","` + namespaces + `":"` + spaces + `"}}}`
		if _, err := g.CoreV1().ConfigMaps(g.one).Patch(t.Context(), "parent", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	apply("created", "ConfigMap one Created, Secret two Created", "ConfigMap,Secret", g.two, keep, wantKind("v1", "Secret", g.two, "two"))

	late := object(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"late","labels":{"`+partOf+`":%q}}}`, inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, g.one, "parent"))
	if _, err := g.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(g.two).Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	edit("ConfigMap", "")
	apply("a lost entry", "ConfigMap one Unchanged, Secret late Pruned, Secret two Pruned", "ConfigMap", "", keep)

	edit("ConfigMap,Ghost.example.com", g.two)
	apply("a kind that is not served", "ConfigMap one Unchanged", "ConfigMap,Ghost.example.com", g.two, keep)
	apply("without members", "ConfigMap one Pruned", "Ghost.example.com", g.two)
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err == nil || !strings.Contains(err.Error(), "does not serve the kind Ghost.example.com") {
		t.Errorf("delete: error %v", err)
	}
	edit("", g.two)
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Errorf("delete: error %v", err)
	}

	// The same with a Mapper that still knows the kind, and a member that can exist.
	s.Mapper = setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Ghost"})
	if _, err := s.Apply(t.Context(), g.read(t, parent), keep, wantKind("example.com/v1", "Ghost", g.two, "one")); err == nil {
		t.Error("an object of a kind that is not served was applied")
	}
	if live := g.read(t, parent); live.Annotations[groupKinds] != "ConfigMap,Ghost.example.com" {
		t.Errorf("the inventory is %v", live.Annotations)
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err == nil || !strings.Contains(err.Error(), "does not serve the kind Ghost.example.com") {
		t.Errorf("delete: error %v", err)
	}
	edit("", "")
	if results, err := s.Delete(t.Context(), g.read(t, parent)); err != nil || len(results) > 0 {
		t.Errorf("delete: %s, error %v", actions(results), err)
	}
}

// If other users change the parent before each write of its inventory, Apply gives up, and
// creates no member that the inventory lacks.
//
// Proves AS2.
func TestServerSetContended(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	for _, intrusions := range []int{2, 3} {
		tries := 0
		process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			if !op.IsWrite() || op.Name != "parent" {
				return fault.Fault{}
			}
			tries++
			if tries > intrusions {
				return fault.Fault{}
			}
			return fault.Fault{Before: func() {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d-%d"}}}`, intrusions, tries)
				if _, err := g.CoreV1().ConfigMaps(g.one).Patch(t.Context(), "parent", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "other"}); err != nil {
					t.Error(err)
				}
			}}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Kill)
		s := newSet(t, process.Config())
		s.Concurrency = 1
		kind := map[int]string{2: "Secret", 3: "ServiceAccount"}[intrusions]
		results, err := s.Apply(t.Context(), g.read(t, parent), wantKind("v1", kind, g.one, "one"))
		inventory := g.read(t, parent).Annotations[groupKinds]
		switch {
		case intrusions == 2 && (err != nil || tries < 3):
			t.Errorf("%d intrusions, %d writes: %s, error %v", intrusions, tries, actions(results), err)
		case intrusions == 3 && (!apierrors.IsConflict(err) || tries != 3 || strings.Contains(inventory, kind) || len(results) > 0):
			t.Errorf("%d intrusions, %d writes: %s, error %v, want a Conflict; the inventory is %s", intrusions, tries, actions(results), err, inventory)
		}
	}
	accounts, err := g.CoreV1().ServiceAccounts(g.one).List(t.Context(), metav1.ListOptions{LabelSelector: partOf})
	if err != nil || len(accounts.Items) > 0 {
		t.Errorf("members: %v, error %v", accounts, err)
	}
}
