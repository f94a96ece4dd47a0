package kube

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ErrOtherController is the error of [Controller] for a child that another object
// controls.
var ErrOtherController = errors.New("another object is its controller")

// Controller returns the owner references that make owner, an object of the kind, the
// controller of child, and false if child has them already. It keeps the references to
// other owners and their order, leaves one reference to owner, and does not modify
// child.
//
// It fails if the garbage collector would delete child or the API server would reject
// the references. An owner needs a name and a UID, and a kind its version and name. The
// child of a namespaced owner must be in the owner's namespace. A second controller is
// [ErrOtherController].
func Controller(owner metav1.Object, kind schema.GroupVersionKind, child metav1.Object) (refs []metav1.OwnerReference, changed bool, err error) {
	if err := CheckOwner(owner, kind); err != nil {
		return nil, false, err
	}
	switch ns := owner.GetNamespace(); {
	case ns == "" || ns == child.GetNamespace():
	case child.GetNamespace() == "":
		return nil, false, fmt.Errorf("the owner is in namespace %q and the child has no namespace: set its metadata.namespace; if it is cluster-scoped, use a cluster-scoped owner or a finalizer", ns)
	default:
		return nil, false, fmt.Errorf("the owner is in namespace %q and the child in %q: use an owner in the child's namespace", ns, child.GetNamespace())
	}
	want := *metav1.NewControllerRef(owner, kind)
	current := child.GetOwnerReferences()
	placed := false
	for _, ref := range current {
		switch {
		case ref.UID != owner.GetUID() && isTrue(ref.Controller):
			return nil, false, fmt.Errorf("%w: %s %q with uid %q", ErrOtherController, ref.Kind, ref.Name, ref.UID)
		case ref.UID != owner.GetUID():
			refs = append(refs, ref)
		case !placed:
			refs, placed = append(refs, want), true
		}
	}
	if !placed {
		refs = append(refs, want)
	}
	return refs, !slices.EqualFunc(refs, current, sameReference), nil
}

// CheckOwner returns an error if owner, an object of the kind, cannot be named by an
// owner reference.
func CheckOwner(owner metav1.Object, kind schema.GroupVersionKind) error {
	switch {
	case IsNil(owner):
		return errors.New("the owner is nil: pass an object that the API server returned")
	case owner.GetUID() == "" || owner.GetName() == "":
		return errors.New("the owner has no metadata.uid or no metadata.name: pass an object that the API server returned")
	case kind.Version == "" || kind.Kind == "":
		return fmt.Errorf("the owner's kind is %q: set its version and kind, which typed objects do not carry", kind)
	}
	return nil
}

// WithoutOwner returns the owner references of child except those to owner.
func WithoutOwner(child metav1.Object, owner types.UID) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(child.GetOwnerReferences()), func(ref metav1.OwnerReference) bool { return ref.UID == owner })
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
		isTrue(a.Controller) == isTrue(b.Controller) && isTrue(a.BlockOwnerDeletion) == isTrue(b.BlockOwnerDeletion)
}

func isTrue(b *bool) bool { return b != nil && *b }
