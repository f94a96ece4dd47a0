package ssa_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

// What is missing is an error that names it, before a request, also where the methods
// are called by themselves.
//
// Proves A1, A10.
func TestDynamicNil(t *testing.T) {
	fake := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	good := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`)
	tests := []struct {
		name    string
		client  *ssa.DynamicClient
		config  *unstructured.Unstructured
		manager ssa.FieldManager
		want    string
	}{
		{name: "nil", client: nil, config: good, manager: manager, want: "client is nil"},
		{name: "zero", client: new(ssa.DynamicClient), config: good, manager: manager, want: "client is nil"},
		{name: "client", client: ssa.Dynamic((*dynamic.DynamicClient)(nil), batchMapper()), config: good, manager: manager, want: "client is nil"},
		{name: "mapper", client: ssa.Dynamic(fake, nil), config: good, manager: manager, want: "mapper is nil"},
		{name: "mapper that is nil", client: ssa.Dynamic(fake, (*resettable)(nil)), config: good, manager: manager, want: "mapper is nil"},
		{name: "configuration", client: ssa.Dynamic(fake, batchMapper()), manager: manager, want: "configuration is nil"},
		{name: "manager", client: ssa.Dynamic(fake, batchMapper()), config: good, want: "field manager"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			options := metav1.ApplyOptions{FieldManager: string(tt.manager)}
			_, err := tt.client.Apply(t.Context(), tt.config, options)
			_, statusErr := tt.client.ApplyStatus(t.Context(), tt.config, options)
			for _, err := range []error{err, statusErr} {
				if err == nil || !strings.Contains(err.Error(), tt.want) || len(fake.Actions()) != 0 {
					t.Errorf("error %v with %d requests, want %s", err, len(fake.Actions()), tt.want)
				}
			}
		})
	}
}
