package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// The preconditions of Delete on the real server, which answers 409 to both.
//
// Proves F10.
func TestServerDelete(t *testing.T) {
	tests := []struct {
		name         string
		then         func(t *testing.T, s server, obj *corev1.ConfigMap)
		wantConflict bool
		wantGone     bool
	}{
		{name: "there", wantGone: true},
		{name: "gone", wantGone: true, then: func(t *testing.T, s server, _ *corev1.ConfigMap) { s.delete(t, "one") }},
		{name: "changed", wantConflict: true, then: func(t *testing.T, s server, _ *corev1.ConfigMap) {
			if _, err := s.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "replaced", wantConflict: true, then: func(t *testing.T, s server, _ *corev1.ConfigMap) {
			s.delete(t, "one")
			s.create(t, "one")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			obj := s.create(t, "one")
			if tt.then != nil {
				tt.then(t, s, obj)
			}
			err := finalizer.Delete(t.Context(), s, obj, metav1.DeletePropagationBackground)
			if apierrors.IsConflict(err) != tt.wantConflict || (err != nil) != tt.wantConflict {
				t.Errorf("error = %v, want a Conflict: %v", err, tt.wantConflict)
			}
			if _, err := s.Get(t.Context(), "one", metav1.GetOptions{}); apierrors.IsNotFound(err) != tt.wantGone {
				t.Errorf("afterwards: %v, want gone: %v", err, tt.wantGone)
			}
		})
	}
	t.Run("foreground", func(t *testing.T) {
		s := newServer(t)
		obj := s.create(t, "one", "x.example.com/1")
		// The garbage collector takes its finalizer off again: the event has it.
		w, err := s.Watch(t.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", "one").String(), ResourceVersion: obj.ResourceVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if err := finalizer.Delete(t.Context(), s, obj, metav1.DeletePropagationForeground); err != nil {
			t.Fatal(err)
		}
		after, ok := (<-w.ResultChan()).Object.(*corev1.ConfigMap)
		if !ok || !slices.Contains(after.Finalizers, metav1.FinalizerDeleteDependents) {
			t.Fatalf("stored finalizers %q, want that of a foreground deletion", after.GetFinalizers())
		}
		before := s.requests.Load()
		if err := finalizer.Delete(t.Context(), s, after, metav1.DeletePropagationForeground); err != nil || s.requests.Load() != before {
			t.Errorf("again: error %v, %d requests", err, s.requests.Load()-before)
		}
	})
	t.Run("a client of all namespaces", func(t *testing.T) {
		s := newServer(t)
		obj := s.create(t, "one", name)
		all := s.client.CoreV1().ConfigMaps("")
		_, removed := finalizer.Remove(t.Context(), all, obj, name)
		_, added := finalizer.Add(t.Context(), all, obj, "example.com/other")
		deleted := finalizer.Delete(t.Context(), all, obj, metav1.DeletePropagationBackground)
		for what, err := range map[string]error{"Remove": removed, "Add": added, "Delete": deleted} {
			if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "the client must be one of the object's namespace") {
				t.Errorf("%s: error = %v, want one that names the cure", what, err)
			}
		}
		if after := s.get(t, "one"); after.ResourceVersion != obj.ResourceVersion {
			t.Error("the object changed")
		}
	})
	for _, group := range []string{"", "nobody.example.com"} {
		t.Run("no such resource in group "+group, func(t *testing.T) {
			s := newServer(t)
			obj := s.create(t, "one")
			meta, err := metadata.NewForConfig(testserver.Config(t))
			if err != nil {
				t.Fatal(err)
			}
			gadgets := meta.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "gadgets"}).Namespace(s.namespace)
			if err := finalizer.Delete(t.Context(), metadataDeleter{gadgets}, obj, metav1.DeletePropagationBackground); !apierrors.IsNotFound(err) {
				t.Errorf("error = %v: a 404 that is not about the object proves nothing", err)
			}
			if _, err := finalizer.Remove(t.Context(), gadgets, &metav1.PartialObjectMetadata{ObjectMeta: *object("a", true, name).ObjectMeta.DeepCopy()}, name); !apierrors.IsNotFound(err) {
				t.Errorf("Remove: error = %v: a 404 that is not about the object proves nothing", err)
			}
		})
	}
}

// metadataDeleter is the type that the comment of Deleter speaks of.
type metadataDeleter struct{ metadata.ResourceInterface }

func (c metadataDeleter) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.ResourceInterface.Delete(ctx, name, opts)
}

// Children of many pages, of which one stays, by the typed and the metadata client.
//
// Proves F10, F11.
func TestServerDeleteAll(t *testing.T) {
	meta, err := metadata.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("typed", func(t *testing.T) {
		s := newServer(t)
		deleteAll(t, s, finalizer.Children[*corev1.ConfigMapList](s))
	})
	t.Run("metadata", func(t *testing.T) {
		s := newServer(t)
		deleteAll(t, s, finalizer.Children[*metav1.PartialObjectMetadataList](metadataDeleter{meta.Resource(configMapResource).Namespace(s.namespace)}))
	})
}

func deleteAll[L runtime.Object](t *testing.T, s server, c finalizer.Children[L]) {
	owner := s.create(t, "one", name)
	const children = 7
	for i := range children {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("child-%d", i), Labels: map[string]string{"app": "one"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
		}}
		switch i {
		case 2:
			o.Finalizers = []string{"x.example.com/1"}
		case 3:
			o.OwnerReferences = nil
		}
		if _, err := s.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, owner) }
	opts := metav1.ListOptions{LabelSelector: "app=one", Limit: 2}
	left, err := finalizer.Remaining(t.Context(), c, opts, mine)
	if err != nil || len(left) != children-1 {
		t.Fatalf("%d remain, error %v, want %d", len(left), err, children-1)
	}
	got, err := finalizer.DeleteAll(t.Context(), c, opts, mine, metav1.DeletePropagationBackground)
	if want := (progress{Message: "1 left: child-2"}); err != nil || got != want {
		t.Fatalf("progress %+v, error %v, want %+v", got, err, want)
	}
	if _, err := finalizer.Remove(t.Context(), s, s.get(t, "child-2"), "x.example.com/1"); err != nil {
		t.Fatal(err)
	}
	if got, err = finalizer.DeleteAll(t.Context(), c, opts, mine, metav1.DeletePropagationBackground); err != nil || !got.Done {
		t.Errorf("progress %+v, error %v, want done", got, err)
	}
	s.get(t, "child-3") // nobody's child
}

// What Remaining finds is what is stored when it is asked: an informer, or a list
// from the server's own cache, lags behind writes that others have been told of.
//
// Proves F11.
func TestServerRemainingIsLive(t *testing.T) {
	s := newServer(t)
	other := newServer(t) // a client of its own
	objects := other.client.CoreV1().ConfigMaps(s.namespace)
	all := func(metav1.Object) bool { return true }
	remain := func() int {
		t.Helper()
		left, err := finalizer.Remaining(t.Context(), s, metav1.ListOptions{FieldSelector: "metadata.name=one"}, all)
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	for i := range 100 {
		if _, err := objects.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := remain(); got != 1 {
			t.Fatalf("round %d: %d remain after the creation, want 1", i, got)
		}
		if err := objects.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := remain(); got != 0 {
			t.Fatalf("round %d: %d remain after the deletion, want none", i, got)
		}
	}
}

// A controller with exactly the documented verbs lives the life of an object.
//
// Proves CK6.
func TestServerRBAC(t *testing.T) {
	admin := newServer(t)
	grant := func(t *testing.T, user string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
		t.Helper()
		rbac := admin.client.RbacV1()
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
		if _, err := rbac.Roles(admin.namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}
		if _, err := rbac.RoleBindings(admin.namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		config := testserver.Config(t)
		config.Impersonate.UserName = user
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	patch := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}}
	children := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list", "delete"}}
	tests := []struct {
		name      string
		rules     []rbacv1.PolicyRule
		forbidden string // what the cleanup is refused; "" means that it succeeds
	}{
		{name: "documented", rules: []rbacv1.PolicyRule{patch, children}},
		{name: "without-list", rules: []rbacv1.PolicyRule{patch, {APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"delete"}}}, forbidden: `cannot list resource "secrets"`},
		{name: "without-delete", rules: []rbacv1.PolicyRule{patch, {APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}}, forbidden: `cannot delete resource "secrets"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := grant(t, tt.name, tt.rules...)
			objects, secrets := client.CoreV1().ConfigMaps(admin.namespace), client.CoreV1().Secrets(admin.namespace)
			obj := admin.create(t, tt.name)
			p := plan{Client: objects, Steps: []step{{Name: "secrets", Run: func(ctx context.Context, h held) (progress, error) {
				mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, h.Object()) }
				return finalizer.DeleteAll(ctx, secrets, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
			}}}}
			// When a role takes effect, nothing tells.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var err error
			for {
				if _, _, err = finalizer.Ensure(ctx, objects, obj, name, p.Run); !apierrors.IsForbidden(err) {
					break
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			// A neighbour's makes the removal look at the live object.
			live := admin.mustAdd(t, admin.get(t, tt.name), "x.example.com/1")
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Name:            tt.name,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(live, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
			}}
			if _, err := admin.client.CoreV1().Secrets(admin.namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			admin.delete(t, tt.name)
			stale := admin.get(t, tt.name)
			if _, err := finalizer.Remove(ctx, admin, stale, "x.example.com/1"); err != nil {
				t.Fatal(err)
			}
			_, _, err = finalizer.Ensure(ctx, objects, stale, name, p.Run)
			_, gone := admin.Get(ctx, tt.name, metav1.GetOptions{})
			if tt.forbidden == "" {
				if err != nil || !apierrors.IsNotFound(gone) {
					t.Errorf("error %v; afterwards %v, want NotFound", err, gone)
				}
				return
			}
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.forbidden) || gone != nil {
				t.Errorf("error %v; afterwards %v; want %q, and the object", err, gone, tt.forbidden)
			}
			if b, ok := errors.AsType[*finalizer.BlockedError](err); !ok || b.Steps[0].Name != "secrets" {
				t.Errorf("error %v does not name the step", err)
			}
		})
	}
}
