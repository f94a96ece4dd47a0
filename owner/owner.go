package owner

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrOtherController is the error of [SetController] for a child that has another
// controller. An object has at most one.
var ErrOtherController = kube.ErrOtherController

// SetController makes owner, an object of the kind, the controller of child by an owner
// reference. The garbage collector then deletes child after owner, and event handlers
// find owner from child. The reference blocks a foreground deletion of owner until child
// is deleted, as the references of Kubernetes' own controllers do.
//
// child is an object that the caller is about to create, or a copy that the caller owns.
// If child has the reference, SetController returns. Otherwise it replaces the list of
// owner references by a new one, with one reference to owner and all references to other
// owners.
//
// If SetController fails, child is unchanged. If child has another controller, the
// error wraps [ErrOtherController]. That controller can be an earlier object with the
// name of owner, and can release child later. Any other error has a method Terminal()
// bool that returns true: owner has no UID or name, the kind has no version or kind, or
// owner is in another namespace than child.
func SetController(owner metav1.Object, kind schema.GroupVersionKind, child metav1.Object) error {
	if kube.IsNil(owner) || kube.IsNil(child) {
		return fmt.Errorf("owner: set the controller: %w", kube.Terminal(errors.New("owner or child is nil: pass two objects")))
	}
	refs, changed, err := kube.Controller(owner, kind, child)
	if err != nil && !errors.Is(err, ErrOtherController) {
		err = kube.Terminal(err)
	}
	if err != nil {
		return fmt.Errorf("owner: make %s the controller of %s: %w", kube.NameOf(owner), kube.NameOf(child), err)
	}
	if changed {
		child.SetOwnerReferences(refs)
	}
	return nil
}

// Claim makes ownership follow labels. It adopts the children that match selector and
// have no controller, and releases the children that owner controls and that no longer
// match. It returns the children that owner controls and that match, in the given order;
// an adopted child is the API server's new version. children can come from an
// informer: Claim does not change them.
//
//	controller of the child   matches   Claim
//	owner                     yes       returns the child
//	owner                     no        removes the references to owner
//	none                      yes       makes owner the controller, returns the child
//	none                      no        ignores the child
//	another                   either    ignores the child
//
// Claim neither adopts nor releases a child that is being deleted, nor any child while
// owner is being deleted. If owner is in a namespace, Claim ignores children of other
// namespaces. Before its first write Claim reads owner from the API server. If owner is
// gone, was replaced or is being deleted there, Claim sends no write and returns an
// error with a method Stale() bool that returns true.
//
// Each write succeeds only if the child's UID, owner references and labels are as in
// the given copy and the child is not being deleted. Otherwise its error is a Conflict. A
// child that no longer exists is not an error. Claim makes the writes one after another,
// joins their errors, and returns the claimed children next to the error.
//
// owners is the client of owner, and client is the client of the children's
// namespace. If
// selector is nil or empty, owner has no UID, or the kind has no version or kind, Claim
// sends no request and its error has a method Terminal() bool that returns true.
func Claim[O, T metav1.Object](ctx context.Context, owners controllerkit.Getter[O], owner metav1.Object, kind schema.GroupVersionKind, client controllerkit.Patcher[T], selector labels.Selector, children []T) (claimed []T, _ error) {
	if err := kube.CheckOwner(owner, kind); err != nil {
		return nil, fmt.Errorf("owner: claim children: %w", kube.Terminal(err))
	}
	if selector == nil || selector.Empty() {
		return nil, fmt.Errorf("owner: claim the children of %s: %w", kube.NameOf(owner),
			kube.Terminal(errors.New("selector is empty and would match every child: use one that does not")))
	}
	var errs []error
	confirmed, mayWrite := false, false
	for _, child := range children {
		if ns := owner.GetNamespace(); ns != "" && ns != child.GetNamespace() {
			continue // its references mean other objects, whatever their UIDs are
		}
		controller := metav1.GetControllerOfNoCopy(child)
		mine := controller != nil && controller.UID == owner.GetUID()
		match := selector.Matches(labels.Set(child.GetLabels()))
		switch {
		case mine && match:
			claimed = append(claimed, child)
			continue
		case !mine && !match, controller != nil && !mine,
			owner.GetDeletionTimestamp() != nil, child.GetDeletionTimestamp() != nil:
			continue
		}
		if !confirmed {
			confirmed = true
			if err := confirm(ctx, owners, owner); err != nil {
				errs = append(errs, err)
			}
			mayWrite = len(errs) == 0
		}
		if !mayWrite {
			continue
		}
		var err error
		verb, refs := "release", kube.WithoutOwner(child, owner.GetUID())
		if !mine {
			verb = "adopt"
			refs, _, err = kube.Controller(owner, kind, child)
		}
		var patched T
		if err == nil {
			patched, err = replace(ctx, client, child, refs)
		}
		switch {
		case kube.IsGone(err, child.GetName()):
		case err != nil:
			errs = append(errs, fmt.Errorf("%s %s: %w", verb, kube.NameOf(child), err))
		case !mine:
			claimed = append(claimed, patched)
		}
	}
	if len(errs) > 0 {
		return claimed, fmt.Errorf("owner: claim the children of %s: %w", kube.NameOf(owner), errors.Join(errs...))
	}
	return claimed, nil
}

// confirm returns an error unless the API server has owner and is not deleting it.
func confirm[O metav1.Object](ctx context.Context, owners controllerkit.Getter[O], owner metav1.Object) error {
	live, err := kube.Live(ctx, owners, owner)
	if err == nil && live.GetDeletionTimestamp() != nil {
		err = fmt.Errorf("%w: it is being deleted", kube.ErrChanged)
	}
	return err
}

const ownersPath = "/metadata/ownerReferences"

// replace sets the owner references of child. It tests every field that the decision was
// made from, so replacing the whole list loses no other owner's entry. The API server
// omits empty fields, so the test for those is for null.
func replace[T metav1.Object](ctx context.Context, client controllerkit.Patcher[T], child T, refs []metav1.OwnerReference) (T, error) {
	var current, l any
	if list := child.GetOwnerReferences(); len(list) > 0 {
		current = list
	}
	if set := child.GetLabels(); len(set) > 0 {
		l = set
	}
	return kube.Patch(ctx, client, child.GetName(), []kube.Operation{
		kube.TestUID(child),
		kube.Test("/metadata/deletionTimestamp", nil),
		kube.Test("/metadata/labels", l),
		kube.Test(ownersPath, current),
		{Op: "add", Path: ownersPath, Value: refs},
	}, metav1.PatchOptions{})
}
