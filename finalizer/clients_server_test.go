package finalizer_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// The dynamic and the metadata client satisfy Patcher as they are.
//
// Proves F8.
func TestServerOtherClients(t *testing.T) {
	config := testserver.Config(t)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	t.Run("dynamic", func(t *testing.T) {
		c := dyn.Resource(configMapResource).Namespace(s.namespace)
		life(t, s, "dynamic", c, func() (*unstructured.Unstructured, error) { return c.Get(t.Context(), "dynamic", metav1.GetOptions{}) })
	})
	t.Run("metadata", func(t *testing.T) {
		c := meta.Resource(configMapResource).Namespace(s.namespace)
		life(t, s, "metadata", c, func() (*metav1.PartialObjectMetadata, error) {
			return c.Get(t.Context(), "metadata", metav1.GetOptions{})
		})
	})
}

func life[T metav1.Object](t *testing.T, s server, object string, c controllerkit.Patcher[T], get func() (T, error)) {
	s.create(t, object)
	stale, err := get()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	cleanup := func(_ context.Context, h finalizer.Held[T]) error {
		ran++
		if h.Object().GetName() != object {
			t.Errorf("cleanup of %q", h.Object().GetName())
		}
		return nil
	}
	h, live, err := finalizer.Ensure(t.Context(), c, stale, name, cleanup)
	if err != nil || !live || !finalizer.Has(h.Object(), name) {
		t.Fatalf("add: live %v, error %v", live, err)
	}
	if _, _, err := finalizer.Ensure(t.Context(), c, stale, name, cleanup); !apierrors.IsConflict(err) {
		t.Errorf("add with a stale copy: error %v, want a Conflict", err)
	}
	removed, err := finalizer.Remove(t.Context(), c, h.Object(), name)
	if err != nil || finalizer.Has(removed, name) {
		t.Errorf("remove: %q, error %v", removed.GetFinalizers(), err)
	}
	// The list is empty again, and stays addable to.
	if h, _, err = finalizer.Ensure(t.Context(), c, removed, name, cleanup); err != nil {
		t.Fatalf("add to a list that was emptied: %v", err)
	}
	s.delete(t, object)
	deleting, err := get()
	if err != nil {
		t.Fatal(err)
	}
	p := finalizer.Plan[T]{Client: c, Steps: []finalizer.Step[T]{{Name: "a", Run: func(ctx context.Context, h finalizer.Held[T]) (finalizer.Progress, error) {
		return done, cleanup(ctx, h)
	}}}}
	if _, live, err := finalizer.Ensure(t.Context(), c, deleting, name, p.Run); err != nil || live || ran != 1 {
		t.Errorf("deleting: live %v, error %v, %d cleanups", live, err, ran)
	}
	if _, err := get(); !apierrors.IsNotFound(err) {
		t.Errorf("afterwards: %v, want NotFound", err)
	}
	if _, err := finalizer.Remove(t.Context(), c, h.Object(), name); err != nil {
		t.Errorf("remove from an object that is gone: %v", err)
	}
	if _, _, err := finalizer.Ensure(t.Context(), c, deleting, name, p.Run); err != nil || ran != 1 {
		t.Errorf("plan for an object that is gone: error %v, %d cleanups", err, ran)
	}
}

// Custom resources are stored as they are sent, so an emptied list could stay as []
// and fail the test for null for ever. The API server drops it; Add relies on that.
func TestServerCustomResource(t *testing.T) {
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	widgets := dyn.Resource(widgetDefinition(t, "finalizers.test.controllerkit.dev")).Namespace(testserver.Namespace(t))
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "finalizers.test.controllerkit.dev/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one", "finalizers": []any{}},
	}}
	// An established definition is not served at once, and nothing tells when.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var obj *unstructured.Unstructured
	for {
		if obj, err = widgets.Create(ctx, widget, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		h, err := finalizer.Add(ctx, widgets, obj, name)
		if err != nil {
			t.Fatal(err)
		}
		if obj, err = finalizer.Remove(ctx, widgets, h.Object(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// widgetDefinition installs a CustomResourceDefinition for the time of the
// test.
func widgetDefinition(t *testing.T, group string) schema.GroupVersionResource {
	t.Helper()
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	})
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
}
