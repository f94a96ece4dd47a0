package crd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// ErrNotServed is wrapped by the error of a request for a resource or subresource that the
// API server does not serve. Install the CustomResourceDefinition, or correct the group,
// version, resource name or namespace. The error of a request for one object does not wrap
// the server's 404 response, so that it cannot be taken for that of a deleted object.
var ErrNotServed = errors.New("crd: the API server does not serve the resource")

// Client reads and writes the objects of one resource. [New] makes one, and for unit tests
// package crdtest. Its methods have the signatures of a client made by client-gen. If a
// method returns an error, its object is nil, except the list beside an [ErrMalformed].
// A Client is safe for concurrent use.
type Client[T controllerkit.Object] struct {
	kind      *kind[T]
	namespace string
}

// kind has the fields that all clients of a resource share.
type kind[T controllerkit.Object] struct {
	schema.GroupVersionKind
	resource schema.GroupVersionResource
	scheme   *runtime.Scheme // knows T and its list alone
	options  runtime.ParameterCodec
	rest     rest.Interface
	keeping  rest.Interface // whose events can have a *malformed.Object
	unknown  unknownFields
}

// New returns the client of all namespaces, or of a cluster-scoped resource. kind is T's
// kind, such as example.com/v1, Kind=Website, and resource is its plural name, such as
// "websites". New sends no request. Requests and responses are JSON, or CBOR if client-go's
// feature gates enable it.
//
// New copies config. Of it, New ignores GroupVersion, APIPath, NegotiatedSerializer and
// the content types.
func New[T controllerkit.Object](config *rest.Config, kind schema.GroupVersionKind, resource string) (*Client[T], error) {
	if config == nil {
		return nil, errNoConfig
	}
	if config.UserAgent == "" { // the API server makes a field manager of it
		config = rest.CopyConfig(config)
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("crd: config: %w", err)
	}
	return NewForConfigAndClient[T](config, h, kind, resource)
}

var errNoConfig = errors.New("crd: config is nil: pass the configuration of the cluster")

// NewForConfigAndClient is [New] with the http.Client of other clients, whose transport it
// shares. To share their rate limiter as well, set config.RateLimiter.
func NewForConfigAndClient[T controllerkit.Object](config *rest.Config, h *http.Client, kind schema.GroupVersionKind, resource string) (*Client[T], error) {
	if config == nil {
		return nil, errNoConfig
	}
	if h == nil {
		return nil, errors.New("crd: the http.Client is nil: pass the result of rest.HTTPClientFor, or call New")
	}
	k, err := newKind[T](kind, resource)
	if err != nil {
		return nil, err
	}
	config = dynamic.ConfigFor(config) // a copy with the content types that every custom resource has
	config.APIPath = "/apis"
	if kind.Group == "" {
		config.APIPath = "/api"
	}
	gv := kind.GroupVersion()
	config.GroupVersion = &gv
	config.NegotiatedSerializer = newCodecs(k, false)
	if k.rest, err = rest.RESTClientForConfigAndClient(config, h); err != nil {
		return nil, fmt.Errorf("crd: config: %w", err)
	}
	config.RateLimiter = k.rest.GetRateLimiter()
	config.NegotiatedSerializer = newCodecs(k, true)
	if k.keeping, err = rest.RESTClientForConfigAndClient(config, h); err != nil {
		return nil, fmt.Errorf("crd: config: %w", err)
	}
	k.options = runtime.NewParameterCodec(k.scheme)
	return &Client[T]{kind: k}, nil
}

func (k *kind[T]) new() T {
	return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
}

func (k *kind[T]) newList() *List[T] { return &List[T]{} }

// newKind checks the type, the kind and the resource.
func newKind[T controllerkit.Object](gvk schema.GroupVersionKind, resource string) (*kind[T], error) {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer || typ.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("crd: T is %s: use a pointer to a struct, such as *v1.Website", typ)
	}
	k := &kind[T]{GroupVersionKind: gvk, resource: gvk.GroupVersion().WithResource(resource)}
	obj := k.new()
	switch any(obj).(type) {
	case *unstructured.Unstructured:
		return nil, errors.New("crd: T is *unstructured.Unstructured: use Dynamic")
	case *metav1.PartialObjectMetadata:
		return nil, errors.New("crd: T is *metav1.PartialObjectMetadata: use k8s.io/client-go/metadata")
	}
	if problems := validation.IsDNS1035Label(strings.ToLower(gvk.Kind)); len(problems) > 0 {
		return nil, fmt.Errorf("crd: kind has Kind %q: use the name in CamelCase, such as Website", gvk.Kind)
	}
	if gvk.Kind == typ.Elem().Name()+"List" {
		return nil, fmt.Errorf("crd: kind has Kind %q, the list's: use %q", gvk.Kind, typ.Elem().Name())
	}
	if problems := validation.IsDNS1035Label(gvk.Version); len(problems) > 0 {
		return nil, fmt.Errorf("crd: kind has Version %q: use the version alone, such as v1", gvk.Version)
	}
	if problems := validation.IsDNS1123Subdomain(gvk.Group); gvk.Group != "" && len(problems) > 0 {
		return nil, fmt.Errorf("crd: kind has Group %q: use the group alone, such as example.com", gvk.Group)
	}
	if problems := validation.IsDNS1035Label(resource); len(problems) > 0 {
		return nil, fmt.Errorf("crd: resource is %q: use the plural name alone, such as websites", resource)
	}
	if copied, ok := obj.DeepCopyObject().(T); !ok || kube.IsNil(copied) {
		return nil, fmt.Errorf("crd: T is %s, whose DeepCopyObject returns %T: generate it with controller-gen object", typ, obj.DeepCopyObject())
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	obj.SetName("name")
	var got metav1.PartialObjectMetadata
	data, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || got.GroupVersionKind() != gvk || got.Name != "name" {
		return nil, fmt.Errorf("crd: T is %s, whose JSON lacks apiVersion, kind or metadata.name: embed metav1.TypeMeta with the tag json:\",inline\" and metav1.ObjectMeta with json:\"metadata,omitempty\"", typ)
	}
	return k, k.register()
}

// Namespace returns the client of one namespace. "" means all namespaces.
func (c *Client[T]) Namespace(namespace string) *Client[T] {
	return &Client[T]{kind: c.kind, namespace: namespace}
}

// RESTClient returns the client of the group and version, as that of a generated clientset does, for
// example for compact.New.
func (c *Client[T]) RESTClient() rest.Interface { return c.kind.rest }

// Get returns the object of that name.
func (c *Client[T]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	return c.object(ctx, "get", c.one(c.kind.rest.Get(), name, &opts))
}

// List returns the selected objects. With opts.Limit it returns a page. If some do not fit the
// Go type, List returns the others and an [ErrMalformed] that names up to 10 of them.
func (c *Client[T]) List(ctx context.Context, opts metav1.ListOptions) (*List[T], error) {
	p, err := c.page(ctx, opts)
	if err != nil {
		return nil, err
	}
	return p.List, malformed.Join(p.malformed)
}

// Watch returns the changes of the selected objects. The caller must stop it. Package
// watcher has a watch that survives failures.
func (c *Client[T]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, c.kind.rest, opts)
}

func (c *Client[T]) watch(ctx context.Context, client rest.Interface, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	w, err := c.all(client.Get(), &opts).Watch(ctx)
	return result(c.kind, "watch", "", w, err)
}

// Create creates obj, and returns it as the API server stored it.
func (c *Client[T]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	obj, err := c.own("create", obj)
	if err != nil {
		return obj, err
	}
	opts.FieldValidation = cmp.Or(opts.FieldValidation, metav1.FieldValidationStrict)
	return c.object(ctx, "create", c.in(c.kind.rest.Post()).VersionedParams(&opts, c.kind.options).Body(obj))
}

// Update replaces the object, except its status if the resource has that subresource. It
// removes the fields that T lacks: if a response for one object had such a field, the next
// Update logs its name, once for each client. With a resourceVersion in obj, a newer object
// is a Conflict.
func (c *Client[T]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.update(ctx, obj, opts)
}

// UpdateStatus is [Client.Update] for the status alone. If the resource has no such
// subresource, the error is an [ErrNotServed]: the server answers such a request as it does
// for a deleted object, so after that answer the client asks which subresources are served.
func (c *Client[T]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.update(ctx, obj, opts, "status")
}

func (c *Client[T]) update(ctx context.Context, obj T, opts metav1.UpdateOptions, subresources ...string) (T, error) {
	obj, err := c.own("update", obj)
	if err != nil {
		return obj, err
	}
	c.kind.unknown.log(ctx, c.kind.resource, obj)
	opts.FieldValidation = cmp.Or(opts.FieldValidation, metav1.FieldValidationStrict)
	return c.object(ctx, "update", c.one(c.kind.rest.Put(), obj.GetName(), &opts, subresources...).Body(obj), subresources...)
}

// Delete deletes the object of that name.
func (c *Client[T]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	err := c.in(c.kind.rest.Delete()).Name(name).Body(&opts).Do(ctx).Error()
	_, err = result(c.kind, "delete", "", 0, err)
	return err
}

// DeleteCollection deletes the selected objects.
func (c *Client[T]) DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, listOpts metav1.ListOptions) error {
	err := c.all(c.kind.rest.Delete(), &listOpts).Body(&opts).Do(ctx).Error()
	_, err = result(c.kind, "deletecollection", "", 0, err)
	return err
}

// Patch changes the object of that name, and returns it. The fields that T lacks stay.
func (c *Client[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	opts.FieldValidation = cmp.Or(opts.FieldValidation, metav1.FieldValidationStrict)
	return c.object(ctx, "patch", c.one(c.kind.rest.Patch(pt), name, &opts, subresources...).Body(data), subresources...)
}

// Apply applies the configuration by server-side apply, as opts.FieldManager. See the
// package comment for the types of configuration. The API server rejects a field of
// the configuration that the schema lacks.
func (c *Client[T]) Apply(ctx context.Context, config any, opts metav1.ApplyOptions) (T, error) {
	return c.apply(ctx, config, opts)
}

// ApplyStatus is [Client.Apply] for the status alone. It creates no object.
func (c *Client[T]) ApplyStatus(ctx context.Context, config any, opts metav1.ApplyOptions) (T, error) {
	return c.apply(ctx, config, opts, "status")
}

func (c *Client[T]) apply(ctx context.Context, config any, opts metav1.ApplyOptions, subresources ...string) (T, error) {
	var none T
	if err := apply.CheckManager(opts.FieldManager); err != nil {
		return none, fmt.Errorf("crd: apply: %w", err)
	}
	name, data, err := apply.EncodeFor(config, c.kind.GroupVersionKind, c.namespace)
	if err != nil {
		return none, fmt.Errorf("crd: apply: %w", err)
	}
	return c.Patch(ctx, name, types.ApplyPatchType, data, opts.ToPatchOptions(), subresources...)
}

// in returns a request for the resource in the namespace of the client.
func (c *Client[T]) in(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.kind.resource.Resource)
}

// one returns a request for the object of that name.
func (c *Client[T]) one(r *rest.Request, name string, opts runtime.Object, subresources ...string) *rest.Request {
	return c.in(r).Name(name).SubResource(subresources...).VersionedParams(opts, c.kind.options)
}

// all returns a request for the selected objects.
func (c *Client[T]) all(r *rest.Request, opts *metav1.ListOptions) *rest.Request {
	r = c.in(r).VersionedParams(opts, c.kind.options)
	if opts.TimeoutSeconds != nil {
		r.Timeout(time.Duration(*opts.TimeoutSeconds) * time.Second)
	}
	return r
}

// object sends a request whose response is an object.
func (c *Client[T]) object(ctx context.Context, verb string, r *rest.Request, subresources ...string) (T, error) {
	obj := c.kind.new()
	err := r.Do(ctx).Into(obj)
	sub := ""
	if len(subresources) > 0 {
		sub = "/" + strings.Join(subresources, "/")
	}
	if sub != "" && apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err) && c.kind.lacks(ctx, sub) {
		var none T
		return none, c.kind.notServed(verb, sub, err)
	}
	return result(c.kind, verb, sub, obj, err)
}

// lacks reports whether the API server serves the resource without the subresource. It
// returns false if the server does not tell.
func (k *kind[T]) lacks(ctx context.Context, subresource string) bool {
	path := []string{"/apis", k.Group, k.Version}
	if k.Group == "" {
		path = []string{"/api", k.Version}
	}
	text, err := k.rest.Get().AbsPath(path...).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	var served metav1.APIResourceList
	if err != nil || json.Unmarshal(text, &served) != nil {
		return false
	}
	has := func(name string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	}
	return has(k.resource.Resource) && !has(k.resource.Resource+subresource)
}

// notServed returns the ErrNotServed of a request.
func (k *kind[T]) notServed(verb, subresource string, err error) error {
	text := fmt.Sprintf("%s %s%s in version %q: install the CustomResourceDefinition, or check group, version, resource name and subresource; if the resource is namespaced, use Client.Namespace",
		verb, k.resource.GroupResource(), subresource, k.Version)
	if verb == "list" || verb == "watch" {
		return fmt.Errorf("%w: %s: %w", ErrNotServed, text, err) // informers look for the 404
	}
	return fmt.Errorf("%w: %s: %s", ErrNotServed, text, kube.Printable(err.Error(), maxError))
}

// maxError bounds the text of a response in an error, in bytes.
const maxError = 2048

// own returns a copy of obj, which client-go modifies while it encodes it.
func (c *Client[T]) own(verb string, obj T) (T, error) {
	var none T
	if kube.IsNil(obj) {
		return none, fmt.Errorf("crd: %s: the object is nil: pass a %T", verb, obj)
	}
	if err := kube.CheckNamespace(obj, c.namespace); err != nil {
		return none, fmt.Errorf("crd: %s: %w", verb, err)
	}
	return obj.DeepCopyObject().(T), nil
}

// result returns the response of a request, or its error. It adds the cure if the error of
// the API server does not name it.
func result[T controllerkit.Object, R any](k *kind[T], verb, subresource string, response R, err error) (R, error) {
	var none R
	resource := k.resource.GroupResource().String()
	switch {
	case err == nil:
		return response, nil
	case apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err):
		err = k.notServed(verb, subresource, err)
	case apierrors.IsMethodNotSupported(err):
		err = fmt.Errorf("crd: %s %s%s: if the resource is namespaced, use Client.Namespace: %w", verb, resource, subresource, err)
	case kube.LacksRight(err, verb):
		err = fmt.Errorf("crd: a Role or ClusterRole must allow verbs [%q] on resources [%q] in apiGroups [%q]: %w", verb, k.resource.Resource+subresource, k.Group, err)
	}
	return none, err
}
