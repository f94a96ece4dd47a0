package managerkit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/managerkit/internal/bare"
	"github.com/controllerkit/controllerkit/managerkit/internal/typeof"
)

// A Client has the methods of a client made by client-gen, over the client of a manager.
// [NewClient] makes one. Get and List read from the API server and never from a cache. The
// other methods write through the manager's client, so that its wrappers apply to each
// write. If that client cannot send an option or a subresource of a call, the call returns
// an error. Typed objects have their apiVersion and kind, unlike those of client-gen.
//
// The objects that a Client receives are not modified. If a method returns an error, its
// object is nil. A Client is safe for concurrent use.
type Client[T client.Object] struct {
	kind      *clientKind[T]
	namespace string
}

// clientKind has the common part of the clients of a kind.
type clientKind[T client.Object] struct {
	schema.GroupVersionKind
	writes  client.Client
	live    client.Reader
	typ     reflect.Type // the struct of the objects, to which T points unless it is an interface
	untyped bool         // lists carry their apiVersion and kind
	bare    bare.Line
}

// NewClient returns the client of all namespaces, or of a cluster-scoped kind. The scheme
// of c must have T. NewClient sends no request.
//
// c is the client for writes: mgr.GetClient(). live is the reader for Get and List, which
// must read from the API server: mgr.GetAPIReader(). NewClient rejects a cache, and c
// itself, because the client of a manager reads from its cache. For a fake client, which
// has no cache, wrap it: struct{ client.Reader }{fake}.
func NewClient[T client.Object](c client.Client, live client.Reader) (*Client[T], error) {
	return NewClientForKind[T](c, live, schema.GroupVersionKind{})
}

// NewClientForKind is [NewClient] for objects whose Go type does not determine the kind:
// *unstructured.Unstructured, *metav1.PartialObjectMetadata, and types that the scheme
// has under several kinds. controller-runtime cannot create or update objects of
// *metav1.PartialObjectMetadata.
//
// For a reconciler of several kinds, T can be an interface, such as client.Object. The objects
// of the Client then have the type that the scheme has for the kind.
func NewClientForKind[T client.Object](c client.Client, live client.Reader, kind schema.GroupVersionKind) (*Client[T], error) {
	switch {
	case kube.IsNil(c):
		return nil, errors.New("managerkit: the client is nil: pass mgr.GetClient()")
	case kube.IsNil(live):
		return nil, errors.New("managerkit: live is nil: pass mgr.GetAPIReader()")
	case kube.IsSame(live, c):
		return nil, errors.New("managerkit: live is the client for writes, which can read from a cache: pass mgr.GetAPIReader(), or struct{ client.Reader }{fake} in a unit test")
	}
	if _, ok := live.(cache.Informers); ok {
		return nil, fmt.Errorf("managerkit: live is a cache (%T): pass mgr.GetAPIReader()", live)
	}
	typ, err := typeof.Of(reflect.TypeFor[T](), c.Scheme(), kind)
	if err != nil {
		return nil, fmt.Errorf("managerkit: %w", err)
	}
	k := &clientKind[T]{GroupVersionKind: kind, writes: c, live: live, typ: typ}
	obj := k.empty()
	switch any(obj).(type) {
	case *unstructured.Unstructured, *metav1.PartialObjectMetadata:
		k.untyped = true
		if kind.Version == "" || kind.Kind == "" || strings.HasSuffix(kind.Kind, "List") {
			return nil, fmt.Errorf("managerkit: the kind of the %s is %q: call NewClientForKind with the group, version and kind of one object", typ, kind)
		}
	default:
		if err := k.find(c.Scheme()); err != nil {
			return nil, err
		}
	}
	if copied, ok := obj.DeepCopyObject().(T); !ok || kube.IsNil(copied) {
		return nil, fmt.Errorf("managerkit: T is %s, whose DeepCopyObject returns %T: generate it with controller-gen object", typ, obj.DeepCopyObject())
	}
	return &Client[T]{kind: k}, nil
}

// find sets the kind of T, or checks the given one.
func (k *clientKind[T]) find(scheme *runtime.Scheme) error {
	if scheme == nil {
		return errors.New("managerkit: the client has no scheme: pass mgr.GetClient()")
	}
	kinds, _, err := scheme.ObjectKinds(k.empty())
	if err != nil {
		return fmt.Errorf("managerkit: the scheme of the client has no *%s: call the AddToScheme of its package: %w", k.typ, err)
	}
	switch {
	case k.GroupVersionKind.Empty() && len(kinds) == 1:
		k.GroupVersionKind = kinds[0]
	case k.GroupVersionKind.Empty():
		return fmt.Errorf("managerkit: the scheme has *%s as %v: call NewClientForKind with one of them", k.typ, kinds)
	case !slices.Contains(kinds, k.GroupVersionKind):
		return fmt.Errorf("managerkit: the kind is %q, and the scheme has *%s as %v: use NewClient, or one of these kinds", k.GroupVersionKind, k.typ, kinds)
	}
	return nil
}

// empty returns an object with its apiVersion and kind.
func (k *clientKind[T]) empty() T {
	obj := reflect.New(k.typ).Interface().(T)
	obj.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return obj
}

// emptyList returns a list of the kind.
func (k *clientKind[T]) emptyList() (client.ObjectList, error) {
	kind := k.GroupVersion().WithKind(k.Kind + "List")
	var list client.ObjectList
	switch any(k.empty()).(type) {
	case *unstructured.Unstructured:
		list = &unstructured.UnstructuredList{}
	case *metav1.PartialObjectMetadata:
		list = &metav1.PartialObjectMetadataList{}
	default:
		registered, err := k.writes.Scheme().New(kind)
		if err != nil {
			return nil, fmt.Errorf("the scheme of the client has no %s: register the list of *%s: %w", kind, k.typ, err)
		}
		typed, ok := registered.(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("the scheme of the client has %s as %T, which is no list: embed metav1.ListMeta", kind, registered)
		}
		list = typed
	}
	list.GetObjectKind().SetGroupVersionKind(kind)
	return list, nil
}

// response returns obj with its apiVersion and kind, as the manager's client does: programs take
// the kind of an owner reference from them.
func (k *clientKind[T]) response(obj T) T {
	obj.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return obj
}

// Namespace returns the client of one namespace. "" means all namespaces.
func (c *Client[T]) Namespace(namespace string) *Client[T] {
	return &Client[T]{kind: c.kind, namespace: namespace}
}

// Get returns the object of that name from the API server.
func (c *Client[T]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	var none T
	if err := c.scope("get", false); err != nil {
		return none, err
	}
	obj := c.kind.empty()
	if err := c.kind.live.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: name}, obj, &client.GetOptions{Raw: &opts}); err != nil {
		return none, err
	}
	return c.kind.response(obj), nil
}

// List returns the selected objects from the API server. With opts.Limit it returns a
// page. opts.TimeoutSeconds limits the request at the client.
func (c *Client[T]) List(ctx context.Context, opts metav1.ListOptions) (*crd.List[T], error) {
	if err := c.scope("list", true); err != nil {
		return nil, err
	}
	options, err := c.listOptions("list", opts)
	if err != nil {
		return nil, err
	}
	list, err := c.kind.emptyList()
	if err != nil {
		return nil, fmt.Errorf("managerkit: list: %w", err)
	}
	ctx, cancel := withTimeout(ctx, opts.TimeoutSeconds)
	defer cancel()
	if err := c.kind.live.List(ctx, list, options); err != nil {
		return nil, err
	}
	return c.kind.list(list)
}

// list converts a list.
func (k *clientKind[T]) list(list client.ObjectList) (*crd.List[T], error) {
	out := &crd.List[T]{
		ListMeta: metav1.ListMeta{
			ResourceVersion: list.GetResourceVersion(), Continue: list.GetContinue(), RemainingItemCount: list.GetRemainingItemCount(),
		},
		Items: make([]T, 0, meta.LenList(list)),
	}
	if k.untyped {
		out.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	}
	switch list := list.(type) {
	case *unstructured.UnstructuredList:
		metadata, _ := list.Object["metadata"].(map[string]any)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &out.ListMeta); err != nil {
			return nil, fmt.Errorf("managerkit: list: metadata: %w", err)
		}
	case metav1.ShardedListInterface:
		out.ShardInfo = list.GetShardInfo()
	}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(T)
		if !ok || kube.IsNil(obj) {
			return fmt.Errorf("%T has an item of type %T, want *%s", list, item, k.typ)
		}
		out.Items = append(out.Items, k.response(obj))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("managerkit: list: %w", err)
	}
	return out, nil
}

// Create creates obj, and returns it as the API server stored it.
func (c *Client[T]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return c.send("create", obj, func(own T) error {
		return c.kind.writes.Create(ctx, own, &client.CreateOptions{
			DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation, Raw: &opts,
		})
	})
}

// Update replaces the object, except its status if the resource has that subresource.
// With a resourceVersion in obj, a newer object is a Conflict.
func (c *Client[T]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.send("update", obj, func(own T) error {
		return c.kind.writes.Update(ctx, own, updateOptions(&opts))
	})
}

// UpdateStatus is [Client.Update] for the status alone.
func (c *Client[T]) UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return c.send("update the status", obj, func(own T) error {
		return c.kind.writes.Status().Update(ctx, own, &client.SubResourceUpdateOptions{UpdateOptions: *updateOptions(&opts)})
	})
}

func updateOptions(opts *metav1.UpdateOptions) *client.UpdateOptions {
	return &client.UpdateOptions{DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation, Raw: opts}
}

// check rejects a nil Client, a nil object, and one of another kind, which T as an interface allows.
func (c *Client[T]) check(verb string, obj T) error {
	switch typ := reflect.TypeOf(obj); {
	case c == nil:
		return fmt.Errorf("managerkit: %s: the Client is nil: make one with NewClient", verb)
	case kube.IsNil(obj):
		return fmt.Errorf("managerkit: %s: the object is nil: pass a *%s", verb, c.kind.typ)
	case typ != reflect.PointerTo(c.kind.typ):
		return fmt.Errorf("managerkit: %s: the object is a %s, and %s is *%s: use the client of its kind", verb, typ, c.kind, c.kind.typ)
	}
	return nil
}

// send calls write with a copy of obj, which becomes the response: controller-runtime
// clears it before it decodes.
func (c *Client[T]) send(verb string, obj T, write func(T) error) (T, error) {
	var none T
	if err := c.check(verb, obj); err != nil {
		return none, err
	}
	if err := kube.CheckNamespace(obj, c.namespace); err != nil {
		return none, fmt.Errorf("managerkit: %s: %w", verb, err)
	}
	if got := obj.GetObjectKind().GroupVersionKind(); !got.Empty() && got != c.kind.GroupVersionKind {
		return none, fmt.Errorf("managerkit: %s: apiVersion and kind of %q are those of %s: use those of %s", verb, obj.GetName(), got, c.kind)
	}
	if err := c.scope(verb, false); err != nil {
		return none, err
	}
	own := obj.DeepCopyObject().(T)
	own.SetNamespace(c.namespace)
	own.GetObjectKind().SetGroupVersionKind(c.kind.GroupVersionKind)
	if err := write(own); err != nil {
		return none, err
	}
	return c.kind.response(own), nil
}

// Delete deletes the object of that name.
func (c *Client[T]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if err := c.scope("delete", false); err != nil {
		return err
	}
	return c.kind.writes.Delete(ctx, c.named(name), deleteOptions(&opts))
}

// DeleteCollection deletes the selected objects.
func (c *Client[T]) DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, listOpts metav1.ListOptions) error {
	if err := c.scope("delete the collection", false); err != nil {
		return err
	}
	options, err := c.listOptions("delete the collection", listOpts)
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(ctx, listOpts.TimeoutSeconds)
	defer cancel()
	return c.kind.writes.DeleteAllOf(ctx, c.kind.empty(), &client.DeleteAllOfOptions{ListOptions: *options, DeleteOptions: *deleteOptions(&opts)})
}

func deleteOptions(opts *metav1.DeleteOptions) *client.DeleteOptions {
	return &client.DeleteOptions{
		GracePeriodSeconds: opts.GracePeriodSeconds, Preconditions: opts.Preconditions,
		PropagationPolicy: opts.PropagationPolicy, DryRun: opts.DryRun, Raw: opts,
	}
}

// Patch changes the object of that name, and returns it. At most one subresource can be
// given.
func (c *Client[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	var none T
	if err := c.scope("patch", false); err != nil {
		return none, err
	}
	obj, patch := c.named(name), client.RawPatch(pt, data)
	options := client.PatchOptions{
		DryRun: opts.DryRun, Force: opts.Force, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation, Raw: &opts,
	}
	var err error
	switch {
	case len(subresources) == 0:
		err = c.kind.writes.Patch(ctx, obj, patch, &options)
	case len(subresources) > 1:
		err = fmt.Errorf("managerkit: patch: the subresources are %q: controller-runtime takes at most one", subresources)
	case subresources[0] == "status":
		err = c.kind.writes.Status().Patch(ctx, obj, patch, &client.SubResourcePatchOptions{PatchOptions: options})
	default:
		err = c.kind.writes.SubResource(subresources[0]).Patch(ctx, obj, patch, &client.SubResourcePatchOptions{PatchOptions: options})
	}
	if err != nil {
		return none, err
	}
	if len(subresources) > 0 && obj.GetUID() == "" && obj.GetResourceVersion() == "" {
		return none, fmt.Errorf("managerkit: patch: the response of subresource %q is no %s: the API server carried the patch out, and returns another kind of object", subresources[0], c.kind)
	}
	return c.kind.response(obj), nil
}

// Apply applies the configuration by server-side apply, as opts.FieldManager. The
// configuration is a value whose JSON has apiVersion, kind, metadata.name and the fields
// to own: a generated configuration or an *unstructured.Unstructured. Package ssa infers
// the type of the configuration from the method, so convert it:
//
//	ssa.Apply(ctx, fieldManager, websites.Apply, any(config))
//
// If a transform of the cache removes the managedFields, ssa.ApplyChanged applies each time. The
// first no-op is logged, with the cure.
func (c *Client[T]) Apply(ctx context.Context, config any, opts metav1.ApplyOptions) (T, error) {
	return c.apply(ctx, config, opts)
}

// ApplyStatus is [Client.Apply] for the status alone. It creates no object.
func (c *Client[T]) ApplyStatus(ctx context.Context, config any, opts metav1.ApplyOptions) (T, error) {
	return c.apply(ctx, config, opts, "status")
}

func (c *Client[T]) apply(ctx context.Context, config any, opts metav1.ApplyOptions, subresources ...string) (T, error) {
	var none T
	if opts.FieldManager != "" { // otherwise a wrapper of the client may set it
		if err := apply.CheckManager(opts.FieldManager); err != nil {
			return none, fmt.Errorf("managerkit: apply: %w", err)
		}
	}
	name, data, err := apply.EncodeFor(config, c.kind.GroupVersionKind, c.namespace)
	if err != nil {
		return none, fmt.Errorf("managerkit: apply: %w", err)
	}
	patch := opts.ToPatchOptions()
	patch.FieldValidation = metav1.FieldValidationStrict
	response, err := c.Patch(ctx, name, types.ApplyPatchType, data, patch, subresources...)
	if err == nil {
		c.kind.bare.Check(ctx, c.kind.Kind, response)
	}
	return response, err
}

// named returns an object of that name, which a request fills with the response.
func (c *Client[T]) named(name string) T {
	obj := c.kind.empty()
	obj.SetNamespace(c.namespace)
	obj.SetName(name)
	return obj
}

// scope rejects a namespaced kind without a namespace, unless the request can have all
// namespaces. It also rejects a cluster-scoped kind with a namespace, which
// controller-runtime would ignore.
func (c *Client[T]) scope(verb string, all bool) error {
	namespaced, err := c.kind.writes.IsObjectNamespaced(c.kind.empty())
	switch {
	case meta.IsNoMatchError(err):
		return nil // the request fails, unless it is one to a fake without a RESTMapper
	case err != nil:
		return fmt.Errorf("managerkit: %s: find the scope of %s: %w", verb, c.kind, err)
	case namespaced && c.namespace == "" && !all:
		return fmt.Errorf("managerkit: %s: %s is namespaced, and the client has no namespace: use Client.Namespace", verb, c.kind)
	case !namespaced && c.namespace != "":
		return fmt.Errorf("managerkit: %s: %s is cluster-scoped, and the client has namespace %q: omit Client.Namespace", verb, c.kind, c.namespace)
	}
	return nil
}

// listOptions passes the selectors as text and parsed, because fakes and wrappers read
// the parsed ones only.
func (c *Client[T]) listOptions(verb string, opts metav1.ListOptions) (*client.ListOptions, error) {
	options := &client.ListOptions{Namespace: c.namespace, Limit: opts.Limit, Continue: opts.Continue, Raw: &opts}
	var err error
	switch {
	case opts.Watch:
		return nil, fmt.Errorf("managerkit: %s: opts.Watch is set: a Client has no watch, so use the manager's cache", verb)
	case opts.Limit < 0:
		return nil, fmt.Errorf("managerkit: %s: opts.Limit is %d: use 0 for all objects", verb, opts.Limit)
	}
	if opts.LabelSelector != "" {
		if options.LabelSelector, err = labels.Parse(opts.LabelSelector); err != nil {
			return nil, fmt.Errorf("managerkit: %s: opts.LabelSelector: %w", verb, err)
		}
	}
	if opts.FieldSelector != "" {
		if options.FieldSelector, err = fields.ParseSelector(opts.FieldSelector); err != nil {
			return nil, fmt.Errorf("managerkit: %s: opts.FieldSelector: %w", verb, err)
		}
	}
	return options, nil
}

// withTimeout ends the request after that time, as the clients of client-gen do.
func withTimeout(ctx context.Context, seconds *int64) (context.Context, context.CancelFunc) {
	if seconds == nil || *seconds <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Duration(min(*seconds, math.MaxInt32))*time.Second)
}
