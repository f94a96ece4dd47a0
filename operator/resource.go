package operator

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/optional"
)

// A resource is one that the operator reads and writes by itself. It is the informer of [For] for
// its own registrations.
type resource[T controllerkit.Object] struct {
	about
	client   *crd.Client[T]
	informer cache.SharedIndexInformer
	indexer  cache.Indexer      // of the informer
	served   *optional.Informer // nil unless it is optional
}

// about describes a resource.
type about struct {
	kind      schema.GroupVersionKind
	name      schema.GroupResource
	given     bool   // its informer is that of Inform
	optional  bool   // the API server need not serve it
	namespace string // of its informer, unless it is given
}

func (a about) info() about { return a }

// Informer, Lister and GroupVersionKind are for registrations.
func (r *resource[T]) Informer() cache.SharedIndexInformer       { return r.informer }
func (r *resource[T]) Lister() struct{}                          { return struct{}{} } // see remember
func (r *resource[T]) GroupVersionKind() schema.GroupVersionKind { return r.kind }

// Inform makes [Kind] and [Children] use an informer of the caller for a resource, for example one
// of package scope. The informer must hold objects of the Go type that Kind or Children names, with
// their managedFields. Call Inform before Kind and Children. Without it they make an informer of
// Options.Namespace.
func (op *Operator) Inform(resource schema.GroupResource, informer cache.SharedIndexInformer) {
	switch _, used := op.resources[resource]; {
	case kube.IsNil(informer):
		op.fail("Inform: the informer of %s is nil", resource)
	case used, op.informers[resource] != nil:
		op.fail("Inform: %s has an informer already: call Inform once, before Kind and Children", resource)
	default:
		op.informers[resource] = informer
	}
}

// resourceOf returns the resource, a new one for its first registration. Its kind has the name of
// the Go type. optional is whether the API server need not serve it.
func resourceOf[T controllerkit.Object](op *Operator, gvr schema.GroupVersionResource, optional bool) (*resource[T], error) {
	name := gvr.GroupResource()
	if known, ok := op.resources[name]; ok {
		r, ok := known.(*resource[T])
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has two Go types, %s and %s: use one", name, reflect.TypeOf(known).Elem(), reflect.TypeFor[T]())
		case r.kind.Version != gvr.Version:
			return nil, fmt.Errorf("%s has two versions, %s and %s: use one", name, r.kind.Version, gvr.Version)
		case r.optional != optional:
			return nil, fmt.Errorf("%s is optional in one registration only: set Reading.Optional in all, or in none; that of Kind and Children is required", name)
		}
		return r, nil
	}
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%s: the Go type is %s: use a pointer to a struct, such as *v1.Website", name, typ)
	}
	r := &resource[T]{about: about{kind: gvr.GroupVersion().WithKind(typ.Elem().Name()), name: name, optional: optional}}
	if op.http == nil {
		var err error
		if op.http, err = rest.HTTPClientFor(op.Config); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
	}
	var err error
	if r.client, err = crd.NewForConfigAndClient[T](op.Config, op.http, r.kind, gvr.Resource); err != nil {
		return nil, err
	}
	if err := r.inform(op); err != nil {
		return nil, err
	}
	if err := r.informer.AddIndexers(cache.Indexers{ownerIndex: ownersOf}); err != nil {
		return nil, fmt.Errorf("index %s by owner: %w", name, err)
	}
	op.resources[name] = r
	return r, nil
}

// inform sets the informer: that of Inform, otherwise a new one.
func (r *resource[T]) inform(op *Operator) (err error) {
	own := op.informers[r.name]
	r.namespace = op.options.Namespace
	switch {
	case own != nil && r.optional:
		return fmt.Errorf("%s has an informer of Inform, which cannot be optional: leave one of them out", r.name)
	case own != nil:
		r.informer, r.given, r.namespace = own, true, ""
	case r.optional:
		made := optional.New(r.kind, r.name, r.namespace, r.make)
		op.optional = append(op.optional, made)
		r.informer, r.served = made, made
	default:
		if r.informer, err = r.make(r.namespace); err != nil {
			return err
		}
	}
	r.indexer = r.informer.GetIndexer()
	return nil
}

// make returns a new informer of a namespace. For a kind that the API server sends in protobuf it is a
// compact one. JSON is expensive to decode, so the cache of another kind holds decoded objects.
func (r *resource[T]) make(namespace string) (cache.SharedIndexInformer, error) {
	var fresh T
	if _, protobuf := any(fresh).(interface{ Unmarshal([]byte) error }); protobuf {
		return compact.New[T](r.client.RESTClient(), r.name.Resource, compact.Options{Namespace: namespace, Kind: r.kind.Kind, ManagedFields: true})
	}
	return r.client.Namespace(namespace).Informer(0, nil).Informer(), nil
}

const (
	// ownerIndex has the children of each owner, by its UID.
	ownerIndex = headers.Index + "owner"

	// ownerUID labels a child that cannot have an owner reference, and ownerName is its annotation.
	ownerUID  = "controllerkit.io/owner-uid"
	ownerName = "controllerkit.io/owner"
)

// ownersOf is the function of ownerIndex.
func ownersOf(obj any) ([]string, error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil //nolint:nilerr // it is in no index
	}
	if controller := metav1.GetControllerOfNoCopy(o); controller != nil {
		return []string{string(controller.UID)}, nil
	}
	if uid := o.GetLabels()[ownerUID]; uid != "" {
		return []string{uid}, nil
	}
	return nil, nil
}

// owned returns the metadata of the children in the cache that an owner has.
func (r *resource[T]) owned(owner types.UID) (children []metav1.Object, err error) {
	keys, err := r.indexer.IndexKeys(ownerIndex, string(owner))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if child, ok := headers.Get(r.informer.GetStore(), key); ok {
			children = append(children, child)
		}
	}
	return children, nil
}

// get returns the object in the cache, which must not be modified. ok is false if there is none.
func (r *resource[T]) get(namespace, name string) (obj T, ok bool, err error) {
	item, ok, err := r.indexer.GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
	if err != nil || !ok {
		return obj, false, err
	}
	if obj, ok = item.(T); !ok {
		return obj, false, fmt.Errorf("the cache of %s has a %T: use an informer of %T", r.name, item, obj)
	}
	return obj, true, nil
}
