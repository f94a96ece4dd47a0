package informer_test

import (
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestServerConversion: while the conversion webhook of a resource is down, the API server answers
// 429, and client-go repeats its requests without a word. The error of Run has the server's reason.
func TestServerConversion(t *testing.T) {
	version := func(name string, storage bool) any {
		return map[string]any{"name": name, "served": true, "storage": storage, "schema": map[string]any{
			"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		}}
	}
	const name = "gears.conversion.example.com"
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": "conversion.example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Gear", "plural": "gears"},
			"versions": []any{version("v1", true), version("v2", false)},
		},
	})
	config := testserver.Config(t)
	config.Wrap(informer.EndSilentWatches(0))
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	client, err := dynamic.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	gears := func(v string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "conversion.example.com", Version: v, Resource: "gears"}
	}
	ns := testserver.Namespace(t)
	gear := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "conversion.example.com/v1", "kind": "Gear", "metadata": map[string]any{"name": "a"}}}
	if _, err := client.Resource(gears("v1")).Namespace(ns).Create(t.Context(), gear, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	down := []byte(`{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/convert"}}}}}`)
	if _, err := crds.Patch(t.Context(), name, types.MergePatchType, down, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	// The API server answers with the former conversion until its informer has seen the change.
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := h.Get(config.Host + "/apis/conversion.example.com/v2/gears")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the API server lists the objects without their conversion")
		}
	}
	err = runUntilError(t, "gears", 10*time.Second, dynamicinformer.NewFilteredDynamicInformer(client, gears("v2"), "", 0, nil, nil).Informer())
	contains(t, err, `"gears": cannot watch gears: the API server cannot list the stored objects, such as while a conversion webhook fails: the API server responded 429: storage is (re)initializing: `)
	contains(t, err, `conversion webhook for conversion.example.com/v1, Kind=Gear failed: `)
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("IsTooManyRequests(%v) = false", err)
	}

	// The webhook is no longer needed, and the cleanup can delete the objects.
	if _, err := crds.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
