package owner

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Controller returns the reference of [SetController] for an apply configuration:
//
//	ref, err := owner.Controller(widget, kind)
//	...
//	config := applycorev1.ConfigMap(name, widget.Namespace).WithOwnerReferences(ref)
//
// The API server rejects the apply if the object has another controller. Controller cannot check the
// namespace of the object, which must be that of a namespaced owner: otherwise the garbage collector
// deletes the object. If owner has no UID or name, or the kind no version or kind, the error has a method
// Terminal() bool that returns true.
func Controller(owner metav1.Object, kind schema.GroupVersionKind) (*applymetav1.OwnerReferenceApplyConfiguration, error) {
	ref, err := Reference(owner, kind)
	if err != nil {
		return nil, err
	}
	return ref.WithController(true).WithBlockOwnerDeletion(true), nil
}

// Reference is [Controller] for an owner that is not the controller: the garbage collector deletes the object
// after its last owner, and event handlers of controllers ignore the reference.
func Reference(owner metav1.Object, kind schema.GroupVersionKind) (*applymetav1.OwnerReferenceApplyConfiguration, error) {
	if err := kube.CheckOwner(owner, kind); err != nil {
		return nil, fmt.Errorf("owner: reference: %w", kube.Terminal(err))
	}
	return applymetav1.OwnerReference().WithAPIVersion(kind.GroupVersion().String()).WithKind(kind.Kind).
		WithName(owner.GetName()).WithUID(owner.GetUID()), nil
}
