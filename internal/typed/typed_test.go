package typed_test

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/internal/typed"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestServer: each request works for a group with a name and for the core group, and an error is
// one of the API.
func TestServer(t *testing.T) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	leases, err := typed.New(config, coordinationv1.SchemeGroupVersion, "leases", coordinationv1.AddToScheme, func() *coordinationv1.Lease { return &coordinationv1.Lease{} })
	if err != nil {
		t.Fatal(err)
	}
	maps, err := typed.New(config, corev1.SchemeGroupVersion, "configmaps", corev1.AddToScheme, func() *corev1.ConfigMap { return &corev1.ConfigMap{} })
	if err != nil {
		t.Fatal(err)
	}
	life(t, leases.In(namespace), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	life(t, maps.In(namespace), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if _, err := maps.Get(t.Context(), "", metav1.GetOptions{}); err == nil {
		t.Error("Get without a name: no error")
	}
	namespaces, err := typed.New(config, corev1.SchemeGroupVersion, "namespaces", corev1.AddToScheme, func() *corev1.Namespace { return &corev1.Namespace{} })
	if err != nil {
		t.Fatal(err)
	}
	if ns, err := namespaces.Get(t.Context(), namespace, metav1.GetOptions{}); err != nil || ns.Name != namespace {
		t.Errorf("Get of a cluster-scoped object = %v, %v", ns, err)
	}
}

func life[T typed.Object](t *testing.T, client *typed.Client[T], obj T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Get of no object: %v, want NotFound", err)
	}
	created, err := client.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil || created.GetUID() == "" {
		t.Fatalf("Create = %v, %v", created, err)
	}
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: created.GetResourceVersion(), FieldSelector: "metadata.name=a"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created.SetLabels(map[string]string{"updated": "yes"})
	if updated, err := client.Update(ctx, created, metav1.UpdateOptions{}); err != nil || updated.GetLabels()["updated"] != "yes" {
		t.Errorf("Update = %v, %v", updated, err)
	}
	if _, err := client.Update(ctx, obj, metav1.UpdateOptions{DryRun: []string{"no"}}); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		t.Errorf("Update with a wrong option: %v, want an error of the API", err)
	}
	patch := []byte(`{"metadata":{"labels":{"patched":"yes"}}}`)
	if patched, err := client.Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil || patched.GetLabels()["patched"] != "yes" || patched.GetLabels()["updated"] != "yes" {
		t.Errorf("Patch = %v, %v", patched, err)
	}
	if read, err := client.Get(ctx, "a", metav1.GetOptions{}); err != nil || read.GetUID() != created.GetUID() || read.GetLabels()["patched"] != "yes" {
		t.Errorf("Get = %v, %v", read, err)
	}
	for _, label := range []string{"updated", "patched"} {
		event, ok := <-w.ResultChan()
		if o, is := event.Object.(T); !ok || !is || o.GetLabels()[label] != "yes" {
			t.Errorf("event %v, want one of the type with the label %s", event, label)
		}
	}
}
