// Package objects has the resources that an operator reads and writes by itself: their clients and informers.
package objects

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/managedfields"
	"github.com/controllerkit/controllerkit/operator/internal/optional"
	"github.com/controllerkit/controllerkit/ssa"
)

// A Set has the resources of an operator. The zero value has none.
type Set struct {
	Optional []*optional.Informer

	// From returns the informers of required resources that are not given. nil means new ones.
	From func(kind schema.GroupVersionKind, obj controllerkit.Object) (cache.SharedIndexInformer, error)

	http  *http.Client                                       // of all clients
	known map[schema.GroupResource]any                       // a *Resource[T] of each
	own   map[schema.GroupResource]cache.SharedIndexInformer // of the caller
}

// Inform gives the informer of a resource, before its first Of.
func (s *Set) Inform(name schema.GroupResource, informer cache.SharedIndexInformer) error {
	switch _, used := s.known[name]; {
	case kube.IsNil(informer):
		return fmt.Errorf("the informer of %s is nil", name)
	case used, s.own[name] != nil:
		return fmt.Errorf("%s has an informer already: call Inform once, before Kind, Children and Reads", name)
	}
	if s.own == nil {
		s.own = map[schema.GroupResource]cache.SharedIndexInformer{}
	}
	s.own[name] = informer
	return nil
}

// A Mode is how the objects of a resource are watched.
type Mode string

// The modes.
const (
	Required Mode = "required"
	Optional Mode = "optional" // the API server need not serve it
	Single   Mode = "single"   // each by itself. The resource's informer does not run
)

// ModeOf returns the mode of a resource with settings that exclude each other.
func ModeOf(optional, single bool) Mode {
	switch {
	case optional:
		return Optional
	case single:
		return Single
	default:
		return Required
	}
}

// A Resource has the objects of a Go type. It is the informer of operator.For for the operator's own registrations.
type Resource[T controllerkit.Object] struct {
	About
	Client *crd.Client[T]
	Served *optional.Informer // nil unless it is optional

	informer cache.SharedIndexInformer
	indexer  cache.Indexer // of the informer
}

// About describes a resource.
type About struct {
	Kind      schema.GroupVersionKind
	Name      schema.GroupResource
	Mode      Mode
	Given     bool   // its informer is that of Set.Inform or Set.From
	Namespace string // of its informer, unless it is given
}

// Info returns it.
func (a About) Info() About { return a }

// Informer returns the informer. It and the next three methods are for registrations.
func (r *Resource[T]) Informer() cache.SharedIndexInformer { return r.informer }

// Lister returns no lister: see operator.Reads.
func (r *Resource[T]) Lister() struct{} { return struct{}{} }

// Named gives obj its kind, by which a rule of kstatus is chosen. The clients' codec removes it.
func (r *Resource[T]) Named(obj T) T {
	obj.GetObjectKind().SetGroupVersionKind(r.Kind)
	return obj
}

// GroupVersionKind returns the kind.
func (r *Resource[T]) GroupVersionKind() schema.GroupVersionKind { return r.Kind }

// InNamespace returns the namespace of the informer, or "" for all or one that is given.
func (r *Resource[T]) InNamespace() string { return r.Namespace }

// Of returns a resource, a new one for its first registration, with an informer of the namespace, "" for
// all. Its kind has the name of the Go type.
func Of[T controllerkit.Object](s *Set, config *rest.Config, namespace string, gvr schema.GroupVersionResource, mode Mode) (*Resource[T], error) {
	name := gvr.GroupResource()
	if known, ok := s.known[name]; ok {
		r, ok := known.(*Resource[T])
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has two Go types, one of them %s: use one", name, reflect.TypeFor[T]())
		case r.Kind.Version != gvr.Version:
			return nil, fmt.Errorf("%s has two versions, %s and %s: use one", name, r.Kind.Version, gvr.Version)
		case r.Mode != mode:
			return nil, fmt.Errorf("%s is %s in one registration and %s in another: use Reading.Optional and Single in all or in none; Kind and Children require the resource", name, r.Mode, mode)
		}
		return r, nil
	}
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%s: the Go type is %s: use a pointer to a struct, such as *v1.Website", name, typ)
	}
	switch any(*new(T)).(type) {
	case *unstructured.Unstructured, *metav1.PartialObjectMetadata:
		return nil, fmt.Errorf("%s: the Go type is %s, which is for any kind: use a struct with the name of the kind, with the metadata and the fields that you read", name, typ)
	}
	r := &Resource[T]{About: About{Kind: gvr.GroupVersion().WithKind(typ.Elem().Name()), Name: name, Mode: mode, Namespace: namespace}}
	if s.http == nil {
		var err error
		if s.http, err = rest.HTTPClientFor(config); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
	}
	var err error
	if r.Client, err = crd.NewForConfigAndClient[T](config, s.http, r.Kind, gvr.Resource); err != nil {
		return nil, err
	}
	if err := r.inform(s); err != nil {
		return nil, err
	}
	if err := r.informer.AddIndexers(cache.Indexers{ownerIndex: ownersOf}); err != nil {
		return nil, fmt.Errorf("index %s by owner: %w", name, err)
	}
	if s.known == nil {
		s.known = map[schema.GroupResource]any{}
	}
	s.known[name] = r
	return r, nil
}

// inform sets the informer: that of Inform, otherwise a new one.
func (r *Resource[T]) inform(s *Set) (err error) {
	own := s.own[r.Name]
	switch {
	case own != nil && r.Mode != Required:
		return fmt.Errorf("%s has an informer of Inform, which cannot be %s: leave one of them out", r.Name, r.Mode)
	case own != nil:
		r.informer, r.Given, r.Namespace = own, true, ""
	case s.From != nil && r.Mode == Required:
		if r.informer, err = s.From(r.Kind, reflect.New(reflect.TypeFor[T]().Elem()).Interface().(controllerkit.Object)); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		if kube.IsNil(r.informer) {
			return fmt.Errorf("%s: the function of InformFrom returned no informer", r.Name)
		}
		r.Given, r.Namespace = true, ""
	case r.Mode == Optional:
		r.Served = optional.New(r.Kind, r.Name, r.Namespace, func(namespace string) (cache.SharedIndexInformer, error) { return r.make(namespace, nil) })
		r.informer = r.Served
		s.Optional = append(s.Optional, r.Served)
	default:
		if r.informer, err = r.make(r.Namespace, nil); err != nil {
			return err
		}
	}
	r.indexer = r.informer.GetIndexer()
	return nil
}

// Single returns a new informer of one object.
func (r *Resource[T]) Single(object types.NamespacedName) (cache.SharedIndexInformer, error) {
	name := fields.OneTermEqualSelector(metav1.ObjectNameField, object.Name).String()
	return r.make(object.Namespace, func(options *metav1.ListOptions) { options.FieldSelector = name })
}

// make returns a new informer of a namespace. For a kind that the API server sends in protobuf it is a
// compact one. JSON is expensive to decode, so the cache of another kind holds decoded objects.
func (r *Resource[T]) make(namespace string, tweak func(*metav1.ListOptions)) (cache.SharedIndexInformer, error) {
	var fresh T
	if _, protobuf := any(fresh).(interface{ Unmarshal([]byte) error }); protobuf {
		return compact.New[T](r.Client.RESTClient(), r.Name.Resource, compact.Options{Namespace: namespace, Kind: r.Kind.Kind, Tweak: tweak, ManagedFields: true})
	}
	return r.Client.Namespace(namespace).Informer(0, tweak).Informer(), nil
}

const (
	// ownerIndex has the children of each owner, by its UID.
	ownerIndex = headers.Index + "owner"

	// OwnerUID labels a child that cannot have an owner reference, and OwnerName is its annotation.
	OwnerUID  = "controllerkit.github.io/owner-uid"
	OwnerName = "controllerkit.github.io/owner"
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
	if uid := o.GetLabels()[OwnerUID]; uid != "" {
		return []string{uid}, nil
	}
	return nil, nil
}

// Taken returns a child whose fields of the former managers belong to manager.
func (r *Resource[T]) Taken(ctx context.Context, live T, manager string, former []string) (T, error) {
	if !slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return managedfields.IsFormer(e, manager, "", former)
	}) {
		return live, nil // Migrate would also ask for removed versions, and rejects an object without managedFields
	}
	live, _, err := ssa.Migrate(ctx, ssa.FieldManager(manager), r.Client.Namespace(live.GetNamespace()).Patch, live, former...)
	return live, err
}

// Owned returns the metadata of the children in the cache that an owner has, by name.
func (r *Resource[T]) Owned(owner types.UID) (children []metav1.Object, err error) {
	keys, err := r.indexer.IndexKeys(ownerIndex, string(owner))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if child, ok := headers.Get(r.informer.GetStore(), key); ok {
			children = append(children, child)
		}
	}
	slices.SortFunc(children, func(a, b metav1.Object) int { return strings.Compare(kube.NameOf(a), kube.NameOf(b)) })
	return children, nil
}

// Get returns the object in the cache, which must not be modified. ok is false if there is none.
func (r *Resource[T]) Get(namespace, name string) (obj T, ok bool, err error) {
	item, ok, err := r.indexer.GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
	if err != nil || !ok {
		return obj, false, err
	}
	if obj, ok = item.(T); !ok {
		return obj, false, fmt.Errorf("the cache of %s has a %T: use an informer of %T", r.Name, item, obj)
	}
	return obj, true, nil
}
