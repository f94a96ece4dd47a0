package operator

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A resource is one that the operator reads and writes by itself. It is the informer of [For] for
// its own registrations.
type resource[T controllerkit.Object] struct {
	about
	client   *crd.Client[T]
	informer cache.SharedIndexInformer
	indexer  cache.Indexer // of the informer
	lister   copies[T]
}

// about describes a resource.
type about struct {
	kind      schema.GroupVersionKind
	name      schema.GroupResource
	given     bool   // its informer is that of Inform
	namespace string // of its informer, unless it is given
}

func (a about) info() about { return a }

// copies reads private copies of the objects of a cache.
type copies[T any] interface {
	Get(namespace, name string) (T, error)
	List(namespace string, selector labels.Selector) ([]T, error)
}

// Informer, Lister and GroupVersionKind are for registrations.
func (r *resource[T]) Informer() cache.SharedIndexInformer       { return r.informer }
func (r *resource[T]) Lister() copies[T]                         { return r.lister }
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
// the Go type.
func resourceOf[T controllerkit.Object](op *Operator, gvr schema.GroupVersionResource) (*resource[T], error) {
	name := gvr.GroupResource()
	if known, ok := op.resources[name]; ok {
		r, ok := known.(*resource[T])
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has two Go types, %s and %s: use one", name, reflect.TypeOf(known).Elem(), reflect.TypeFor[T]())
		case r.kind.Version != gvr.Version:
			return nil, fmt.Errorf("%s has two versions, %s and %s: use one", name, r.kind.Version, gvr.Version)
		}
		return r, nil
	}
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%s: the Go type is %s: use a pointer to a struct, such as *v1.Website", name, typ)
	}
	r := &resource[T]{about: about{kind: gvr.GroupVersion().WithKind(typ.Elem().Name()), name: name}}
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

// inform sets the informer: that of Inform, otherwise a new one. For a kind that the API server sends in
// protobuf it is a compact one. JSON is expensive to decode, so the cache of another kind holds decoded objects.
func (r *resource[T]) inform(op *Operator) error {
	own := op.informers[r.name]
	r.namespace = op.options.Namespace
	var fresh T
	_, protobuf := any(fresh).(interface{ Unmarshal([]byte) error })
	switch {
	case own != nil:
		r.informer, r.given = own, true
	case protobuf:
		made, err := compact.New[T](r.client.RESTClient(), r.name.Resource, compact.Options{Namespace: r.namespace, Kind: r.kind.Kind, ManagedFields: true})
		if err != nil {
			return err
		}
		r.informer = made
	default:
		r.informer = r.client.Namespace(r.namespace).Informer(0, nil).Informer()
	}
	r.indexer = r.informer.GetIndexer()
	if own, ok := r.informer.(copies[T]); ok { // of package compact
		r.lister = own
		return nil
	}
	r.lister = copying[T]{r.client.Lister(r.indexer)}
	return nil
}

// copying copies the objects of a lister.
type copying[T controllerkit.Object] struct{ lister crd.Lister[T] }

func (c copying[T]) Get(namespace, name string) (T, error) {
	obj, err := c.lister.Namespace(namespace).Get(name)
	if err != nil {
		return obj, err
	}
	return obj.DeepCopyObject().(T), nil
}

func (c copying[T]) List(namespace string, selector labels.Selector) ([]T, error) {
	found, err := c.lister.Namespace(namespace).List(selector)
	for i, obj := range found {
		found[i] = obj.DeepCopyObject().(T)
	}
	return found, err
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
