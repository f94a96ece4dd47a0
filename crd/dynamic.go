package crd

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Dynamic returns a dynamic client with the method signatures of a typed one. Each package
// of this library that accepts a typed client accepts it. If client is nil, the result is
// nil, which the packages of this library reject.
func Dynamic(client dynamic.ResourceInterface) *DynamicClient {
	if kube.IsNil(client) {
		return nil
	}
	return &DynamicClient{client}
}

// DynamicClient is a client of unstructured objects. [Dynamic] makes one. Its methods
// without subresources replace the dynamic client's.
type DynamicClient struct {
	// ResourceInterface has the other methods. Required.
	dynamic.ResourceInterface
}

// Get returns the object of that name.
func (c *DynamicClient) Get(ctx context.Context, name string, opts metav1.GetOptions) (*unstructured.Unstructured, error) {
	return c.ResourceInterface.Get(ctx, name, opts)
}

// Create creates obj, and returns it as the API server stored it.
func (c *DynamicClient) Create(ctx context.Context, obj *unstructured.Unstructured, opts metav1.CreateOptions) (*unstructured.Unstructured, error) {
	return c.ResourceInterface.Create(ctx, obj, opts)
}

// Update replaces the object.
func (c *DynamicClient) Update(ctx context.Context, obj *unstructured.Unstructured, opts metav1.UpdateOptions) (*unstructured.Unstructured, error) {
	return c.ResourceInterface.Update(ctx, obj, opts)
}

// Delete deletes the object of that name.
func (c *DynamicClient) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.ResourceInterface.Delete(ctx, name, opts)
}

// Apply applies config by server-side apply to the object of its name.
func (c *DynamicClient) Apply(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	if config == nil {
		return nil, errNoConfiguration
	}
	return c.ResourceInterface.Apply(ctx, config.GetName(), config, opts)
}

// ApplyStatus is Apply for the status alone.
func (c *DynamicClient) ApplyStatus(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	if config == nil {
		return nil, errNoConfiguration
	}
	return c.ResourceInterface.ApplyStatus(ctx, config.GetName(), config, opts)
}

var errNoConfiguration = errors.New("crd: apply: the configuration is nil: pass an *unstructured.Unstructured with the fields to own")
