package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
)

// ErrNotTried is wrapped by the [ObjectError] of an object that no request was made
// for, because the batch stopped before.
var ErrNotTried = errors.New("ssa: not tried")

// ObjectError says what went wrong with one object of a [Batch].
type ObjectError struct {
	Index           int // among the objects that the call was given
	Kind            schema.GroupVersionKind
	Namespace, Name string // "" where there is none
	Err             error
}

// Error names the object.
func (e *ObjectError) Error() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + e.Name
	}
	return fmt.Sprintf("ssa: %s %s (object %d of the batch): %v", cmp.Or(e.Kind.Kind, "object without kind"), cmp.Or(name, "without name"), e.Index, e.Err)
}

// Unwrap returns what went wrong.
func (e *ObjectError) Unwrap() error { return e.Err }

// Batch applies and deletes sets of objects of any kinds. Its methods make requests at
// the same time, and return when all that they started has ended. It is safe for
// concurrent use if Client and Mapper are.
//
// An object is an apply configuration of client-go, an *unstructured.Unstructured, or
// whatever else has the JSON of an object with apiVersion and kind. None is changed.
//
// Namespaces and CustomResourceDefinitions are the first stage; all other objects are
// the second one, which begins when the whole first stage has succeeded. Within a stage
// the order means nothing. Kinds that a CustomResourceDefinition of the batch defines
// need not be known to Mapper. After the first stage Mapper is reset, once and only if
// it does not know one of these kinds and is a meta.ResettableRESTMapper.
//
// Everything that can be wrong with an object without asking the API server is found
// before the first request; then none is made. The error of a call joins an
// [*ObjectError] for each object that failed, in the order in which they were given, so
// errors.As finds the first one, and Unwrap() []error all of them.
//
// A call that ended early, for whatever reason, is finished by making it again with
// the same objects.
type Batch struct {
	Client  dynamic.Interface
	Mapper  meta.RESTMapper // of a discovery client, so that it can ask the API server which kinds there are
	Manager FieldManager    // who applies; Delete needs none

	// Owner becomes the controller of each object that is applied: they are garbage
	// collected after it. It must have a uid, and be in the namespace of the objects
	// or in none. An object that has another controller on the API server fails with
	// an Invalid. nil means no owner.
	Owner     metav1.Object
	OwnerKind schema.GroupVersionKind // the kind of Owner, as typed objects do not carry it

	Concurrency int           // how many requests are under way at a time; 0 means 8
	CRDTimeout  time.Duration // how long CustomResourceDefinitions that were applied may take to be established; 0 means 30s
}

// Apply applies the objects, by force as [Apply] does. It returns the server's answers
// in the order of the objects, nil for those that failed.
//
// An object of the second stage is not applied before each CustomResourceDefinition of
// the batch is established, which Apply learns from a watch. The identity needs the
// verb patch for the kinds of all objects, create for those that are missing, and get
// and watch for CustomResourceDefinitions if there are any.
//
// When ctx ends no further request is made. What was under way then has the error of
// its request and may have been applied all the same, and what was not begun has
// [ErrNotTried].
func (b *Batch) Apply(ctx context.Context, objects ...any) ([]*unstructured.Unstructured, error) {
	return b.apply(ctx, true, objects)
}

// TryApply is Apply without force: an object with fields of another manager fails with
// a [*ConflictError], and the others of its stage are applied.
func (b *Batch) TryApply(ctx context.Context, objects ...any) ([]*unstructured.Unstructured, error) {
	return b.apply(ctx, false, objects)
}

// Delete asks for the deletion of the objects in the reverse order of the stages: of
// Namespaces and CustomResourceDefinitions when all others are accepted. It does not
// wait until they are gone.
//
// Each object must have its uid, as the answers of Apply do: an object that has the name
// but not the uid is left alone. That an object is gone, or replaced by such a one, is
// no error. propagation says what becomes of the objects that these own; it is
// required, as the default depends on the kind. A kind that Mapper does not know is
// an error, unless its CustomResourceDefinition is among the objects: so pass both
// until Delete succeeds.
//
// The identity needs the verb delete, and get to find out what a Conflict is about.
func (b *Batch) Delete(ctx context.Context, propagation metav1.DeletionPropagation, objects ...any) error {
	switch propagation {
	case metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan:
	default:
		return fmt.Errorf("ssa: batch: propagation is %q: pass Background, Foreground or Orphan", propagation)
	}
	r, err := b.plan(objects, true)
	if err != nil {
		return err
	}
	remove := func(ctx context.Context, m *member) error {
		uid := m.object.GetUID()
		client := b.resource(m)
		err := client.Delete(ctx, m.object.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &propagation,
		})
		if apierrors.IsConflict(err) {
			// The answer does not say as data that it is about the uid.
			live, getErr := client.Get(ctx, m.object.GetName(), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(getErr), getErr == nil && live.GetUID() != uid:
				return nil
			case getErr != nil:
				return fmt.Errorf("delete: %w; and see if it was replaced: %w", err, getErr)
			}
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}
	r.stage(ctx, r.second, remove)
	r.stage(ctx, r.first, remove)
	return r.err()
}

func (b *Batch) apply(ctx context.Context, force bool, objects []any) ([]*unstructured.Unstructured, error) {
	r, err := b.plan(objects, false)
	if err != nil {
		return nil, err
	}
	request := func(ctx context.Context, m *member) (err error) {
		m.answer, err = apply(ctx, b.Manager, Dynamic(b.Client, r.mapper).Apply, m.object, force)
		return err
	}
	r.stage(ctx, r.first, request)
	if len(r.crds) > 0 && !r.failed {
		b.waitForCRDs(ctx, r)
		if !r.failed && slices.ContainsFunc(r.defined, func(gvk schema.GroupVersionKind) bool {
			_, err := b.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			return meta.IsNoMatchError(err)
		}) {
			meta.MaybeResetRESTMapper(b.Mapper)
		}
	}
	r.stage(ctx, r.second, request)
	answers := make([]*unstructured.Unstructured, len(r.members))
	for i, m := range r.members {
		if m.err == nil {
			answers[i] = m.answer
		}
	}
	return answers, r.err()
}

// member is one object of a batch.
type member struct {
	object   *unstructured.Unstructured // a copy
	resource schema.GroupVersionResource
	answer   *unstructured.Unstructured
	err      error
}

// batchRun is one call of a method of a batch.
type batchRun struct {
	concurrency   int
	members       []*member // as they were given
	first, second []*member
	crds          []*member // some of first
	defined       []schema.GroupVersionKind
	mapper        *meta.DefaultRESTMapper // what the members need, and nothing else
	failed        bool
}

// plan checks all objects and returns what is to be done with them.
func (b *Batch) plan(objects []any, remove bool) (*batchRun, error) {
	switch {
	case b.Client == nil:
		return nil, errors.New("ssa: batch: Client is nil: set a dynamic client")
	case b.Mapper == nil:
		return nil, errors.New("ssa: batch: Mapper is nil: set a RESTMapper")
	case b.Concurrency < 0:
		return nil, fmt.Errorf("ssa: batch: Concurrency is %d: set how many requests may be under way, or 0", b.Concurrency)
	case b.CRDTimeout < 0:
		return nil, fmt.Errorf("ssa: batch: CRDTimeout is %v: set a positive duration, or 0", b.CRDTimeout)
	}
	if !remove {
		if err := b.Manager.check(); err != nil {
			return nil, err
		}
		if err := b.checkOwner(); err != nil {
			return nil, err
		}
	}
	r := &batchRun{concurrency: cmp.Or(b.Concurrency, 8), mapper: meta.NewDefaultRESTMapper(nil)}
	for _, o := range objects {
		m := &member{object: new(unstructured.Unstructured)}
		m.object.Object, m.err = readObject(o, remove)
		r.members = append(r.members, m)
		if m.err != nil {
			continue
		}
		switch m.object.GroupVersionKind().GroupKind() {
		case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
			r.define(m.object)
			r.crds = append(r.crds, m)
			r.first = append(r.first, m)
		case schema.GroupKind{Kind: "Namespace"}:
			r.first = append(r.first, m)
		default:
			r.second = append(r.second, m)
		}
	}
	type key struct {
		kind            schema.GroupKind
		namespace, name string
	}
	seen := map[key]int{}
	for i, m := range r.members {
		if m.err != nil {
			continue
		}
		k := key{m.object.GroupVersionKind().GroupKind(), m.object.GetNamespace(), m.object.GetName()}
		if j, ok := seen[k]; ok {
			m.err = fmt.Errorf("metadata.name: object %d is the same one: put the two together", j)
			continue
		}
		seen[k] = i
		m.err = b.place(r, m, remove)
	}
	return r, r.err()
}

// readObject returns the object as unstructured content of its own.
func readObject(o any, remove bool) (map[string]any, error) {
	e, err := encodeConfig(o)
	if err != nil {
		return nil, err
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(e.json, &content); err != nil {
		return nil, fmt.Errorf("ssa: read the object: %w", err)
	}
	if !remove {
		return content, e.read(nil)
	}
	u := unstructured.Unstructured{Object: content}
	for _, field := range []struct{ name, value string }{
		{"apiVersion", u.GetAPIVersion()}, {"kind", u.GetKind()}, {"metadata.name", u.GetName()}, {"metadata.uid", string(u.GetUID())},
	} {
		if field.value == "" {
			return content, fmt.Errorf("ssa: %s is empty: pass an object that the API server returned, with its apiVersion and kind", field.name)
		}
	}
	return content, nil
}

// define makes the kinds of a CustomResourceDefinition known. What is wrong with it
// the API server says.
func (r *batchRun) define(crd *unstructured.Unstructured) {
	text := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, append([]string{"spec"}, fields...)...)
		return s
	}
	scope := meta.RESTScopeNamespace
	if text("scope") == "Cluster" {
		scope = meta.RESTScopeRoot
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if version["served"] != true || name == "" || text("names", "kind") == "" || text("names", "plural") == "" {
			continue
		}
		gv := schema.GroupVersion{Group: text("group"), Version: name}
		gvk := gv.WithKind(text("names", "kind"))
		r.mapper.AddSpecific(gvk, gv.WithResource(text("names", "plural")), gv.WithResource(text("names", "singular")), scope)
		r.defined = append(r.defined, gvk)
	}
}

// place finds the resource of an object, and gives the object its owner.
func (b *Batch) place(r *batchRun, m *member, remove bool) error {
	gvk := m.object.GroupVersionKind()
	mapping, err := r.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		mapping, err = b.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return fmt.Errorf("apiVersion and kind: find the resource of %s: %w", gvk, err)
		}
		r.mapper.AddSpecific(gvk, mapping.Resource, mapping.Resource, mapping.Scope)
	}
	m.resource = mapping.Resource
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch namespace := m.object.GetNamespace(); {
	case namespaced && namespace == "":
		return errors.New("metadata.namespace is empty: say in which one it lives")
	case !namespaced && namespace != "":
		return fmt.Errorf("metadata.namespace is %q, and objects of its kind live in none: leave it out", namespace)
	}
	if remove || b.Owner == nil {
		return nil
	}
	return b.own(m.object)
}

func (b *Batch) checkOwner() error {
	switch {
	case b.Owner == nil:
	case isNil(b.Owner):
		return errors.New("ssa: batch: Owner is a nil pointer: set an object that the API server returned, or nothing")
	case b.Owner.GetUID() == "" || b.Owner.GetName() == "":
		return errors.New("ssa: batch: Owner has no metadata.uid or no metadata.name: set an object that the API server returned")
	case b.OwnerKind.Version == "" || b.OwnerKind.Kind == "":
		return fmt.Errorf("ssa: batch: OwnerKind is %q: set the version and the kind of Owner", b.OwnerKind)
	}
	return nil
}

// own makes Owner the controller of an object. It refuses what would make the garbage
// collector delete the object, and a second controller.
func (b *Batch) own(object *unstructured.Unstructured) error {
	switch ns := b.Owner.GetNamespace(); {
	case ns == "" || ns == object.GetNamespace():
	case object.GetNamespace() == "":
		return fmt.Errorf("metadata.ownerReferences: Owner is in namespace %q and the object in none: give it a cluster-scoped owner", ns)
	default:
		return fmt.Errorf("metadata.ownerReferences: Owner is in namespace %q and the object in another: an owner must be in the object's namespace", ns)
	}
	refs := slices.DeleteFunc(object.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == b.Owner.GetUID() })
	for _, ref := range refs {
		if ref.Controller != nil && *ref.Controller {
			return fmt.Errorf("metadata.ownerReferences: %s %q is its controller, and it can have only one besides Owner's", ref.Kind, ref.Name)
		}
	}
	object.SetOwnerReferences(append(refs, *metav1.NewControllerRef(b.Owner, b.OwnerKind)))
	return nil
}

// stage calls f for members, several at a time, and returns when all calls have. After
// a stage that failed it makes no calls.
func (r *batchRun) stage(ctx context.Context, members []*member, f func(context.Context, *member) error) {
	slots := make(chan struct{}, r.concurrency)
	var wg sync.WaitGroup
	for _, m := range members {
		if r.failed {
			m.err = fmt.Errorf("%w: something that comes first has failed", ErrNotTried)
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			m.err = fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			m.err = f(ctx, m)
		})
	}
	wg.Wait()
	r.failed = r.failed || slices.ContainsFunc(members, func(m *member) bool { return m.err != nil })
}

func (r *batchRun) err() error {
	var errs []error
	for i, m := range r.members {
		if m.err != nil {
			errs = append(errs, &ObjectError{
				Index: i, Kind: m.object.GroupVersionKind(), Namespace: m.object.GetNamespace(), Name: m.object.GetName(), Err: m.err,
			})
		}
	}
	return errors.Join(errs...)
}

func (b *Batch) resource(m *member) dynamic.ResourceInterface {
	if ns := m.object.GetNamespace(); ns != "" {
		return b.Client.Resource(m.resource).Namespace(ns)
	}
	return b.Client.Resource(m.resource)
}
