package objects

import (
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
)

// IsOwned reports whether the owner controls the child, or its label marks it.
func IsOwned(child, owner metav1.Object) bool {
	if metav1.GetControllerOfNoCopy(child) != nil {
		return metav1.IsControlledBy(child, owner)
	}
	return child.GetLabels()[OwnerUID] == string(owner.GetUID())
}

// CheckOwned returns an error if the live child must not be applied for the owner, because it belongs to another object
// or to none. That of an earlier object of the owner's kind and name is waited for: the garbage collector deletes it.
func (o Owner) CheckOwned(live metav1.Object) error {
	switch {
	case IsOwned(live, o):
		return nil
	case o.earlier(live) && live.GetDeletionTimestamp() != nil:
		return collected("it belongs to an earlier " + o.Kind.Kind + " of this name, and is being deleted")
	case o.earlier(live):
		return collected("it belongs to an earlier " + o.Kind.Kind + " of this name, and waits for the garbage collector")
	}
	return fmt.Errorf("it exists and does not belong to this %s: delete it, or give one of them another name: %w", o.Kind.Kind, reconcile.ErrRejected)
}

// earlier reports whether an object of the owner's kind and name, which no longer exists, controls the child. The
// owner's namespace is that of the child, or the owner has none.
func (o Owner) earlier(child metav1.Object) bool {
	ref := metav1.GetControllerOfNoCopy(child)
	if ref == nil || ref.UID == o.GetUID() || ref.Kind != o.Kind.Kind || ref.Name != o.GetName() || o.GetNamespace() != "" && o.GetNamespace() != child.GetNamespace() {
		return false
	}
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && version.Group == o.Kind.Group
}

// collected is the controllerkit.WaitingError of a child that the garbage collector deletes. Its deletion runs the key
// before the time is over.
type collected string

func (c collected) Error() string      { return string(c) }
func (collected) Waits() time.Duration { return 10 * time.Second }

// Late returns the error of an apply with the uid of the live child, of the class stale if another object has the name by
// now, or none. The API server's response is Invalid or a conflict.
func Late(err error) error {
	if errors.Is(err, ssa.ErrUIDMismatch) {
		return fmt.Errorf("%w: %w", kube.ErrReplaced, err)
	}
	return err
}

// OwnerKey returns the key of the owner, of a resource, that the marks of a child name. cached returns the owner in the
// cache. If its UID is not that of the label, there is no key: anyone who may edit an object can mark it. An owner that
// is not cached yet has an event of its own.
func OwnerKey(child metav1.Object, owner schema.GroupResource, cached func(types.NamespacedName) (metav1.Object, bool)) []types.NamespacedName {
	uid := child.GetLabels()[OwnerUID]
	if uid == "" {
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
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if o, ok := cached(key); !ok || string(o.GetUID()) != uid {
		return nil
	}
	return []types.NamespacedName{key}
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
