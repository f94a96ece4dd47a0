package recipes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// manifests returns the objects of a file.
func manifests(t *testing.T, name string) (all []*unstructured.Unstructured) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		obj := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &obj.Object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, obj)
	}
	return all
}

// TestServerAdmission: the API server sets and rejects what the manifests of the page promise.
func TestServerAdmission(t *testing.T) {
	t.Parallel()
	testserver.Since(t, "1.36", "it does not serve MutatingAdmissionPolicy in v1")
	client := dynamic.NewForConfigOrDie(testserver.Config(t))
	testserver.InstallCRD(t, manifests(t, "crd.yaml")[0].Object)
	for _, name := range []string{"validating-policy.yaml", "mutating-policy.yaml"} {
		for _, obj := range manifests(t, name) {
			resource, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
			objects := client.Resource(resource)
			if _, err := objects.Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			t.Cleanup(func() {
				if err := objects.Delete(context.WithoutCancel(t.Context()), obj.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	free, paid := testserver.Namespace(t), testserver.Namespace(t)
	namespaces := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().Namespaces()
	if _, err := namespaces.Patch(t.Context(), paid, types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":"paid"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	gadgets := client.Resource(schema.GroupVersionResource{Group: "admission.example.com", Version: "v1", Resource: "gadgets"})
	create := func(namespace, name, class string, spec map[string]any, annotations map[string]string) (*unstructured.Unstructured, error) {
		all := map[string]any{"class": class}
		for k, v := range spec {
			all[k] = v
		}
		obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "admission.example.com/v1", "kind": "Gadget", "spec": all}}
		obj.SetName(name)
		obj.SetAnnotations(annotations)
		return gadgets.Namespace(namespace).Create(t.Context(), obj, metav1.CreateOptions{})
	}

	// The API server compiles policies some time after they were created.
	limit := time.Now().Add(time.Minute)
	for i := 0; ; i++ {
		obj, err := create(free, fmt.Sprint("probe-", i), "small", nil, nil)
		// The mutating policy also needs the schema of the new kind.
		unknown := err != nil && strings.Contains(err.Error(), "There can be a delay between when CustomResourceDefinitions are created")
		if err != nil && !unknown {
			t.Fatal(err)
		}
		_, denied := create(free, fmt.Sprint("large-", i), "large", nil, nil)
		if !unknown && obj.GetAnnotations()["admission.example.com/owner"] != "" && denied != nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the policies have no effect: %v, %v, %v", obj, err, denied)
		}
	}

	small, err := create(free, "small", "small", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := small.Object["spec"].(map[string]any)
	if spec["replicas"] != int64(1) || spec["minReplicas"] != int64(0) {
		t.Errorf("the spec with its defaults is %v", spec)
	}
	if owner := small.GetAnnotations()["admission.example.com/owner"]; owner == "" {
		t.Error("the policy has not set the owner")
	}
	if _, err := create(paid, "large", "large", nil, nil); err != nil {
		t.Errorf("class large in a namespace with the label: %v", err)
	}
	if obj, err := create(free, "owned", "small", nil, map[string]string{"admission.example.com/owner": "ann"}); err != nil || obj.GetAnnotations()["admission.example.com/owner"] != "ann" {
		t.Errorf("an object with an owner: %v, %v", obj, err)
	}
	for _, test := range []struct {
		name, class string
		spec        map[string]any
		want        string
	}{
		{"maximum", "small", map[string]any{"replicas": int64(101)}, "should be less than or equal to 100"},
		{"enum", "medium", nil, `supported values: "small", "large"`},
		{"rule", "small", map[string]any{"minReplicas": int64(3), "replicas": int64(2)}, "spec.minReplicas: Invalid value: minReplicas is more than replicas"},
		{"policy", "large", nil, "class large needs a namespace with the label tier=paid"},
	} {
		if _, err := create(free, test.name, test.class, test.spec, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want %q in it", test.name, err, test.want)
		}
	}
	_, err = gadgets.Namespace(free).Patch(t.Context(), "small", types.MergePatchType, []byte(`{"spec":{"class":"large"}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "class cannot be changed") {
		t.Errorf("a change of the class: %v", err)
	}
}
