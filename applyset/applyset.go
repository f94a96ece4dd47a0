package applyset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrNotTried is wrapped by the [ObjectError] of an object for which the batch made no
// request, because it stopped before.
var ErrNotTried = errors.New("applyset: not tried")

// errDeleting is the error of a Namespace or CustomResourceDefinition that was applied
// while its deletion waits for a finalizer. New objects in it would be deleted too.
var errDeleting = errors.New("it is being deleted: apply again after the deletion")

// ObjectError is the error of one object of a [Batch].
type ObjectError struct {
	Index           int // the position among the objects of the call
	Kind            schema.GroupVersionKind
	Namespace, Name string // "" if the object has none
	Err             error
}

// Error names the object.
func (e *ObjectError) Error() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + e.Name
	}
	text := strings.TrimPrefix(e.Err.Error(), "applyset: ") // of ErrNotTried
	return fmt.Sprintf("applyset: %s %s (object %d of the batch): %s", cmp.Or(e.Kind.Kind, "object without kind"), cmp.Or(name, "without name"), e.Index, text)
}

// Unwrap returns Err.
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
// before the first request; then none is made, and all other objects have [ErrNotTried].
// The error of a call joins an [*ObjectError] for each object that failed or was not
// tried, in the order in which they were given, so errors.As finds the first one, and
// Unwrap() []error all of them. What is wrong with the Batch itself is an error alone.
//
// A call that ended early, for whatever reason, is finished by making it again with
// the same objects.
type Batch struct {
	Client  dynamic.Interface
	Mapper  meta.RESTMapper // of a discovery client, so that it can ask the API server which kinds there are
	Manager string          // the field manager; Delete needs none

	// Owner becomes the controller of each object that is applied: they are garbage
	// collected after it. It must have a uid, and be in the namespace of the objects
	// or in none, and not be one of them. An object that has another controller on the
	// API server fails with an Invalid. Where the admission plugin
	// OwnerReferencesPermissionEnforcement is on, the identity needs the verb update on
	// the subresource finalizers of the owner. nil means no owner.
	Owner     metav1.Object
	OwnerKind schema.GroupVersionKind // the kind of Owner, as typed objects do not carry it: with a wrong one the objects are collected at once

	Concurrency int           // how many requests are under way at a time; 0 means 8
	CRDTimeout  time.Duration // how long CustomResourceDefinitions that were applied may take to be established; 0 means 30s
}

// Apply applies the objects, by force as [Apply] does. It returns the server's answers
// in the order of the objects, nil for those that failed or were not tried.
//
// An object of the second stage is not applied before each CustomResourceDefinition of
// the batch is established, which Apply learns from a watch. The identity needs the
// verb patch for the kinds of all objects, create for those that are missing, and get
// and watch for CustomResourceDefinitions if there are any.
//
// The API server begins to serve a changed CustomResourceDefinition a moment after it
// has answered. An object of such a kind that it does not find the kind of, or does
// not find valid, is applied a second time when a second is over. A Namespace or
// CustomResourceDefinition that is being deleted is an error.
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
// required, as the default depends on the kind. A kind that Mapper does not know, or
// the API server does not serve, is an error, unless its CustomResourceDefinition is
// among the objects: so pass both until Delete succeeds.
//
// The identity needs the verb delete, and get to find out what a Conflict is about.
func (b *Batch) Delete(ctx context.Context, propagation metav1.DeletionPropagation, objects ...any) error {
	switch propagation {
	case metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan:
	default:
		return fmt.Errorf("applyset: propagation is %q: pass Background, Foreground or Orphan", propagation)
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
		switch {
		case isUnserved(err) && !slices.Contains(r.defined, m.object.GroupVersionKind()):
			// Nobody has looked for the object, which can be there in another version.
			return fmt.Errorf("delete: apiVersion and kind: the API server does not serve %s: pass the object in a version that it serves, or its CustomResourceDefinition as well: %w", m.object.GroupVersionKind(), err)
		case err != nil && !apierrors.IsNotFound(err):
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
	request := func(ctx context.Context, m *member) error { return b.request(ctx, r, m, force) }
	r.stage(ctx, r.first, func(ctx context.Context, m *member) error {
		if err := request(ctx, m); err != nil || m.answer.GetDeletionTimestamp() == nil {
			return err
		}
		return errDeleting
	})
	if len(r.crds) > 0 && !r.failed {
		b.waitForCRDs(ctx, r)
		if !r.failed && ctx.Err() == nil && slices.ContainsFunc(r.defined, func(gvk schema.GroupVersionKind) bool {
			_, err := b.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			return meta.IsNoMatchError(err)
		}) {
			meta.MaybeResetRESTMapper(b.Mapper)
		}
	}
	r.stage(ctx, r.second, request)
	r.again(ctx, request)
	answers := make([]*unstructured.Unstructured, len(r.members))
	for i, m := range r.members {
		if m.err == nil {
			answers[i] = m.answer
		}
	}
	return answers, r.err()
}

// request applies one object.
func (b *Batch) request(ctx context.Context, r *batchRun, m *member, force bool) (err error) {
	config := m.object
	if !force {
		// The API server does not report all conflicts; see apply.Taken.
		live, err := b.resource(m).Get(ctx, config.GetName(), metav1.GetOptions{})
		switch {
		case err == nil:
			c, err := apply.Encode(config)
			if err == nil {
				err = apply.Taken(b.Manager, c, live)
			}
			if err == nil {
				config, err = apply.Guard(c, config, live, true)
			}
			if err != nil {
				return err
			}
		case !kube.IsGone(err, config.GetName()) && !isUnserved(err):
			return fmt.Errorf("read the object before the apply: %w", err)
		}
	}
	m.answer, err = apply.Dynamic(ctx, func(gvr schema.GroupVersionResource, namespace string) apply.Patcher {
		return b.resource(m)
	}, r.mapper, config, metav1.ApplyOptions{FieldManager: b.Manager, Force: force})
	if err != nil {
		return fmt.Errorf("apply as %q: %w", b.Manager, err)
	}
	return nil
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
	failed        bool                    // an object, or the check of one
}

// plan checks all objects and returns what is to be done with them, which is nothing
// if one of them is wrong. The error is about the batch itself.
func (b *Batch) plan(objects []any, remove bool) (*batchRun, error) {
	switch {
	case kube.IsNil(b.Client):
		return nil, errors.New("applyset: Client is nil: set a dynamic client")
	case kube.IsNil(b.Mapper):
		return nil, errors.New("applyset: Mapper is nil: set a RESTMapper")
	case b.Concurrency < 0:
		return nil, fmt.Errorf("applyset: Concurrency is %d: set how many requests may be under way, or 0", b.Concurrency)
	case b.CRDTimeout < 0:
		return nil, fmt.Errorf("applyset: CRDTimeout is %v: set a positive duration, or 0", b.CRDTimeout)
	}
	if !remove {
		if err := apply.CheckManager(b.Manager); err != nil {
			return nil, fmt.Errorf("applyset: Manager: %w", err)
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
	r.failed = slices.ContainsFunc(r.members, func(m *member) bool { return m.err != nil })
	return r, nil
}

// readObject returns the object as unstructured content of its own.
func readObject(o any, remove bool) (map[string]any, error) {
	if kube.IsNil(o) {
		return nil, errors.New("the object is nil")
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode the object: %w", err)
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(encoded, &content); err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	u := &unstructured.Unstructured{Object: content}
	if !remove {
		_, err := apply.Encode(u)
		return content, err
	}
	for _, field := range []struct{ name, value string }{
		{"apiVersion", u.GetAPIVersion()}, {"kind", u.GetKind()}, {"metadata.name", u.GetName()}, {"metadata.uid", string(u.GetUID())},
	} {
		if field.value == "" {
			return content, fmt.Errorf("%s is empty: pass an object that the API server returned, with its apiVersion and kind", field.name)
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
	if m.object.GetName() == "" {
		return errors.New("metadata.name is not a text: give the name as one")
	}
	for _, field := range []struct{ name, value string }{{"name", m.object.GetName()}, {"namespace", m.object.GetNamespace()}} {
		if wrong := content.IsPathSegmentName(field.value); len(wrong) > 0 {
			return fmt.Errorf("metadata.%s is %q: it %s", field.name, field.value, strings.Join(wrong, ", "))
		}
	}
	if err := apply.CheckScope(mapping, m.object); err != nil {
		return err
	}
	if remove || b.Owner == nil {
		return nil
	}
	return b.own(m.object)
}

func (b *Batch) checkOwner() error {
	switch {
	case b.Owner == nil:
	case kube.IsNil(b.Owner):
		return errors.New("applyset: Owner is a nil pointer: set an object that the API server returned, or nothing")
	case b.Owner.GetUID() == "" || b.Owner.GetName() == "":
		return errors.New("applyset: Owner has no metadata.uid or no metadata.name: set an object that the API server returned")
	case b.OwnerKind.Version == "" || b.OwnerKind.Kind == "":
		return fmt.Errorf("applyset: OwnerKind is %q: set the version and the kind of Owner", b.OwnerKind)
	default:
		// The garbage collector looks for the owner under this kind and, if that is
		// namespaced, in the namespace of the object; it deletes what has no owner there.
		if typed, ok := b.Owner.(interface{ GetObjectKind() schema.ObjectKind }); ok {
			if kind := typed.GetObjectKind().GroupVersionKind(); kind.Kind != "" && kind.GroupKind() != b.OwnerKind.GroupKind() {
				return fmt.Errorf("applyset: OwnerKind is %q, and Owner is of the kind %q: set the kind of Owner", b.OwnerKind, kind)
			}
		}
		mapping, err := b.Mapper.RESTMapping(b.OwnerKind.GroupKind(), b.OwnerKind.Version)
		if err == nil && (mapping.Scope.Name() == meta.RESTScopeNameNamespace) != (b.Owner.GetNamespace() != "") {
			return fmt.Errorf("applyset: Owner has metadata.namespace %q, and objects of the kind %q are in the scope %s: set an object that the API server returned, and its kind", b.Owner.GetNamespace(), b.OwnerKind, mapping.Scope.Name())
		}
	}
	return nil
}

// own makes Owner the controller of an object. It refuses what would make the garbage
// collector delete the object, and a second controller. The other references stay as
// they are, with what the API server will refuse in them.
func (b *Batch) own(object *unstructured.Unstructured) error {
	switch ns := b.Owner.GetNamespace(); {
	case ns == "" || ns == object.GetNamespace():
	case object.GetNamespace() == "":
		return fmt.Errorf("metadata.ownerReferences: Owner is in namespace %q and the object in none: give it a cluster-scoped owner", ns)
	default:
		return fmt.Errorf("metadata.ownerReferences: Owner is in namespace %q and the object in another: an owner must be in the object's namespace", ns)
	}
	if object.GroupVersionKind().GroupKind() == b.OwnerKind.GroupKind() && object.GetName() == b.Owner.GetName() && object.GetNamespace() == b.Owner.GetNamespace() {
		return errors.New("metadata.ownerReferences: the object is Owner itself, and deleted in the foreground would wait for itself: leave it out")
	}
	const field = "ownerReferences"
	metadata, _ := object.Object["metadata"].(map[string]any) // it has a name
	given, ok := metadata[field].([]any)
	if !ok && metadata[field] != nil {
		return errors.New("metadata.ownerReferences is no list")
	}
	var refs []any
	for _, given := range given {
		ref, _ := given.(map[string]any)
		switch {
		case ref["uid"] == string(b.Owner.GetUID()):
			continue
		case ref["controller"] == true:
			return fmt.Errorf("metadata.ownerReferences: %v %q is its controller, and there can be no other besides Owner", ref["kind"], ref["name"])
		}
		refs = append(refs, given)
	}
	metadata[field] = append(refs, map[string]any{
		"apiVersion": b.OwnerKind.GroupVersion().String(), "kind": b.OwnerKind.Kind, "name": b.Owner.GetName(), "uid": string(b.Owner.GetUID()),
		"controller": true, "blockOwnerDeletion": true,
	})
	return nil
}

// stage calls f for the members that have not failed yet, several at a time, and
// returns when all calls have. After a failure it makes no calls.
func (r *batchRun) stage(ctx context.Context, members []*member, f func(context.Context, *member) error) {
	slots := semaphore.NewWeighted(int64(r.concurrency))
	var wg sync.WaitGroup
	for _, m := range members {
		if m.err != nil {
			continue
		}
		if r.failed {
			m.err = fmt.Errorf("%w: another object has failed", ErrNotTried)
			continue
		}
		if slots.Acquire(ctx, 1) != nil || ctx.Err() != nil {
			m.err = fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
			continue
		}
		wg.Go(func() {
			defer slots.Release(1)
			m.err = f(ctx, m)
		})
	}
	wg.Wait()
	r.failed = r.failed || slices.ContainsFunc(members, func(m *member) bool { return m.err != nil })
}

// again calls f a second time for the members that failed because the API server did
// not serve the CustomResourceDefinition yet that was applied before. That it does is
// no event which could be waited for.
func (r *batchRun) again(ctx context.Context, f func(context.Context, *member) error) {
	var late []*member
	var errs []error
	for _, m := range r.second {
		if slices.Contains(r.defined, m.object.GroupVersionKind()) && (isUnserved(m.err) || isUndeclared(m.err) || apierrors.IsInvalid(m.err)) {
			late, errs = append(late, m), append(errs, m.err)
		}
	}
	if len(late) == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(time.Second):
	}
	for _, m := range late {
		m.err = nil
	}
	r.failed = false
	r.stage(ctx, late, f)
	for i, m := range late {
		if errors.Is(m.err, ErrNotTried) {
			m.err = errs[i] // the first time it was
		}
	}
}

// isUnserved reports whether the API server has no such resource, which it says in
// other words than that it has no such object.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isUndeclared reports whether a field is not in the schema. The API has nothing but
// the text to say so.
func isUndeclared(err error) bool {
	return err != nil && strings.Contains(err.Error(), "field not declared in schema")
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
