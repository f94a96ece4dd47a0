package applyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

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
	c, err := b.validate(objects, true)
	if err != nil {
		return err
	}
	remove := func(ctx context.Context, o *batchObject) error {
		uid := o.manifest.GetUID()
		client := c.client(o)
		err := client.Delete(ctx, o.manifest.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &propagation,
		})
		if apierrors.IsConflict(err) {
			// Only a Get shows whether the conflict is about the uid.
			live, getErr := client.Get(ctx, o.manifest.GetName(), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(getErr), getErr == nil && live.GetUID() != uid:
				return nil
			case getErr != nil:
				return fmt.Errorf("delete: %w; and read the object that has the name: %w", err, getErr)
			}
		}
		switch {
		case rejection.IsUnserved(err) && !slices.Contains(c.definedKinds, o.manifest.GroupVersionKind()):
			// The object can exist in another version.
			return fmt.Errorf("delete: apiVersion and kind: the API server does not serve %s: pass the object in a version that it serves, or its CustomResourceDefinition as well: %w", o.manifest.GroupVersionKind(), err)
		case err != nil && !apierrors.IsNotFound(err):
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}
	c.run(ctx, c.second, remove)
	c.run(ctx, c.first, remove)
	return c.err()
}

func (b *Batch) apply(ctx context.Context, force bool, objects []any) ([]*unstructured.Unstructured, error) {
	c, err := b.validate(objects, false)
	if err != nil {
		return nil, err
	}
	request := func(ctx context.Context, o *batchObject) error { return c.applyObject(ctx, o, force) }
	c.applyFirst(ctx, request)
	c.run(ctx, c.second, request)
	c.retryDefined(ctx, c.second, request)
	responses := make([]*unstructured.Unstructured, len(c.objects))
	for i, o := range c.objects {
		if o.err == nil {
			responses[i] = o.live
		}
	}
	return responses, c.err()
}

// checkFields checks the fields of the Batch.
func (b *Batch) checkFields(deletion bool) error {
	switch {
	case kube.IsNil(b.Client):
		return errors.New("applyset: Client is nil: set a dynamic client")
	case kube.IsNil(b.Mapper):
		return errors.New("applyset: Mapper is nil: set a RESTMapper")
	case b.Concurrency < 0:
		return fmt.Errorf("applyset: Concurrency is %d: set a positive number, or 0 for the default", b.Concurrency)
	case b.CRDTimeout < 0:
		return fmt.Errorf("applyset: CRDTimeout is %v: set a positive duration, or 0 for the default", b.CRDTimeout)
	case deletion:
		return nil
	}
	if err := apply.CheckManager(b.Manager); err != nil {
		return fmt.Errorf("applyset: Manager: %w", err)
	}
	return b.checkOwner()
}

// checkOwner checks Owner and OwnerKind.
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
