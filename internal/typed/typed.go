// Package typed is a client for objects of one type. The clients of client-go's package
// kubernetes, and its package discovery, import the types of every API group.
package typed

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// A Client has the requests of a generated client for one namespace, of those that the library
// needs. They return an empty object with an error. It is safe for concurrent use.
type Client[T Object] struct {
	client    rest.Interface
	codec     runtime.ParameterCodec
	resource  string
	namespace string
	empty     func() T
}

// New returns the client of a resource in all namespaces. addToScheme is the one of the package
// of T, and empty returns a new object.
func New[T Object](config *rest.Config, gv schema.GroupVersion, resource string, addToScheme func(*runtime.Scheme) error, empty func() T) (*Client[T], error) {
	scheme := runtime.NewScheme()
	if err := addToScheme(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.APIPath, own.GroupVersion = "/apis", &gv
	if gv.Group == "" {
		own.APIPath = "/api"
	}
	own.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, err
	}
	return &Client[T]{client: client, codec: runtime.NewParameterCodec(scheme), resource: resource, empty: empty}, nil
}

// In returns the client of a namespace.
func (c *Client[T]) In(namespace string) *Client[T] {
	in := *c
	in.namespace = namespace
	return &in
}

// Get returns the object of that name.
func (c *Client[T]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	return c.do(ctx, c.client.Get().Name(name), &opts)
}

// Create creates an object.
func (c *Client[T]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return c.do(ctx, c.client.Post().Body(obj), &opts)
}

// Update replaces an object.
func (c *Client[T]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.do(ctx, c.client.Put().Name(obj.GetName()).Body(obj), &opts)
}

// Patch patches an object.
func (c *Client[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	return c.do(ctx, c.client.Patch(pt).Name(name).SubResource(subresources...).Body(data), &opts)
}

// Watch watches objects.
func (c *Client[T]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return c.about(c.client.Get(), &opts).Watch(ctx)
}

func (c *Client[T]) do(ctx context.Context, r *rest.Request, opts runtime.Object) (T, error) {
	obj := c.empty()
	return obj, c.about(r, opts).Do(ctx).Into(obj)
}

// about makes a request concern the resource.
func (c *Client[T]) about(r *rest.Request, opts runtime.Object) *rest.Request {
	return r.UseProtobufAsDefaultIfPreferred(true).NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.resource).VersionedParams(opts, c.codec)
}
