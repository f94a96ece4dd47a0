package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrOtherController is returned by [SetController] for a child that has another
// controller. An object has at most one.
var ErrOtherController = errors.New("it has another controller")

// SetController makes owner, whose kind is kind, the controller of child by an owner
// reference: child is garbage collected after owner, and handlers find their way
// from child to owner. The reference blocks a foreground deletion of owner, as those
// of Kubernetes' own controllers do.
//
// child is an object that the caller is about to create, or a copy of its own: if
// the reference is there already, nothing is written to it, otherwise its list of
// owner references is replaced by a new one. A reference to owner that is not the
// controller's becomes it. Other owners stay.
//
// A failure leaves child unchanged. It is [ErrTerminal] for references that would
// make the garbage collector delete child: an owner in another namespace, a
// namespaced owner of a child without namespace, an owner without UID; and for a kind
// without version or kind. It is [ErrOtherController] if child has another
// controller, which may be an earlier object of owner's name. That one is not
// terminal: others can let go.
func SetController(owner metav1.Object, kind schema.GroupVersionKind, child metav1.Object) error {
	refs, err := withController(owner, kind, child)
	if err != nil {
		return fmt.Errorf("make %s the controller of %s: %w", nameOf(owner), nameOf(child), err)
	}
	if refs != nil {
		child.SetOwnerReferences(refs)
	}
	return nil
}

// withController returns the owner references that child needs, nil if it has them.
func withController(owner metav1.Object, kind schema.GroupVersionKind, child metav1.Object) ([]metav1.OwnerReference, error) {
	if err := checkOwner(owner, kind); err != nil {
		return nil, err
	}
	switch ns := owner.GetNamespace(); {
	case ns == "" || ns == child.GetNamespace():
	case child.GetNamespace() == "":
		return nil, fmt.Errorf("the owner is in namespace %s and the child in none: set its metadata.namespace, or, if it is cluster-scoped, give it a cluster-scoped owner or a finalizer: %w", ns, ErrTerminal)
	default:
		return nil, fmt.Errorf("the owner is in namespace %s, the child in %s: an owner must be in the child's namespace: %w", ns, child.GetNamespace(), ErrTerminal)
	}
	want := *metav1.NewControllerRef(owner, kind)
	refs := child.GetOwnerReferences()
	at := -1
	for i, ref := range refs {
		switch {
		case ref.UID == owner.GetUID() && at < 0:
			at = i
		case ref.UID != owner.GetUID() && ref.Controller != nil && *ref.Controller:
			return nil, fmt.Errorf("%w: %s %s with uid %s", ErrOtherController, ref.Kind, ref.Name, ref.UID)
		}
	}
	switch {
	case at < 0:
		return append(slices.Clone(refs), want), nil
	case same(refs[at], want):
		return nil, nil
	}
	refs = slices.Clone(refs)
	refs[at] = want
	return refs, nil
}

func checkOwner(owner metav1.Object, kind schema.GroupVersionKind) error {
	switch {
	case owner.GetUID() == "" || owner.GetName() == "":
		return fmt.Errorf("the owner has no metadata.uid or no name: pass an owner that the API server returned: %w", ErrTerminal)
	case kind.Version == "" || kind.Kind == "":
		return fmt.Errorf("kind is %q: set the version and kind of the owner, which typed objects do not carry: %w", kind, ErrTerminal)
	}
	return nil
}

func same(a, b metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
		isTrue(a.Controller) == isTrue(b.Controller) && isTrue(a.BlockOwnerDeletion) == isTrue(b.BlockOwnerDeletion)
}

func isTrue(b *bool) bool { return b != nil && *b }

// Claim makes ownership follow labels, as the controllers of Kubernetes do: of the
// given children it adopts those that match selector and have no controller, and
// orphans those that owner controls and that match no more. It returns the children
// that owner controls and that match, with the server's answer in place of those
// adopted now, in the order given. children may be the informer's: they are not
// changed.
//
//	child is controlled by   matches    what happens
//	owner                    yes        returned
//	owner                    no         its reference to owner is removed
//	nobody                   yes        owner becomes its controller, returned
//	nobody                   no         nothing
//	another                  either     nothing
//
// A child that is being deleted is neither adopted nor orphaned, nor is any child
// while owner is, nor one of another namespace than a namespaced owner. What the
// cache says of owner is not enough for that: before the first write of a call owner
// is read from the server. [ErrGone], [ErrReplaced], or [ErrChanged] if it is being
// deleted there, end the call with nothing written.
//
// A write holds only if the child's UID, owner references and labels are those that
// the decision was made from, and it is not being deleted; otherwise it is a Conflict.
// A child that is gone is no error. The writes are made one after the other, and the
// errors of all are joined; what was claimed is returned next to them.
//
// owners is the client of owner, client the one of the children's namespace. A nil or
// empty selector, which would adopt everything, an owner without UID and a kind
// without version or kind fail with [ErrTerminal].
func Claim[O, T metav1.Object](ctx context.Context, owners Getter[O], owner metav1.Object, kind schema.GroupVersionKind, client Patcher[T], selector labels.Selector, children []T) (claimed []T, err error) {
	what := "claim the children of " + nameOf(owner)
	if err := checkOwner(owner, kind); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if selector == nil || selector.Empty() {
		return nil, fmt.Errorf("%s: the selector is empty: give one that does not match everything: %w", what, ErrTerminal)
	}
	var errs []error
	confirmed := false
	for _, child := range children {
		controller := metav1.GetControllerOfNoCopy(child)
		mine := controller != nil && controller.UID == owner.GetUID()
		match := selector.Matches(labels.Set(child.GetLabels()))
		if mine && match {
			claimed = append(claimed, child)
			continue
		}
		switch {
		case mine == match, // neither: not ours to care for
			controller != nil && !mine,
			owner.GetDeletionTimestamp() != nil,
			child.GetDeletionTimestamp() != nil,
			owner.GetNamespace() != "" && owner.GetNamespace() != child.GetNamespace():
			continue
		}
		if !confirmed {
			if err := confirmOwner(ctx, owners, owner); err != nil {
				return claimed, fmt.Errorf("%s: %w", what, err)
			}
			confirmed = true
		}
		verb := "adopt"
		change := orphaning
		if mine {
			verb = "orphan"
		} else {
			change = adoption
		}
		operations, err := change(owner, kind, child)
		var answer T
		if err == nil {
			answer, err = patch(ctx, client, child, operations...)
		}
		switch {
		case isGone(err, child.GetName()):
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %s %s: %w", what, verb, nameOf(child), err))
		case !mine:
			claimed = append(claimed, answer)
		}
	}
	return claimed, errors.Join(errs...)
}

// confirmOwner makes sure that the server has owner, and that it stays.
func confirmOwner[O metav1.Object](ctx context.Context, owners Getter[O], owner metav1.Object) error {
	live, err := getSame(ctx, owners, owner)
	if err == nil && live.GetDeletionTimestamp() != nil {
		err = fmt.Errorf("%w: it is being deleted", ErrChanged)
	}
	return err
}

const (
	uidPath      = "/metadata/uid"
	versionPath  = "/metadata/resourceVersion"
	deletionPath = "/metadata/deletionTimestamp"
	labelsPath   = "/metadata/labels"
	ownersPath   = "/metadata/ownerReferences"
)

// asDecided tests all that the decision about child was made from. The API server
// leaves out what is empty, so that is tested for as null.
func asDecided(child metav1.Object) []operation {
	tests := []operation{test(uidPath, child.GetUID()), test(deletionPath, nil), test(labelsPath, nil), test(ownersPath, nil)}
	if l := child.GetLabels(); len(l) > 0 {
		tests[2].Value = l
	}
	if refs := child.GetOwnerReferences(); len(refs) > 0 {
		tests[3].Value = refs
	}
	return tests
}

// adoption makes owner the controller of child.
func adoption(owner metav1.Object, kind schema.GroupVersionKind, child metav1.Object) ([]operation, error) {
	refs, err := withController(owner, kind, child)
	// With the list known from the test, to replace it whole loses nobody's entry.
	return append(asDecided(child), operation{Op: "add", Path: ownersPath, Value: refs}), err
}

// orphaning takes every reference to owner out of child.
func orphaning(owner metav1.Object, _ schema.GroupVersionKind, child metav1.Object) ([]operation, error) {
	refs := slices.DeleteFunc(slices.Clone(child.GetOwnerReferences()), func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
	return append(asDecided(child), operation{Op: "add", Path: ownersPath, Value: refs}), nil
}
