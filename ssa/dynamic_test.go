package ssa_test

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

// A missing argument is an error that names it, before any request.
//
// Proves CK2.
func TestDynamicNil(t *testing.T) {
	fake := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	good := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`)
	tests := []struct {
		name    string
		request func(context.Context, *unstructured.Unstructured, metav1.ApplyOptions) (*unstructured.Unstructured, error)
		config  *unstructured.Unstructured
		manager ssa.FieldManager
		want    string
	}{
		{name: "client", request: ssa.Dynamic((*dynamic.DynamicClient)(nil), meta.NewDefaultRESTMapper(nil)), config: good, manager: manager, want: "dynamic client is nil"},
		{name: "mapper", request: ssa.Dynamic(fake, nil), config: good, manager: manager, want: "RESTMapper is nil"},
		{name: "mapper that is nil", request: ssa.Dynamic(fake, (*meta.DefaultRESTMapper)(nil)), config: good, manager: manager, want: "RESTMapper is nil"},
		{name: "configuration", request: ssa.Dynamic(fake, meta.NewDefaultRESTMapper(nil)), manager: manager, want: "configuration is nil"},
		{name: "manager", request: ssa.Dynamic(fake, meta.NewDefaultRESTMapper(nil)), config: good, want: "field manager"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			options := metav1.ApplyOptions{FieldManager: string(tt.manager)}
			_, err := tt.request(t.Context(), tt.config, options)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(fake.Actions()) != 0 {
				t.Errorf("error %v with %d requests, want %s", err, len(fake.Actions()), tt.want)
			}
		})
	}
}
