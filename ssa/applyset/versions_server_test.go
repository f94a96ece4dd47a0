package applyset_test

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerSetRemovedVersion: the CustomResourceDefinition of the parent and of a member
// loses the version in which they were written. The error about the member names the
// cure. Apply and Delete write the inventory, so the parent's finalizer can be removed.
func TestServerSetRemovedVersion(t *testing.T) {
	g, v := newGallery(t), testserver.InstallVersioned(t)
	create := func(name string, finalizers ...string) {
		u := object(`{"apiVersion":"versions.example.com/v1alpha1","kind":%q,"metadata":{"name":%q,"namespace":%q},"spec":{"a":"1"}}`, v.Kind.Kind, name, g.one)
		u.SetFinalizers(finalizers)
		if _, err := v.At("v1alpha1", g.one).Create(t.Context(), u, metav1.CreateOptions{FieldManager: "creator"}); err != nil {
			t.Fatal(err)
		}
	}
	create("parent", setFinalizer)
	create("member")
	s := newSet(t, testserver.Config(t))
	s.Mapper, s.ParentKind = setMapper(v.Kind), v.Kind
	parents := v.At("v1", g.one)
	read := func() metav1.Object {
		parent, err := parents.Get(t.Context(), "parent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return parent
	}
	member := applyset.Member{Adopt: true, Object: object(`{"apiVersion":"versions.example.com/v1","kind":%q,"metadata":{"name":"member","namespace":%q},"spec":{"a":"2"}}`, v.Kind.Kind, g.one)}
	if _, err := s.Apply(t.Context(), read(), wantConfigMap(g.one, "one", "red")); err != nil {
		t.Fatal(err)
	}
	v.Remove(t, "v1alpha1")

	if _, err := s.Apply(t.Context(), read(), wantConfigMap(g.one, "one", "blue"), wantKind("v1", "ServiceAccount", g.two, "two")); err != nil {
		t.Errorf("Apply of a parent with a removed version: %v", err)
	}
	_, err := s.Apply(t.Context(), read(), wantConfigMap(g.one, "one", "blue"), wantKind("v1", "ServiceAccount", g.two, "two"), member)
	var rejected controllerkit.RejectedError
	if !errors.Is(err, kube.ErrRemovedVersion) || !errors.As(err, &rejected) || !rejected.Rejected() || !strings.Contains(err.Error(), "ssa.Migrate") {
		t.Errorf("Apply of a member with a removed version: error %v, want a rejected one that names ssa.Migrate", err)
	}
	live, err := parents.Get(t.Context(), "member", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, migrated, err := ssa.Migrate(t.Context(), manager, parents.Patch, live); err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	if _, err := s.Apply(t.Context(), read(), wantConfigMap(g.one, "one", "blue"), wantKind("v1", "ServiceAccount", g.two, "two"), member); err != nil {
		t.Errorf("Apply after Migrate: %v", err)
	}

	if err := parents.Delete(t.Context(), "parent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for try := 1; ; try++ { // the deletions of members can need a second call
		if _, err = s.Delete(t.Context(), read()); err == nil || try == 5 {
			break
		}
	}
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if left := read().GetAnnotations()[groupKinds]; left != "" {
		t.Errorf("the inventory has %q", left)
	}
	if _, err := g.CoreV1().ConfigMaps(g.one).Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the member is not deleted: %v", err)
	}
	if _, err := parents.Patch(t.Context(), "parent", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("remove the finalizer: %v", err)
	}
	if _, err := parents.Get(t.Context(), "parent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the parent is not gone: %v", err)
	}
}
