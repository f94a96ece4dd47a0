package remember

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Reader reads the cache of a manager in the calls of one controller, and remembers for the request of the call
// what it reads. It is a client.Reader and a client.FieldIndexer. [New] makes one. It is safe for concurrent use.
//
// The ctx of its reads is that of the call. Without one, after the end of the call, and if the events of the
// kind are not seen, a read returns an error. It has the class rejected of controllerkit's package reconcile.
//
// A remembered read takes about 100 bytes, and a selector is stored once. The zero value has no kinds.
type Reader struct {
	cluster cluster.Cluster
	tracker reads.Tracker[ctrl.Request]
	kinds   []*kind
	seed    maphash.Seed

	owner atomic.Pointer[reconciler] // the one whose Reconcile was called first
	ready atomic.Bool                // the source has seen all objects

	mu      sync.Mutex
	started bool // guards the indexes of the kinds until it is set: then they do not change
	sources []syncing
}

var (
	_ client.Reader       = (*Reader)(nil)
	_ client.FieldIndexer = (*Reader)(nil)
)

// New returns a Reader of objects of the given kinds in the cache of mgr, which is a manager or another
// cluster. Use one Reader for each controller. The informers of the kinds run while the controller runs, and the
// process needs the rights to list and watch them.
//
// A kind is given as it is read: &corev1.Secret{} for reads into a Secret or a SecretList, and an
// unstructured.Unstructured or a metav1.PartialObjectMetadata with apiVersion and kind for reads into these
// types and their lists. controller-runtime has a cache for each of the three.
//
// New returns an error if mgr is nil, if there are no kinds, or if the scheme of mgr does not have one.
func New(mgr cluster.Cluster, kinds ...client.Object) (*Reader, error) {
	switch {
	case kube.IsNil(mgr):
		return nil, errors.New("remember: New: mgr is nil: pass the manager of ctrl.NewManager")
	case len(kinds) == 0:
		return nil, errors.New("remember: New: there are no kinds: pass an object of each kind that is read, such as &corev1.Secret{}")
	}
	r := &Reader{cluster: mgr, seed: maphash.MakeSeed()}
	for _, obj := range kinds {
		if kube.IsNil(obj) {
			return nil, errors.New("remember: New: a kind is nil: pass an object such as &corev1.Secret{}")
		}
		id, err := r.idOf(obj)
		if err != nil {
			return nil, fmt.Errorf("remember: New: %w", err)
		}
		if slices.ContainsFunc(r.kinds, func(k *kind) bool { return k.id == id }) {
			continue
		}
		k := &kind{id: id, obj: obj.DeepCopyObject().(client.Object), reader: r}
		resource := schema.GroupResource{Group: id.Group, Resource: id.Kind}
		if k.reads, err = reads.From[client.Object](&r.tracker, resource, uncached{}, nil); err != nil {
			return nil, fmt.Errorf("remember: New: %w", err)
		}
		r.kinds = append(r.kinds, k)
	}
	return r, nil
}

// Reconciler returns a Reconciler that calls next and remembers what it reads with its context. The
// Reconciler is for one controller, which has the Source of r. It can be wrapped, for example by that of
// managerkit.Writes.
//
// If next is nil, or if another Reconciler of r is used, the result is a terminal error.
func (r *Reader) Reconciler(next crreconcile.Reconciler) crreconcile.Reconciler {
	c := &reconciler{reader: r}
	if !kube.IsNil(next) {
		c.run = reads.Track(&r.tracker, func(call context.Context, req ctrl.Request) (ctrl.Result, error) {
			return next.Reconcile(context.WithValue(call, callKey{r}, call), req)
		})
	}
	return c
}

type reconciler struct {
	reader *Reader
	run    func(context.Context, ctrl.Request) (ctrl.Result, error)
}

// callKey is the key of the context of a Reader's call in the contexts that are derived from it.
type callKey struct{ *Reader }

// Reconcile implements reconcile.Reconciler.
func (c *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if c.run == nil {
		return ctrl.Result{}, crreconcile.TerminalError(errors.New("remember: Reconciler: next is nil: pass the Reconciler of the controller"))
	}
	if !c.reader.owner.CompareAndSwap(nil, c) && c.reader.owner.Load() != c {
		return ctrl.Result{}, crreconcile.TerminalError(errors.New("remember: Reconciler: another controller uses the Reader: call New for each controller"))
	}
	return c.run(ctx, req)
}

// Get reads an object of the cache as the manager's cache does. If there is no such object,
// apierrors.IsNotFound is true for the error.
//
// Raw of client.GetOptions is an error.
func (r *Reader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	k, call, err := r.begin(ctx, obj)
	if err != nil {
		return fmt.Errorf("remember: Get: %w", err)
	}
	if field := unsupported((&client.GetOptions{}).ApplyOptions(opts), "UnsafeDisableDeepCopy", "DisableReadYourWritesConsistency"); field != "" {
		return fmt.Errorf("remember: Get: %w", reject("a read with the option %s cannot be remembered: omit it, or use the client", field))
	}
	namespace, err := k.namespace(key)
	if err != nil {
		return fmt.Errorf("remember: Get: %w", err)
	}
	if err := k.reads.Remember(call, namespace, key.Name); err != nil {
		return err
	}
	return r.cluster.GetCache().Get(ctx, key, obj, opts...)
}

// List reads the objects of the cache as the manager's cache does: those of a namespace, or of all, that a label
// selector selects and that have the values of indexed fields. A nil label selector means all.
//
// A field selector has the form a=b of client.MatchingFields, with fields of [Reader.IndexField] or
// [Reader.Indexed]. Limit, Continue and Raw of client.ListOptions are errors.
func (r *Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	k, call, err := r.begin(ctx, list)
	if err != nil {
		return fmt.Errorf("remember: List: %w", err)
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if field := unsupported(options, "LabelSelector", "FieldSelector", "Namespace", "UnsafeDisableDeepCopy", "DisableReadYourWritesConsistency"); field != "" {
		return fmt.Errorf("remember: List: %w", reject("a read with the option %s cannot be remembered: omit it, or use the client", field))
	}
	selector := options.LabelSelector
	if selector == nil {
		selector = labels.Everything()
	}
	if options.FieldSelector != nil {
		values, err := k.values(options.FieldSelector)
		if err != nil {
			return fmt.Errorf("remember: List: %w", err)
		}
		selector = selector.Add(values...)
	}
	if err := k.reads.RememberList(call, options.Namespace, selector); err != nil {
		return err
	}
	return r.cluster.GetCache().List(ctx, list, opts...)
}

// IndexField adds an index to the manager's cache, as mgr.GetFieldIndexer().IndexField does, and makes List
// take the field. Call it before the manager starts. A cache takes a field of a kind once: if another Reader or
// the program has added the index, use [Reader.Indexed].
func (r *Reader) IndexField(ctx context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	return r.index("IndexField", obj, field, extract, func() error {
		return r.cluster.GetFieldIndexer().IndexField(ctx, obj, field, extract)
	})
}

// Indexed makes List take a field that the cache has as an index already, by the same function extract. With another
// function, changes are missed. Call it before the manager starts. It is for an index of several controllers,
// and of a cluster that outlives its managers: see managerkit.Share.
func (r *Reader) Indexed(obj client.Object, field string, extract client.IndexerFunc) error {
	return r.index("Indexed", obj, field, extract, func() error { return nil })
}

func (r *Reader) index(verb string, obj client.Object, field string, extract client.IndexerFunc, add func() error) error {
	k, err := r.kindOf(obj)
	switch {
	case err != nil:
		return fmt.Errorf("remember: %s: %w", verb, err)
	case field == "" || extract == nil:
		return fmt.Errorf("remember: %s: the field %q is empty or its function is nil", verb, field)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.started:
		return fmt.Errorf("remember: %s: the controller runs already: index the field %q before the manager starts", verb, field)
	case k.extract[field] != nil:
		return fmt.Errorf("remember: %s: the field %q of %s is indexed twice", verb, field, k.id.Kind)
	}
	if err := add(); err != nil {
		return fmt.Errorf("remember: %s: index the field %q of %s: %w", verb, field, k.id.Kind, err)
	}
	if k.extract == nil {
		k.extract = map[string]client.IndexerFunc{}
	}
	k.extract[field] = extract
	return nil
}

// begin returns the kind of obj, which can be a list, and the call of ctx.
func (r *Reader) begin(ctx context.Context, obj runtime.Object) (*kind, context.Context, error) {
	k, err := r.kindOf(obj)
	if err != nil {
		return nil, nil, err
	}
	call, ok := ctx.Value(callKey{r}).(context.Context)
	switch {
	case !ok:
		return nil, nil, reject("the context is not that of a call of this Reader's controller: pass on the context of Reconcile, and complete the builder with Reader.Reconciler")
	case !r.ready.Load():
		return nil, nil, reject("the Source of the Reader is not started and synced: pass it to WatchesRawSource of the builder that gets Reader.Reconciler")
	}
	return k, call, nil
}

// kindOf returns the kind of obj, which can be a list.
func (r *Reader) kindOf(obj runtime.Object) (*kind, error) {
	if kube.IsNil(obj) {
		return nil, reject("the object is nil")
	}
	if r == nil || r.cluster == nil {
		return nil, reject("the Reader is nil or zero: use New, and in a unit test a field of type client.Reader with a fake")
	}
	id, err := r.idOf(obj)
	if err != nil {
		return nil, err
	}
	var other []string
	for _, k := range r.kinds {
		if k.id == id {
			return k, nil
		}
		if k.id.GroupVersionKind == id.GroupVersionKind {
			other = append(other, fmt.Sprintf("%T", k.obj))
		}
	}
	version := id.GroupVersion().String()
	if len(other) > 0 {
		return nil, reject("the Reader has %s %s as %s, which is another cache than that of a %T: pass the kind as %s to New too", version, id.Kind, strings.Join(other, " and "), obj, id.form)
	}
	return nil, reject("the Reader does not see events of %s %s: pass the kind as %s to New, or read it by the client", version, id.Kind, id.form)
}

// An id is a kind in one of the caches of controller-runtime.
type id struct {
	schema.GroupVersionKind
	form string
}

func (r *Reader) idOf(obj runtime.Object) (id, error) {
	gvk, err := apiutil.GVKForObject(obj, r.cluster.GetScheme())
	if err != nil {
		return id{}, err
	}
	form := "a typed object"
	switch obj.(type) {
	case runtime.Unstructured:
		form = "an *unstructured.Unstructured"
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		form = "a *metav1.PartialObjectMetadata"
	}
	if _, ok := obj.(client.ObjectList); ok {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return id{gvk, form}, nil
}

// errReject is an error of the class rejected: no retry cures it.
type errReject string

func (e errReject) Error() string { return string(e) }

// Rejected implements controllerkit.RejectedError.
func (errReject) Rejected() bool { return true }

func reject(format string, args ...any) error { return errReject(fmt.Sprintf(format, args...)) }

// unsupported returns the name of a field of options that is set, other than the supported ones.
func unsupported(options any, supported ...string) string {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !slices.Contains(supported, name) && !v.Field(i).IsZero() {
			return name
		}
	}
	return ""
}

// values returns a requirement for each value of a field selector. The labels of [kind.view] fulfill it if the object has
// the value.
func (k *kind) values(selector fields.Selector) ([]labels.Requirement, error) {
	all := selector.Requirements()
	if len(all) == 0 {
		return nil, reject("the field selector %q has no field: omit it", selector)
	}
	var values []labels.Requirement
	for _, r := range all {
		switch {
		case r.Operator != selection.Equals && r.Operator != selection.DoubleEquals:
			return nil, reject("the field selector %q is not of the form field=value, which an index needs", selector)
		case k.extract[r.Field] == nil:
			return nil, reject("the Reader does not know an index of the field %q of %s: call Reader.IndexField before the manager starts", r.Field, k.id.Kind)
		}
		value, err := labels.NewRequirement(k.label(r.Field, r.Value), selection.Exists, nil)
		if err != nil {
			return nil, err
		}
		values = append(values, *value)
	}
	return values, nil
}

// label returns a label for a value of an indexed field. If the hashes of two collide, a request runs once more than needed.
func (k *kind) label(field, value string) string {
	return fmt.Sprintf("index.remember.invalid/%016x", maphash.Comparable(k.reader.seed, [2]string{field, value}))
}
