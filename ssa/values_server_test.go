package ssa_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerValues: if the configuration of a Secret does not fit the schema, the API server quotes its values, and the
// error of an apply has the path alone.
func TestServerValues(t *testing.T) {
	namespace := testserver.Namespace(t)
	secrets := schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	client := dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(secrets.GroupVersion().WithResource("secrets")).Namespace(namespace)
	own := func(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
		data, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		return client.Patch(ctx, config.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: opts.FieldManager, Force: &opts.Force})
	}
	for _, tt := range []struct {
		name        string
		field, want string
		value       any
	}{
		{"a map for a text", "stringData", ".stringData.config: expected string", map[string]any{"config": map[string]any{"password": "hunter2"}}},
		{"two maps", "stringData", ": expected string", map[string]any{"a": map[string]any{"password": "hunter2"}, "b": map[string]any{"password": "hunter2"}}},
		{"a text for a map", "stringData", ".stringData: expected map", "first line\nhunter2"},
		{"a list for a map", "data", ".data: expected map", []any{"hunter2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, request := range map[string]func(context.Context, *unstructured.Unstructured, metav1.ApplyOptions) (*unstructured.Unstructured, error){
				"Dynamic": newDynamic(t, secrets).Apply, "another request": own,
			} {
				_, err := ssa.Apply(t.Context(), manager, request, &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "one", "namespace": namespace}, tt.field: tt.value,
				}})
				var status apierrors.APIStatus
				if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &status) || status.Status().Code != 500 {
					t.Errorf("%s: error %v, want one with %s", name, err, tt.want)
				}
				if status != nil && !strings.Contains(status.Status().Message, "hunter2") {
					t.Errorf("%s: the response has no value, so the test shows nothing: %v", name, status.Status().Message)
				}
			}
		})
	}
}
