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

// ObjectError is the error of one object of a [Batch] or a [Set].
type ObjectError struct {
	Index           int // the position among the objects of the call; -1 for a former member of a Set
	Kind            schema.GroupVersionKind
	Namespace, Name string // "" if the object has no name
	Err             error
}

// Error names the object.
func (e *ObjectError) Error() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + e.Name
	}
	text := strings.TrimPrefix(e.Err.Error(), "applyset: ") // of ErrNotTried
	name = cmp.Or(e.Kind.Kind, "object without kind") + " " + cmp.Or(name, "without name")
	if e.Index >= 0 {
		name += fmt.Sprintf(" (object %d of the batch)", e.Index)
	}
	return fmt.Sprintf("applyset: %s: %s", name, text)
}

// Unwrap returns Err.
func (e *ObjectError) Unwrap() error { return e.Err }

// Batch applies and deletes sets of objects of any kinds. Its methods run requests in
// parallel, and return after all of them have ended. It is safe for concurrent use if
// Client and Mapper are.
//
// An object is an apply configuration of client-go, an *unstructured.Unstructured, or
// any other value whose JSON is an object with apiVersion and kind. A Batch modifies no
// object.
//
// Namespaces and CustomResourceDefinitions are the first stage, and all other objects
// the second. The second stage begins after the whole first stage has succeeded. Within
// a stage, the order is undefined. Mapper does not need to know the kinds that the batch
// defines. If it does not know one of them after the first stage and is a
// meta.ResettableRESTMapper, the Batch resets it once.
//
// A Batch checks all objects before the first request. If one is not valid, it makes no
// request, and the other objects have [ErrNotTried]. The error of a call joins an
// [*ObjectError] for each object that failed or was not tried, in the order of the
// objects. errors.As finds the first, and Unwrap() []error returns all. An error about
// the Batch itself is not joined.
//
// To finish a call that ended early, repeat it with the same objects. A repeated call
// changes no field and no owner.
type Batch struct {
	Client  dynamic.Interface // Required.
	Mapper  meta.RESTMapper   // Required. It should use discovery, to know the kinds that the API server serves.
	Manager string            // the field manager. Required, except by Delete.

	// Owner becomes the controller of each applied object, so that the objects are garbage
	// collected after it. Owner must have a uid, must be in the namespace of the objects or
	// cluster-scoped, and must not be one of them; otherwise it is an error. If an object has
	// another controller, its error is Invalid. If the admission plugin
	// OwnerReferencesPermissionEnforcement is enabled, the identity needs the verb update on
	// the finalizers subresource of Owner. nil means no owner; a nil pointer in it is an error.
	Owner     metav1.Object
	OwnerKind schema.GroupVersionKind // the kind of Owner. With a wrong kind the objects are collected at once.

	Concurrency int           // the number of requests that run at once; 0 means 8
	CRDTimeout  time.Duration // bounds the wait until applied CustomResourceDefinitions are established; 0 means 30s
}

// Apply applies the objects with force. It returns the responses in the order of the
// objects, nil for objects that failed or were not tried.
//
// Before the second stage, Apply watches the CustomResourceDefinitions of the batch until
// they are established. The identity needs the verb patch for the kinds of all objects,
// create for kinds with absent objects, and get and watch for
// CustomResourceDefinitions.
//
// If the API server does not yet serve the schema of a changed CustomResourceDefinition,
// Apply repeats the apply of its objects after a second, once. If a Namespace or a
// CustomResourceDefinition is being deleted, it is an error.
//
// If ctx ends, Apply makes no further request. Running requests fail, although the API
// server may have applied their objects. Objects without a request have [ErrNotTried].
func (b *Batch) Apply(ctx context.Context, objects ...any) ([]*unstructured.Unstructured, error) {
	return b.apply(ctx, true, objects)
}

// TryApply is Apply without force. If another manager owns a field of an object with
// another value, apierrors.IsConflict is true for its error, and TryApply applies the
// other objects of the stage.
//
// TryApply reads each object before the apply, because the API server does not report all
// conflicts: see the package ssa. The identity also needs the verb get.
func (b *Batch) TryApply(ctx context.Context, objects ...any) ([]*unstructured.Unstructured, error) {
	return b.apply(ctx, false, objects)
}

// Delete deletes the objects in the reverse order of the stages: Namespaces and
// CustomResourceDefinitions after the API server has accepted the deletion of all
// others. It does not wait until the objects are gone.
//
// Each object must have its uid, as in the responses of Apply. If the object is gone, that
// is no error. If another object has its name, Delete leaves it alone without an error.
// propagation is required, because the default depends on the kind. If Mapper or the API
// server does not know a kind, that is an error, unless its CustomResourceDefinition is
// among the objects. So pass both until Delete succeeds.
//
// The identity needs the verb delete, and get to read the object after a Conflict.
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
			// Only a Get shows whether the conflict is about the uid.
			live, getErr := client.Get(ctx, m.object.GetName(), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(getErr), getErr == nil && live.GetUID() != uid:
				return nil
			case getErr != nil:
				return fmt.Errorf("delete: %w; and read the object that has the name: %w", err, getErr)
			}
		}
		switch {
		case isUnserved(err) && !slices.Contains(r.defined, m.object.GroupVersionKind()):
			// The object can exist in another version.
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
	b.applyFirst(ctx, r, request)
	r.stage(ctx, r.second, request)
	r.again(ctx, r.second, request)
	responses := make([]*unstructured.Unstructured, len(r.members))
	for i, m := range r.members {
		if m.err == nil {
			responses[i] = m.response
		}
	}
	return responses, r.err()
}

// applyFirst applies the first stage, and waits until the API server serves its kinds.
func (b *Batch) applyFirst(ctx context.Context, r *batchRun, request func(context.Context, *member) error) {
	r.stage(ctx, r.first, func(ctx context.Context, m *member) error {
		if err := request(ctx, m); err != nil || m.response.GetDeletionTimestamp() == nil {
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
				err = apply.Taken(ctx, b.Manager, c, live)
			}
			if err == nil {
				config, err = apply.Guard(c, config, live, true)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
		case !kube.IsGone(err, config.GetName()) && !isUnserved(err):
			return fmt.Errorf("read the object before the apply: %w", err)
		}
	}
	m.response, err = apply.Dynamic(ctx, func(gvr schema.GroupVersionResource, namespace string) apply.Patcher {
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
	response *unstructured.Unstructured
	err      error
}

// batchRun is one call of a method of a batch.
type batchRun struct {
	concurrency   int
	members       []*member // in the order of the objects
	first, second []*member
	crds          []*member // some of first
	defined       []schema.GroupVersionKind
	mapper        *meta.DefaultRESTMapper // of the kinds of the members
	failed        bool                    // an object or its check
}

// plan checks all objects. If one is not valid, the run has failed before it begins. The
// error is about the batch itself.
func (b *Batch) plan(objects []any, remove bool) (*batchRun, error) {
	switch {
	case kube.IsNil(b.Client):
		return nil, errors.New("applyset: Client is nil: set a dynamic client")
	case kube.IsNil(b.Mapper):
		return nil, errors.New("applyset: Mapper is nil: set a RESTMapper")
	case b.Concurrency < 0:
		return nil, fmt.Errorf("applyset: Concurrency is %d: set a positive number, or 0 for the default", b.Concurrency)
	case b.CRDTimeout < 0:
		return nil, fmt.Errorf("applyset: CRDTimeout is %v: set a positive duration, or 0 for the default", b.CRDTimeout)
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
		switch m.object.GroupVersionKind().GroupKind() {
		case definitionKind():
			r.define(m.object)
			r.crds = append(r.crds, m)
			r.first = append(r.first, m)
		case namespaceKind():
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
			m.err = fmt.Errorf("metadata.name: object %d is the same one: merge the two", j)
			continue
		}
		seen[k] = i
		m.err = b.place(r, m, remove)
	}
	r.failed = slices.ContainsFunc(r.members, func(m *member) bool { return m.err != nil })
	return r, nil
}

// readObject returns a copy of the object as unstructured content.
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
		c, err := apply.Encode(u)
		if err == nil {
			c.Release()
		}
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

// define adds the kinds of a CustomResourceDefinition to the mapper. It ignores malformed
// ones, which the API server rejects.
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
		return errors.New("metadata.name is not a string: set a string")
	}
	if wrong := content.IsPathSegmentName(m.object.GetName()); len(wrong) > 0 {
		return fmt.Errorf("metadata.name is %q: it %s", m.object.GetName(), strings.Join(wrong, ", "))
	}
	if ns := m.object.GetNamespace(); ns != "" {
		// The inventory of a Set accepts no other name.
		if wrong := content.IsDNS1123Label(ns); len(wrong) > 0 {
			return fmt.Errorf("metadata.namespace is %q: it %s", ns, strings.Join(wrong, ", "))
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
		return errors.New("applyset: Owner is a nil pointer: set an object that the API server returned, or omit Owner")
	case b.Owner.GetUID() == "" || b.Owner.GetName() == "":
		return errors.New("applyset: Owner has no metadata.uid or no metadata.name: set an object that the API server returned")
	case b.OwnerKind.Version == "" || b.OwnerKind.Kind == "":
		return fmt.Errorf("applyset: OwnerKind is %q: set the version and the kind of Owner", b.OwnerKind)
	default:
		// The garbage collector looks for the owner under this kind and, if the kind is
		// namespaced, in the namespace of the object. It deletes objects without owner.
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

// own makes Owner the controller of an object. It rejects references because of which the
// garbage collector would delete the object, and a second controller. It keeps the
// other references, also malformed ones, so that the API server rejects them.
func (b *Batch) own(object *unstructured.Unstructured) error {
	switch ns := b.Owner.GetNamespace(); {
	case ns == "" || ns == object.GetNamespace():
	case object.GetNamespace() == "":
		return fmt.Errorf("metadata.ownerReferences: the owner is in namespace %q and the object in none: use a cluster-scoped owner", ns)
	default:
		return fmt.Errorf("metadata.ownerReferences: the owner is in namespace %q and the object in another: an owner must be in the object's namespace", ns)
	}
	if object.GroupVersionKind().GroupKind() == b.OwnerKind.GroupKind() && object.GetName() == b.Owner.GetName() && object.GetNamespace() == b.Owner.GetNamespace() {
		return errors.New("metadata.ownerReferences: the object is Owner itself, so a deletion in the foreground would wait for itself: remove the object")
	}
	spec, _ := object.Object["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	if object.GroupVersionKind().GroupKind() == definitionKind() && spec["group"] == b.OwnerKind.Group && names["kind"] == b.OwnerKind.Kind {
		return errors.New("metadata.ownerReferences: the object is the CustomResourceDefinition of Owner, so a deletion of Owner in the foreground would wait for itself: remove the object")
	}
	const field = "ownerReferences"
	metadata, _ := object.Object["metadata"].(map[string]any) // it has a name
	given, ok := metadata[field].([]any)
	if !ok && metadata[field] != nil {
		return errors.New("metadata.ownerReferences is not a list")
	}
	var refs []any
	for _, given := range given {
		ref, _ := given.(map[string]any)
		switch {
		case ref["uid"] == string(b.Owner.GetUID()):
			continue
		case ref["controller"] == true:
			return fmt.Errorf("metadata.ownerReferences: %v %q is its controller, and an object has one controller: remove it or Owner", ref["kind"], ref["name"])
		}
		refs = append(refs, given)
	}
	metadata[field] = append(refs, map[string]any{
		"apiVersion": b.OwnerKind.GroupVersion().String(), "kind": b.OwnerKind.Kind, "name": b.Owner.GetName(), "uid": string(b.Owner.GetUID()),
		"controller": true, "blockOwnerDeletion": true,
	})
	return nil
}

// stage calls f for the members without an error, in parallel, and returns after all
// calls. After a failed stage it makes no calls.
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

// again calls f a second time for the members of a stage that failed because the API
// server did not yet serve their CustomResourceDefinition. No event shows when it does.
func (r *batchRun) again(ctx context.Context, stage []*member, f func(context.Context, *member) error) {
	var late []*member
	var errs []error
	for _, m := range stage {
		if slices.Contains(r.defined, m.object.GroupVersionKind()) && (isUnserved(m.err) || isUndeclared(m.err) || apierrors.IsInvalid(m.err)) {
			late, errs = append(late, m), append(errs, m.err)
		}
	}
	if len(late) == 0 {
		return
	}
	select {
	case <-ctx.Done(): // so stage tries none
	case <-time.After(time.Second):
	}
	for _, m := range late {
		m.err = nil
	}
	r.failed = false
	r.stage(ctx, late, f)
	for i, m := range late {
		if errors.Is(m.err, ErrNotTried) {
			m.err = errs[i] // its first request failed
		}
	}
	r.failed = slices.ContainsFunc(stage, func(m *member) bool { return m.err != nil })
}

// isUnserved reports whether the API server does not serve the resource. Its response
// differs from that for an absent object.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isUndeclared reports whether a field is not in the schema. Only the message of the
// response shows that.
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
