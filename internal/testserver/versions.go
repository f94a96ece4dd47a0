package testserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// A Versioned is a custom resource with the versions v1alpha1, v1beta1 and v1. The versions
// before v1 can be removed.
type Versioned struct {
	Kind   schema.GroupVersionKind     // of v1
	GVR    schema.GroupVersionResource // of v1
	client dynamic.Interface
}

// InstallVersioned installs a Versioned, whose objects are stored in v1alpha1. Its spec has
// the text fields a, b and c, the map labels, and the list items with the key name; old
// only until v1, and new only in v1. Its status has conditions and n.
func InstallVersioned(t testing.TB) *Versioned {
	t.Helper()
	kind := "V" + strings.ReplaceAll(Namespace(t), "-", "") + "ed" // so that all mappers guess the same plural
	client, err := dynamic.NewForConfig(Config(t))
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	plural := strings.ToLower(kind) + "s"
	v := &Versioned{
		Kind:   schema.GroupVersionKind{Group: "versions.example.com", Version: "v1", Kind: kind},
		GVR:    schema.GroupVersionResource{Group: "versions.example.com", Version: "v1", Resource: plural},
		client: client,
	}
	var versions []any
	for _, name := range []string{"v1alpha1", "v1beta1", "gate", "v1"} {
		only := "old"
		if name == "v1" {
			only = "new"
		}
		var version map[string]any
		if err := json.Unmarshal(fmt.Appendf(nil, `{"name":%q,"served":true,"storage":%t,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"spec":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},%q:{"type":"string"},
				"labels":{"type":"object","additionalProperties":{"type":"string"}},
				"items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"value":{"type":"string"}}}}}},
			"status":{"type":"object","properties":{"n":{"type":"integer"},"conditions":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["type"],
				"items":{"type":"object","required":["type"],"properties":{"type":{"type":"string"},"status":{"type":"string"},"reason":{"type":"string"},"message":{"type":"string"},"observedGeneration":{"type":"integer"},"lastTransitionTime":{"type":"string","format":"date-time"}}}}}}
		}}}}`, name, name == "v1alpha1", only), &version); err != nil {
			t.Fatalf("testserver: %v", err)
		}
		versions = append(versions, version)
	}
	InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": v.GVR.GroupResource().String(), "labels": map[string]any{"applyset.kubernetes.io/is-parent-type": "true"}},
		"spec": map[string]any{
			"group": v.GVR.Group, "scope": "Namespaced", "versions": versions,
			"names": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
		},
	})
	return v
}

// At returns a client for a version.
func (v *Versioned) At(version, namespace string) dynamic.ResourceInterface {
	return v.client.Resource(v.GVR.GroupResource().WithVersion(version)).Namespace(namespace)
}

// Remove makes v1 the stored version, rewrites all objects as a storage migrator does, and
// removes the named versions from the definition.
func (v *Versioned) Remove(t testing.TB, versions ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := v.remove(ctx, versions); err != nil {
		t.Fatalf("testserver: remove %v of %s: %v", versions, v.GVR.GroupResource(), err)
	}
}

func (v *Versioned) remove(ctx context.Context, removed []string) error {
	// No event shows when the API server uses a new definition. The version gate does.
	err := v.change(ctx, func(d *unstructured.Unstructured) error {
		return editVersions(d, func(version map[string]any) bool {
			version["storage"] = version["name"] == "v1"
			if version["name"] == "gate" {
				version["served"] = false
			}
			return true
		})
	})
	if err == nil {
		err = v.await(ctx, apierrors.IsNotFound)
	}
	if err != nil {
		return err
	}
	objects, err := v.At("v1", "").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range objects.Items {
		object := &objects.Items[i]
		if _, err := v.At("v1", object.GetNamespace()).Update(ctx, object, metav1.UpdateOptions{FieldManager: "migrator"}); err != nil {
			return err
		}
	}
	err = v.change(ctx, func(d *unstructured.Unstructured) error {
		return unstructured.SetNestedStringSlice(d.Object, []string{"v1"}, "status", "storedVersions")
	}, "status")
	if err == nil {
		err = v.change(ctx, func(d *unstructured.Unstructured) error {
			return editVersions(d, func(version map[string]any) bool {
				version["served"] = true
				return !slices.Contains(removed, version["name"].(string))
			})
		})
	}
	if err == nil {
		err = v.await(ctx, func(err error) bool { return err == nil })
	}
	return err
}

// change changes the definition.
func (v *Versioned) change(ctx context.Context, mutate func(definition *unstructured.Unstructured) error, subresources ...string) error {
	definitions := v.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for {
		d, err := definitions.Get(ctx, v.GVR.GroupResource().String(), metav1.GetOptions{})
		if err == nil {
			err = mutate(d)
		}
		if err == nil {
			_, err = definitions.Update(ctx, d, metav1.UpdateOptions{}, subresources...)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// editVersions passes each version of a definition to edit, and removes those for which it
// returns false.
func editVersions(definition *unstructured.Unstructured, edit func(version map[string]any) bool) error {
	list, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(version any) bool { return !edit(version.(map[string]any)) })
	return unstructured.SetNestedSlice(definition.Object, list, "spec", "versions")
}

// await polls until a request in the version gate has the outcome.
func (v *Versioned) await(ctx context.Context, outcome func(error) bool) error {
	for {
		if _, err := v.At("gate", "").List(ctx, metav1.ListOptions{Limit: 1}); outcome(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
