package applyset

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// wantedMember is a wanted object of a call.
type wantedMember struct {
	Member
	*member
	id     identity
	stage  int
	config *apply.Config
	sum    [sha256.Size]byte // of the configuration
	action Action
	reason string
	answer *unstructured.Unstructured
}

// check completes a wanted object. It makes it a member of the set.
func (c *call) check(w *wantedMember) (err error) {
	w.id = idOf(w.object)
	if above := c.above(w.id); above != "" {
		return fmt.Errorf("the object is %s, whose deletion would delete the parent or wait for it: remove it from the wanted objects", above)
	}
	content := w.object.Object["metadata"].(map[string]any) // it has a name
	for _, field := range []string{"uid", "resourceVersion"} {
		if _, ok := content[field]; ok {
			return fmt.Errorf("metadata.%s is set: omit it, because the Set guards each apply by the live object", field)
		}
	}
	labels, ok := content["labels"].(map[string]any)
	if !ok && content["labels"] != nil {
		return errors.New("metadata.labels is not an object")
	}
	if _, ok := labels[inventory.PartOf]; ok {
		return fmt.Errorf("metadata.labels[%q] is set: omit it, because the Set sets it", inventory.PartOf)
	}
	if labels == nil {
		labels = map[string]any{}
		content["labels"] = labels
	}
	labels[inventory.PartOf] = c.id
	if w.config, err = apply.Encode(w.object); err != nil {
		return err
	}
	w.sum = sha256.Sum256([]byte(w.config.JSON))
	if w.Recreate && stageOf(w.id.kind) == stageDefinitions {
		return fmt.Errorf("the deletion of a %s would delete other objects: omit Recreate", w.id.kind.Kind)
	}
	if w.stage, err = c.stage(w.object.GroupVersionKind(), w.object); err != nil {
		return err
	}
	if kube.IsNil(w.Live) {
		w.Live = nil
		return nil
	}
	return w.config.Match(w.Live)
}

// applyAll applies the wanted objects that need it. The error is about the parent.
func (c *call) applyAll(ctx context.Context) error {
	wanted := map[*member]*wantedMember{}
	c.memory.guard.Lock()
	for _, w := range c.wanted {
		if w.action == Pending {
			w.config.Release()
			continue
		}
		known := c.memory.members[w.id]
		if c.unchanged(ctx, w, known) {
			w.action, w.response = Unchanged, new(unstructured.Unstructured)
			if u, ok := w.Live.(*unstructured.Unstructured); ok {
				w.response = u
			}
			known.uid, known.version, known.sum = w.Live.GetUID(), w.Live.GetResourceVersion(), w.sum
		} else {
			wanted[w.member] = w
		}
		// Before the apply, because its response can be lost.
		c.memory.members[w.id] = known
		w.config.Release()
	}
	c.memory.guard.Unlock()

	c.run.first = slices.DeleteFunc(c.run.first, func(m *member) bool { return wanted[m] == nil })
	byStage := map[int][]*member{}
	var later bool // whether this call defines kinds of its members
	for m, w := range wanted {
		later = later || slices.Contains(c.run.defined, m.object.GroupVersionKind())
		byStage[w.stage] = append(byStage[w.stage], m)
	}
	request := func(ctx context.Context, m *member) error {
		w := wanted[m]
		err := c.apply(ctx, w)
		if w.Wait && isUnserved(err) && !slices.Contains(c.run.defined, m.object.GroupVersionKind()) {
			w.action, w.reason = Pending, unserved
			return nil
		}
		return err
	}
	// A kind that this call defines joins the inventory once the API server serves it:
	// until then it cannot be listed.
	if err := c.grow(ctx, c.run.defined); err != nil {
		return err
	}
	c.batch.applyFirst(ctx, c.run, request)
	if later && !c.run.failed {
		if err := c.grow(ctx, nil); err != nil {
			return err
		}
	}
	delete(byStage, stageDefinitions)
	for _, stage := range slices.Sorted(maps.Keys(byStage)) {
		c.run.stage(ctx, byStage[stage], request)
		c.run.again(ctx, byStage[stage], request)
	}
	return nil
}

// unchanged reports whether an apply would be a no-op.
func (c *call) unchanged(ctx context.Context, w *wantedMember, known known) bool {
	if w.Live == nil || w.Live.GetLabels()[inventory.PartOf] != c.id || w.Live.GetDeletionTimestamp() != nil {
		return false
	}
	if _, ok := w.Live.(*unstructured.Unstructured); !ok && slices.Contains(c.run.crds, w.member) {
		return false // only the content shows whether it is established
	}
	if known.uid != "" && known.uid == w.Live.GetUID() && known.version == w.Live.GetResourceVersion() && known.sum == w.sum {
		return true // the API server returned this object for this configuration
	}
	unchanged, _ := apply.Unchanged[metav1.Object, *unstructured.Unstructured](ctx, c.Manager, w.config, w.Live, nil)
	return unchanged
}

// noVersion is a resourceVersion that no object has. An apply with it creates an object,
// and fails with a Conflict if the object exists.
const noVersion = "9223372036854775807"

// apply applies one object to the version that it has decided about. It supposes that an
// unknown object is absent.
func (c *call) apply(ctx context.Context, w *wantedMember) error {
	live := w.Live
	if seen := c.seen[w.id]; live == nil && seen != nil {
		live = seen
	}
	c.memory.guard.Lock()
	member := c.memory.members[w.id].uid // "" if no member is known
	c.memory.guard.Unlock()
	var rejected, recreated bool // noVersion was rejected; the object was deleted
	for try := 0; ; try++ {
		if live == nil && (member != "" || try > 0) {
			got, err := c.Metadata.Resource(w.resource).Namespace(w.id.namespace).Get(ctx, w.id.name, metav1.GetOptions{})
			switch {
			case err == nil:
				live = got
			case !kube.IsGone(err, w.id.name):
				return fmt.Errorf("read the object before the apply: %w", err)
			}
		}
		adopted, err := c.mayApply(w, live, member)
		if err != nil {
			return err
		}
		config, guard := w.object, live
		if live == nil && !rejected {
			guard = &metav1.ObjectMeta{ResourceVersion: noVersion}
		}
		if guard != nil {
			if config, err = apply.Guard(w.config, w.object, guard, true); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// An API server can reject noVersion although the object is absent. Without a
		// guard and force, the apply fails if another user has created the object since.
		response, err := c.send(ctx, w, config, guard != nil)
		switch {
		case err != nil && isStale(err) && try < 3:
			rejected = live == nil
			live = nil
			continue
		case w.Recreate && c.mayRecreate(live, adopted) && isImmutable(err) && c.dryRun:
			w.action, w.reason = Recreated, err.Error()
			return nil
		case w.Recreate && c.mayRecreate(live, adopted) && isImmutable(err) && !recreated:
			if err := c.remove(ctx, w, live); err != nil {
				return fmt.Errorf("delete, to recreate it: %w", err)
			}
			live, recreated = nil, true
			continue
		case err != nil:
			return fmt.Errorf("apply as %q: %w", c.Manager, err)
		case guard == nil && !c.created(response):
			if !c.dryRun {
				err = c.release(ctx, w, response)
			}
			return cmp.Or(err, errors.New("another user created the object during the apply: apply again"))
		}
		w.response, w.answer = response, response
		switch {
		case live == nil && recreated:
			w.action = Recreated
		case live == nil:
			w.action = Created
		case adopted:
			w.action = Adopted
		case live.GetResourceVersion() == response.GetResourceVersion():
			w.action = Unchanged
		default:
			w.action = Changed
		}
		c.memory.guard.Lock()
		defer c.memory.guard.Unlock()
		c.memory.members[w.id] = known{uid: response.GetUID(), version: response.GetResourceVersion(), sum: w.sum}
		return nil
	}
}

// mayApply decides whether the existing object may become, or is, a member. member is the
// uid of the known one.
func (c *call) mayApply(w *wantedMember, live metav1.Object, member types.UID) (adopted bool, err error) {
	if live == nil {
		return false, nil
	}
	if live.GetDeletionTimestamp() != nil {
		return false, errDeleting
	}
	controller := metav1.GetControllerOfNoCopy(live)
	foreign := controller != nil && controller.UID != c.parent.GetUID()
	switch set := live.GetLabels()[inventory.PartOf]; {
	case foreign && c.Own: // the API server allows one controller
		return false, fmt.Errorf("the object has a controller, %.64s %.253q, beside which Own cannot set the parent: remove that owner reference", controller.Kind, controller.Name)
	case set == c.id:
		return false, nil
	case w.Force:
		return true, nil
	case set != "":
		return false, fmt.Errorf("the object is a member of another set, %.64q: set Force to take it over", set)
	case member == live.GetUID() && !foreign: // another user has removed the label
		return true, nil
	case !w.Adopt && c.applied(live):
		return false, fmt.Errorf("the object exists, %q applied it, and it lacks the label of members: if another user removed the label, set %s=%s; otherwise set Adopt to make it a member", c.Manager, inventory.PartOf, c.id)
	case !w.Adopt:
		return false, errors.New("the object exists and is not a member: set Adopt to make it one")
	case foreign:
		return false, fmt.Errorf("the object has a controller, %.64s %.253q: set Force to take it over", controller.Kind, controller.Name)
	}
	return true, nil
}

// applied reports whether the Set has applied the object, or another Set or Batch with its
// Manager.
func (c *call) applied(live metav1.Object) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == c.Manager && e.Operation == metav1.ManagedFieldsOperationApply
	})
}

// mayRecreate reports whether the existing object is a member that the Set may delete.
func (c *call) mayRecreate(live metav1.Object, adopted bool) bool {
	if live == nil || adopted {
		return false
	}
	controller := metav1.GetControllerOfNoCopy(live)
	return controller == nil || controller.UID == c.parent.GetUID()
}

// remove deletes the version of a wanted object that an apply could not change.
func (c *call) remove(ctx context.Context, w *wantedMember, live metav1.Object) error {
	uid, version := live.GetUID(), live.GetResourceVersion()
	propagation := metav1.DeletePropagationBackground
	if c.Propagation != nil {
		propagation = c.Propagation(w.object.GroupVersionKind(), live)
	}
	err := c.Metadata.Resource(w.resource).Namespace(w.id.namespace).Delete(ctx, w.id.name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &propagation,
	})
	if kube.IsGone(err, w.id.name) {
		return nil
	}
	return err
}

// send applies a configuration of a wanted object.
func (c *call) send(ctx context.Context, w *wantedMember, config *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	opts := metav1.ApplyOptions{FieldManager: c.Manager, Force: force}
	if c.dryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return apply.Dynamic(ctx, func(schema.GroupVersionResource, string) apply.Patcher {
		return c.batch.resource(w.member)
	}, c.run.mapper, config, opts)
}

// created reports whether the response to an apply is an object that the apply created: it
// has no other managers yet.
func (c *call) created(response *unstructured.Unstructured) bool {
	return !slices.ContainsFunc(response.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager != c.Manager })
}

// release undoes an apply that was to create an object, and met one that another user had
// created since. It removes the fields of the apply.
func (c *call) release(ctx context.Context, w *wantedMember, response *unstructured.Unstructured) error {
	none := new(unstructured.Unstructured)
	none.SetGroupVersionKind(w.object.GroupVersionKind())
	none.SetNamespace(w.id.namespace)
	none.SetName(w.id.name)
	none.SetUID(response.GetUID())
	none.SetResourceVersion(response.GetResourceVersion())
	if _, err := c.send(ctx, w, none, true); err != nil {
		return fmt.Errorf("another user created the object during the apply; remove its fields again: %w", err)
	}
	return nil
}

// isImmutable reports whether the API server rejects only changes of immutable fields.
// If the configuration were not valid otherwise, its response would also have other
// causes. Their type is not one of their own, so only their texts show it.
func isImmutable(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || isStale(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	causes := status.Status().Details.Causes
	for _, c := range causes {
		text := strings.ToLower(c.Message)
		if !slices.ContainsFunc([]string{"immutable", "may not change", "may not be changed", "cannot change", "can not be changed", "updates to ", "updates may not "}, func(s string) bool {
			return strings.Contains(text, s)
		}) {
			return false
		}
	}
	return len(causes) > 0
}

// isStale reports whether the live object is newer than the decision about its apply.
func isStale(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil {
		return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
	}
	return apierrors.IsConflict(err)
}
