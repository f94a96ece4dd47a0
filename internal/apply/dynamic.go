package apply

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

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Patcher is the method of a resource of a dynamic client that an apply calls.
type Patcher interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error)
}

// Dynamic applies an unstructured object to the resource of its kind.
func Dynamic(ctx context.Context, resource func(gvr schema.GroupVersionResource, namespace string) Patcher, mapper meta.RESTMapper, config *unstructured.Unstructured, opts metav1.ApplyOptions, subresources ...string) (*unstructured.Unstructured, error) {
	switch {
	case resource == nil:
		return nil, errors.New("the dynamic client is nil")
	case kube.IsNil(mapper):
		return nil, errors.New("the RESTMapper is nil")
	case config == nil:
		return nil, errors.New("the configuration is nil")
	}
	if err := CheckManager(opts.FieldManager); err != nil {
		return nil, err
	}
	gvk := config.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("apiVersion and kind: find the resource of %s: %w", gvk, err)
	}
	if err := CheckScope(mapping, config); err != nil {
		return nil, err
	}
	data, err := json.Marshal(config.Object)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	response, err := resource(mapping.Resource, config.GetNamespace()).Patch(ctx, config.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
		FieldManager:    opts.FieldManager,
		Force:           &opts.Force,
		DryRun:          opts.DryRun,
		FieldValidation: metav1.FieldValidationStrict,
	}, subresources...)
	return response, kube.WithoutValues(kube.AsRemovedVersion(err))
}

// CheckScope rejects an object with a namespace that its kind does not have, and one
// without the namespace that its kind needs.
func CheckScope(mapping *meta.RESTMapping, obj metav1.Object) error {
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch namespace := obj.GetNamespace(); {
	case namespaced && namespace == "":
		return fmt.Errorf("metadata.namespace is empty: %s is a namespaced resource, so set the namespace", mapping.Resource.Resource)
	case !namespaced && namespace != "":
		return fmt.Errorf("metadata.namespace is %q: %s is a cluster-scoped resource, so omit it", namespace, mapping.Resource.Resource)
	}
	return nil
}
