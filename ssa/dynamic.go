package ssa

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Dynamic returns the request function for unstructured objects of any kind. client is a
// dynamic.Interface, and mapper finds the resource of each kind. To apply to a
// subresource, name it: Dynamic(client, mapper, "status").
//
// If mapper does not know the kind of an object, the error comes before any request, and
// meta.IsNoMatchError is true for it. An object without the namespace that its kind
// needs is also an error, and a cluster-scoped object with a namespace. Field validation is strict: the
// API server rejects unknown and duplicate fields.
//
// The function is safe for concurrent use if client and mapper are.
func Dynamic[N interface{ Namespace(string) R }, R apply.Patcher](client interface {
	Resource(schema.GroupVersionResource) N
}, mapper meta.RESTMapper, subresources ...string) func(context.Context, *unstructured.Unstructured, metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	var resource func(gvr schema.GroupVersionResource, namespace string) apply.Patcher
	if !kube.IsNil(client) {
		resource = func(gvr schema.GroupVersionResource, namespace string) apply.Patcher {
			return client.Resource(gvr).Namespace(namespace)
		}
	}
	return func(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
		return apply.Dynamic(ctx, resource, mapper, config, opts, subresources...)
	}
}
