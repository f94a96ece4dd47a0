package ssa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Patcher is the one method of a dynamic client's resource that [Dynamic] calls.
type Patcher interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error)
}

// DynamicClient applies unstructured objects of any kind. It is an [Applier] and a
// [StatusApplier], and safe for concurrent use if its client and its mapper are. The
// zero value, and what Dynamic makes of a nil client or mapper, answer with an error.
type DynamicClient struct {
	mapper   meta.RESTMapper
	resource func(gvr schema.GroupVersionResource, namespace string) Patcher
}

// Dynamic returns a client for unstructured objects from a dynamic.Interface and a
// RESTMapper, which finds the resource of each kind. The types N and R follow from
// client.
//
// Kinds that the mapper does not know are errors without a request (meta.IsNoMatchError
// is true), and so are a missing namespace and one that the kind does not have. Field
// validation is strict: fields that the kind does not have, and fields that are there
// twice, are errors.
func Dynamic[N interface {
	Patcher
	Namespace(string) R
}, R Patcher](client interface {
	Resource(schema.GroupVersionResource) N
}, mapper meta.RESTMapper) *DynamicClient {
	if isNil(client) {
		return &DynamicClient{} // says so when it is called
	}
	return &DynamicClient{mapper: mapper, resource: func(gvr schema.GroupVersionResource, namespace string) Patcher {
		if namespace == "" {
			return client.Resource(gvr)
		}
		return client.Resource(gvr).Namespace(namespace)
	}}
}

// Apply applies config to the resource of its kind.
func (c *DynamicClient) Apply(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	return c.apply(ctx, config, opts)
}

// ApplyStatus applies config to the status subresource.
func (c *DynamicClient) ApplyStatus(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	return c.apply(ctx, config, opts, "status")
}

func (c *DynamicClient) apply(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions, subresources ...string) (*unstructured.Unstructured, error) {
	switch {
	case c == nil || c.resource == nil:
		return nil, errors.New("the client is nil: pass a dynamic client to Dynamic")
	case isNil(c.mapper):
		return nil, errors.New("the mapper is nil: pass a RESTMapper to Dynamic")
	case config == nil:
		return nil, errors.New("the configuration is nil")
	}
	if err := FieldManager(opts.FieldManager).check(); err != nil {
		return nil, err
	}
	gvk := config.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("apiVersion and kind: find the resource of %s: %w", gvk, err)
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch namespace := config.GetNamespace(); {
	case namespaced && namespace == "":
		return nil, fmt.Errorf("metadata.namespace is empty, and %s %q lives in one", gvk.Kind, config.GetName())
	case !namespaced && namespace != "":
		return nil, fmt.Errorf("metadata.namespace is %q, and %s %q lives in none", namespace, gvk.Kind, config.GetName())
	}
	data, err := json.Marshal(config.Object)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	return c.resource(mapping.Resource, config.GetNamespace()).Patch(ctx, config.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager:    opts.FieldManager,
		Force:           &opts.Force,
		DryRun:          opts.DryRun,
		FieldValidation: metav1.FieldValidationStrict,
	}, subresources...)
}
