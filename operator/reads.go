package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
	"github.com/controllerkit/controllerkit/operator/internal/optional"
	"github.com/controllerkit/controllerkit/operator/internal/rights"
	"github.com/controllerkit/controllerkit/operator/internal/single"
)

// Reading has the settings of [Reads]. The zero value is for a kind that is read by names and selectors.
type Reading[T controllerkit.Object] struct {
	// Indexes has the functions that return the values of an object in an index, by the name of
	// the index, for [Reader.ByIndex].
	Indexes map[string]func(obj T) []string

	// Optional is for a resource that the API server need not serve, such as one of a
	// CustomResourceDefinition that another program installs. While it is not served in this version, and before
	// that is known, each read returns a [crd.ErrNotServed]. Keys that do not read it are not affected. When it
	// is served and its objects are in the cache, and when it is no longer served, the keys that have read it run.
	// Run asks for it every 10s, and at once if a list or watch is not found.
	Optional bool

	// Single opens a watch for each object that [Reader.Get] is called for, in place of one for all: then no
	// right to list the others is needed. List and ByIndex are errors. The first Get of an object waits for its
	// list, and returns after 5s with the reason, such as a missing right. A watch ends within two minutes after its
	// last reader. OP3 of the package is not for these objects: the call after a write can see the version before.
	Single bool

	// Names are the only names that Get may be called with, in any namespace; others are an error. [Operator.Rules]
	// has them as resourceNames, for a ClusterRole or for Roles. Names without Single are an error of Run. nil allows
	// any name, and the rule is for Roles in the namespaces of the objects.
	Names []string
}

// check returns an error if the settings exclude each other.
func (r Reading[T]) check(resource schema.GroupResource) error {
	switch {
	case r.Single && (r.Optional || len(r.Indexes) > 0):
		return fmt.Errorf("Reads of %s: Reading.Single excludes Optional and Indexes", resource)
	case len(r.Names) > 0 && !r.Single:
		return fmt.Errorf("Reads of %s: Reading.Names needs Single", resource)
	case slices.Contains(r.Names, ""):
		return fmt.Errorf("Reads of %s: a name in Reading.Names is empty", resource)
	}
	return nil
}

// Reads returns a reader of the objects of resource, whose Go type is T, and whose kind has the name of T.
// What a call reads is remembered, and a change of it runs the key again:
//
//	r.secrets = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("secrets"), operator.Reading[*corev1.Secret]{})
//
// So there is no function that maps a Secret to the objects that use it, and no predicate: see package
// [reads] for what is remembered, and for how long. [Watches] is for objects that are not read.
//
// c can be a controller of [Kind] or of [Operator.Controller]. The resource can be that of Kind or of
// [Children]. The rights to list and watch the objects are declared. An error of the registration is
// returned by Run.
func Reads[T controllerkit.Object](c *Controller, resource schema.GroupVersionResource, reading Reading[T]) *Reader[T] {
	r, err := objects.Of[T](&c.op.objects, c.op.Config, c.op.options.Namespace, resource, objects.ModeOf(reading.Optional, reading.Single))
	if err == nil {
		err = reading.check(r.Name)
	}
	if err != nil {
		c.fail("%w", err)
		return &Reader[T]{}
	}
	if reading.Single {
		return each(c, r, reading.Names)
	}
	var others func(metav1.Object) []types.NamespacedName
	if c.owner == r.Name && !c.filtered {
		others = enqueue.KeyOf[metav1.Object]
	}
	return remember(c, r, reading.Indexes, others)
}

// remember returns a reader of a resource, whose events run the keys that have read. others returns
// the keys that another handler adds for an object.
func remember[T controllerkit.Object](c *Controller, r *objects.Resource[T], indexes map[string]func(T) []string, others func(metav1.Object) []types.NamespacedName) *Reader[T] {
	remembered, err := reads.From(&c.tracker, r.Name, r.Informer(), indexes)
	if err != nil {
		c.fail("%w", err)
		return &Reader[T]{}
	}
	c.remembers = true
	if r.Served != nil {
		source := c.adder(r.Name)
		label := r.Name.String()
		r.Served.Changed(func(err error) {
			c.op.Metrics.InformerServed(label, err == nil)
			source.AddEvent(controllerkit.Event{Kind: "served"}, controllerkit.AddOptions{}, remembered.Close(err)...)
		})
	}
	handle[T](c, r.Name, r, func() cache.ResourceEventHandler {
		if others == nil || len(indexes) > 0 {
			return remembered.Handler(c.adder(r.Name))
		}
		keys := func(obj metav1.Object) []types.NamespacedName {
			known := others(obj)
			return slices.DeleteFunc(remembered.Keys(obj), func(key types.NamespacedName) bool { return slices.Contains(known, key) })
		}
		return enqueue.Filter(enqueue.Handler(c.adder(r.Name), keys), enqueue.ResourceVersionChanged[metav1.Object])
	})
	return &Reader[T]{from: r, reads: remembered, indexes: indexes}
}

// each returns a reader of a resource whose objects are watched one by one.
func each[T controllerkit.Object](c *Controller, r *objects.Resource[T], names []string) *Reader[T] {
	remembered, err := reads.From[T](&c.tracker, r.Name, r.Informer(), nil)
	if err != nil {
		c.fail("%w", err)
		return &Reader[T]{}
	}
	c.remembers = true
	handler := &guard.Handler{ResourceEventHandler: remembered.Handler(c.adder(r.Name)), Logger: c.logger(r.Name)}
	watches := single.New(r.Single, handler, func(o types.NamespacedName) bool { return remembered.Remembers(o.Namespace, o.Name) })
	c.op.Informers.AddRun(r.Name.String()+" (single, "+c.Loop.Name+")", watches.Run)
	c.op.singles = append(c.op.singles, rights.Names{GroupResource: r.Name, Names: slices.Clone(names)})
	return &Reader[T]{from: r, reads: remembered, single: watches, names: names}
}

// A Reader reads the cache of one kind in the calls of a controller, and remembers for the key of the
// call what it reads. Its objects are copies that belong to the caller. If [Controller.Apply] has found or made
// an object in the same call, its methods return that one in place of the cached one. A Reader is safe for
// concurrent use. [Reads] and [Children] make one.
//
// The ctx of its methods is that of the call. Without one, and after the end of the call, they return an error. An
// error other than NotFound keeps the call from pruning.
type Reader[T controllerkit.Object] struct {
	from    *objects.Resource[T]
	reads   *reads.Reader[T, types.NamespacedName]
	indexes map[string]func(T) []string
	single  *single.Watches // of Reading.Single, with its names
	names   []string
}

// Get returns an object. namespace is "" for a cluster-scoped kind. If there is no such object,
// apierrors.IsNotFound is true for the error.
func (r *Reader[T]) Get(ctx context.Context, namespace, name string) (obj T, err error) {
	call, err := r.begin(ctx, namespace)
	if err == nil {
		obj, err = r.get(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	}
	if applied, ok := r.applied(call, types.NamespacedName{Namespace: namespace, Name: name}); ok {
		return applied, nil
	}
	if apierrors.IsNotFound(err) {
		return obj, err
	}
	return obj, call.read(err)
}

func (r *Reader[T]) get(ctx context.Context, name types.NamespacedName) (obj T, err error) {
	switch {
	case r.single == nil:
		return r.reads.Get(ctx, name.Namespace, name.Name)
	case len(r.names) > 0 && !slices.Contains(r.names, name.Name):
		return obj, fmt.Errorf("operator: read %s: %w", r.from.Name, reject(fmt.Errorf("the name %q is not in Reading.Names: add it, or leave Names empty", kube.Printable(name.Name, 300))))
	}
	if err := r.reads.Remember(ctx, name.Namespace, name.Name); err != nil {
		return obj, err
	}
	item, err := r.single.Get(ctx, name)
	switch found, ok := item.(T); {
	case apierrors.IsNotFound(err): // of a list, so it must not be taken for an absent object
		return obj, fmt.Errorf("operator: read %s: %w: %s", r.from.Name, crd.ErrNotServed, kube.Printable(err.Error(), 4<<10))
	case err != nil:
		return obj, fmt.Errorf("operator: read %s: %w", r.from.Name, err)
	case item == nil:
		return obj, apierrors.NewNotFound(r.from.Name, name.Name)
	case !ok:
		return obj, fmt.Errorf("operator: read %s: the cache has a %T", r.from.Name, item)
	default:
		return found.DeepCopyObject().(T), nil
	}
}

// List returns the selected objects of a namespace, in no order. "" means all namespaces, and
// labels.Everything all objects. A nil selector is an error, because one that does not parse is
// often nil. If some do not fit the Go type, List returns the others and an error that names some of them.
func (r *Reader[T]) List(ctx context.Context, namespace string, selector labels.Selector) (all []T, err error) {
	call, err := r.beginMany(ctx, namespace)
	if err == nil {
		all, err = r.reads.List(ctx, namespace, selector)
	}
	return r.overlay(call, all, func(obj T) bool {
		return selector != nil && (namespace == "" || namespace == obj.GetNamespace()) && selector.Matches(labels.Set(obj.GetLabels()))
	}), call.read(err)
}

// ByIndex returns the objects that have the value in an index of [Reading], in no order. If the
// values of some objects are unknown, because they do not fit the Go type or the function of the index
// panicked, it returns the others and an error that names some of them.
func (r *Reader[T]) ByIndex(ctx context.Context, index, value string) (all []T, err error) {
	call, err := r.beginMany(ctx, "")
	if err == nil {
		all, err = r.reads.ByIndex(ctx, index, value)
	}
	all = r.overlay(call, all, func(obj T) bool {
		has, failed := objects.HasValue(r.indexes[index], obj, value)
		err = errors.Join(err, failed)
		return has
	})
	return all, call.read(err)
}

// Served reports whether the API server serves the resource. It is for an optional one, see [Reading]. The
// result is remembered like a read. Before it is known, err is a [crd.ErrNotServed]. Otherwise err is that of a
// read with the same context, and nil if the resource is known not to be served.
func (r *Reader[T]) Served(ctx context.Context) (served bool, err error) {
	call, err := r.begin(ctx, "")
	if err == nil {
		err = r.reads.Err(ctx)
	}
	if errors.Is(err, crd.ErrNotServed) && !errors.Is(err, optional.ErrUnknown) {
		return false, nil
	}
	return err == nil, call.read(err)
}

// begin returns the call of ctx if it is one of Kind, and an error if it must not read.
func (r *Reader[T]) begin(ctx context.Context, namespace string) (call *call, err error) {
	if ctx.Value(callKey{}) != nil { // the controller is one of Kind
		if call, err = callOf(ctx); err != nil {
			return nil, fmt.Errorf("operator: read %s: %w", r.from.Name, err)
		}
		call.reads.Store(true)
	}
	if limit := r.from.Namespace; limit != "" && namespace != "" && namespace != limit {
		return call, fmt.Errorf("operator: read %s: %w", r.from.Name, reject(fmt.Errorf("namespace %q is outside of Options.Namespace %q, so no informer sees it: use that namespace, or Operator.Inform", kube.Printable(namespace, 100), limit)))
	}
	return call, nil
}

// beginMany is begin for a read of any number of objects.
func (r *Reader[T]) beginMany(ctx context.Context, namespace string) (*call, error) {
	call, err := r.begin(ctx, namespace)
	if err == nil && r.single != nil {
		err = fmt.Errorf("operator: read %s: %w", r.from.Name, reject(errors.New("Reading.Single is set, so only Get is possible")))
	}
	return call, err
}

// applied returns a copy of the object that the call's Apply has found or made.
func (r *Reader[T]) applied(call *call, name types.NamespacedName) (obj T, ok bool) {
	if call == nil {
		return obj, false
	}
	c, _ := call.get(childID{GroupKind: r.from.Kind.GroupKind(), NamespacedName: name})
	if obj, ok = c.Object.(T); !ok || kube.IsNil(obj) {
		return obj, false
	}
	return obj.DeepCopyObject().(T), true
}

// overlay replaces the objects that the call's Apply has found or made, if they match.
func (r *Reader[T]) overlay(call *call, all []T, match func(T) bool) []T {
	if call == nil {
		return all
	}
	names := call.ofKind(r.from.Kind.GroupKind())
	all = slices.DeleteFunc(all, func(obj T) bool {
		return slices.Contains(names, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()})
	})
	for _, name := range names {
		if obj, ok := r.applied(call, name); ok && match(obj) {
			all = append(all, obj)
		}
	}
	return all
}
