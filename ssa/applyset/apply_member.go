package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// maxStale is after how many stale attempts applyMember returns the error of the next.
const maxStale = 3

// attempt is the state of the attempts to apply a wanted object. Each attempt decides about
// live, and the API server applies it to that version of the object only.
type attempt struct {
	live        metav1.Object // nil if the object is absent, or supposed to be
	adopts      bool          // live becomes a member
	mayRecreate bool          // live may be deleted and created again

	previous         int  // attempts
	rejectsNoVersion bool // the API server rejected kube.NoVersion
	recreated        bool // a previous attempt deleted the object
}

// step is the consequence of the response to an attempt.
type step int

const (
	accept    step = iota // the response is the member
	readAgain             // live is stale
	recreate              // a field that would change is immutable
	undo                  // the apply was to create the object, and another user had created it
	fail
)

// precondition returns the object whose uid and resourceVersion the apply requires. It is
// nil for an absent object if the API server rejects kube.NoVersion. Without force, that apply
// fails if it meets fields of another user.
func (a *attempt) precondition() metav1.Object {
	switch {
	case a.live != nil:
		return a.live
	case a.rejectsNoVersion:
		return nil
	default:
		return &metav1.ObjectMeta{ResourceVersion: kube.NoVersion}
	}
}

// next decides about the response to an apply as manager.
func (a *attempt) next(manager string, response *unstructured.Unstructured, err error) step {
	switch {
	case rejection.IsStale(err) && a.previous < maxStale:
		return readAgain
	case a.mayRecreate && rejection.IsImmutable(err):
		return recreate
	case err != nil:
		return fail
	case a.precondition() == nil && !isCreated(response, manager):
		return undo
	default:
		return accept
	}
}

// action returns the change that led to the response.
func (a *attempt) action(response *unstructured.Unstructured) Action {
	switch {
	case a.live == nil && a.recreated:
		return Recreated
	case a.live == nil:
		return Created
	case a.adopts:
		return Adopted
	case a.live.GetResourceVersion() == response.GetResourceVersion():
		return Unchanged
	default:
		return Changed
	}
}

// applyMember applies one object to the version that it has decided about. It supposes that
// an unknown object is absent.
func (c *setCall) applyMember(ctx context.Context, w *wantedMember) error {
	if c.preview {
		// Later, the preview returns the response to the apply. An apply of a kind that is not served
		// has another error in a preview.
		if err := c.readWhole(ctx, w); err != nil && !kube.IsGone(err, w.id.name) {
			return fmt.Errorf("read the object before the apply: %w", err)
		}
	}
	a := &attempt{live: w.member.Live}
	if listed := c.listed[w.id]; a.live == nil && listed != nil {
		a.live = listed
	}
	memberUID := c.memory.last(w.id).uid
	for ; ; a.previous++ {
		if a.live == nil && (memberUID != "" || a.previous > 0) {
			if err := c.readObject(ctx, w, a); err != nil {
				return err
			}
		}
		if err := c.permit(w, a, memberUID); err != nil {
			return err
		}
		config, err := w.guarded(a.precondition())
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		response, err := c.sendApply(ctx, w, config, a.precondition() != nil)
		switch a.next(c.Manager, response, err) {
		case accept:
			w.action, w.response, w.object.live = a.action(response), response, response
			c.memory.remember(w.id, observed{uid: response.GetUID(), version: response.GetResourceVersion(), sum: w.sum})
			return nil
		case readAgain:
			a.rejectsNoVersion = a.live == nil
			a.live = nil
		case recreate:
			if c.dryRun {
				w.action, w.reason = Recreated, err.Error()
				return c.noteRecreation(ctx, w, a.live)
			}
			if err := c.deleteToRecreate(ctx, w, a.live); err != nil {
				return fmt.Errorf("delete, to recreate it: %w", err)
			}
			a.live, a.recreated = nil, true
		case undo:
			if !c.dryRun {
				err = c.undoApply(ctx, w, response)
			}
			return cmp.Or(err, errors.New("another user created the object during the apply: apply again"))
		case fail:
			return fmt.Errorf("apply as %q: %w", c.Manager, err)
		}
	}
}

// readObject sets live to the metadata of the existing object, if there is one.
func (c *setCall) readObject(ctx context.Context, w *wantedMember, a *attempt) error {
	live, err := c.Metadata.Resource(w.object.resource).Namespace(w.id.namespace).Get(ctx, w.id.name, metav1.GetOptions{})
	switch {
	case err == nil:
		a.live = live
	case !kube.IsGone(err, w.id.name):
		return fmt.Errorf("read the object before the apply: %w", err)
	}
	return nil
}

// permit decides what the attempt may do to live.
func (c *setCall) permit(w *wantedMember, a *attempt, memberUID types.UID) (err error) {
	if a.adopts, err = c.mayApply(w, a.live, memberUID); err != nil {
		return err
	}
	a.mayRecreate = w.member.Recreate && !a.recreated && !a.adopts && c.mayDelete(a.live)
	return nil
}

// guarded returns the configuration with the uid and resourceVersion of precondition.
func (w *wantedMember) guarded(precondition metav1.Object) (*unstructured.Unstructured, error) {
	if precondition == nil {
		return w.object.manifest, nil
	}
	return apply.Guard(w.config, w.object.manifest, precondition, true)
}

// mayApply decides whether the existing object may become, or is, a member. memberUID
// is the uid of the remembered one, or "".
func (c *setCall) mayApply(w *wantedMember, live metav1.Object, memberUID types.UID) (adopted bool, err error) {
	if live == nil {
		return false, nil
	}
	if live.GetDeletionTimestamp() != nil {
		return false, errDeleting
	}
	controller := metav1.GetControllerOfNoCopy(live)
	foreign := controller != nil && controller.UID != c.parent.GetUID()
	switch set := live.GetLabels()[inventory.PartOf]; {
	case foreign && c.Own && c.isParent(controller):
		return false, errCollected
	case foreign && c.Own: // the API server allows one controller
		return false, fmt.Errorf("the object has a controller, %.64s %.253q, beside which Own cannot set the parent: remove that owner reference", controller.Kind, controller.Name)
	case set == c.setID:
		return false, nil
	case w.member.Force:
		return true, nil
	case set != "":
		return false, fmt.Errorf("the object is a member of another set, %.64q: set Force to take it over", set)
	case memberUID == live.GetUID() && !foreign: // another user has removed the label
		return true, nil
	case !w.member.Adopt && c.hasApplied(live):
		return false, fmt.Errorf("the object exists, %q applied it, and it lacks the label of members: if another user removed the label, set %s=%s; otherwise set Adopt to make it a member", c.Manager, inventory.PartOf, c.setID)
	case !w.member.Adopt:
		return false, errors.New("the object exists and is not a member: set Adopt to make it one")
	case foreign:
		return false, fmt.Errorf("the object has a controller, %.64s %.253q: set Force to take it over", controller.Kind, controller.Name)
	}
	return true, nil
}

// isParent reports whether an owner has the kind and the name of the parent.
func (c *setCall) isParent(owner *metav1.OwnerReference) bool {
	gv, _ := schema.ParseGroupVersion(owner.APIVersion)
	return schema.GroupKind{Group: gv.Group, Kind: owner.Kind} == c.ParentKind.GroupKind() && owner.Name == c.parent.GetName()
}

// hasApplied reports whether the Set has applied the object, or another Set or Batch with its
// Manager.
func (c *setCall) hasApplied(live metav1.Object) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == c.Manager && e.Operation == metav1.ManagedFieldsOperationApply
	})
}

// mayDelete reports whether an object exists and has no other controller than the parent.
func (c *setCall) mayDelete(live metav1.Object) bool {
	if live == nil {
		return false
	}
	controller := metav1.GetControllerOfNoCopy(live)
	return controller == nil || controller.UID == c.parent.GetUID()
}

// deleteToRecreate deletes the version of a wanted object that an apply could not change.
func (c *setCall) deleteToRecreate(ctx context.Context, w *wantedMember, live metav1.Object) error {
	uid, version := live.GetUID(), live.GetResourceVersion()
	propagation := metav1.DeletePropagationBackground
	if c.Propagation != nil {
		propagation = c.Propagation(w.object.manifest.GroupVersionKind(), live)
	}
	err := c.Metadata.Resource(w.object.resource).Namespace(w.id.namespace).Delete(ctx, w.id.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &propagation,
	})
	if kube.IsGone(err, w.id.name) {
		return nil
	}
	return err
}

// sendApply applies a configuration of a wanted object.
func (c *setCall) sendApply(ctx context.Context, w *wantedMember, config *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	opts := metav1.ApplyOptions{FieldManager: c.Manager, Force: force}
	if c.dryRun && !c.reports {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return apply.Dynamic(ctx, func(schema.GroupVersionResource, string) apply.Patcher {
		return c.batch.client(w.object)
	}, c.batch.mapper, config, opts)
}

// isCreated reports whether the response to an apply as manager is an object that the apply
// created: it has no other managers yet.
func isCreated(response *unstructured.Unstructured, manager string) bool {
	return !slices.ContainsFunc(response.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager != manager })
}

// undoApply undoes an apply that was to create an object, and met one that another user had
// created since. It removes the fields of the apply.
func (c *setCall) undoApply(ctx context.Context, w *wantedMember, response *unstructured.Unstructured) error {
	none := new(unstructured.Unstructured)
	none.SetGroupVersionKind(w.object.manifest.GroupVersionKind())
	none.SetNamespace(w.id.namespace)
	none.SetName(w.id.name)
	none.SetUID(response.GetUID())
	none.SetResourceVersion(response.GetResourceVersion())
	if _, err := c.sendApply(ctx, w, none, true); err != nil {
		return fmt.Errorf("another user created the object during the apply; remove its fields again: %w", err)
	}
	return nil
}
