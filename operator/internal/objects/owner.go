package objects

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa"
)

// IsOwned reports whether the owner controls the child, or its label marks it.
func IsOwned(child, owner metav1.Object) bool {
	if metav1.GetControllerOfNoCopy(child) != nil {
		return metav1.IsControlledBy(child, owner)
	}
	return child.GetLabels()[OwnerUID] == string(owner.GetUID())
}

// Late returns the error of an apply with the uid of the live child, of the class stale if another object has the name by
// now, or none. The API server's response is Invalid or a conflict.
func Late(err error) error {
	if errors.Is(err, ssa.ErrUIDMismatch) {
		return fmt.Errorf("%w: %w", kube.ErrReplaced, err)
	}
	return err
}

// OwnerKey returns the key of the owner, of a resource, that labels mark.
func OwnerKey(child metav1.Object, owner schema.GroupResource) []types.NamespacedName {
	if child.GetLabels()[OwnerUID] == "" {
		return nil
	}
	resource, name, _ := strings.Cut(child.GetAnnotations()[OwnerName], "/")
	if resource != owner.String() {
		return nil
	}
	namespace, name, namespaced := strings.Cut(name, "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	return []types.NamespacedName{{Namespace: namespace, Name: name}}
}

// Known returns an object, or nil if it is not known.
func Known(obj metav1.Object, known bool) metav1.Object {
	if !known {
		return nil
	}
	return obj
}

// Whole returns the object in the cache, which must not be modified.
func (r *Resource[T]) Whole(namespace, name string) (metav1.Object, bool) {
	obj, ok, err := r.Get(namespace, name)
	return Known(obj, ok), ok && err == nil
}
