package applyset

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// wantedMember is a wanted object of a call.
type wantedMember struct {
	member   Member       // as the caller passed it; after prepare, Live is no nil pointer
	object   *batchObject // has the copy that is applied
	id       identity
	stage    int
	config   *apply.Config
	sum      [sha256.Size]byte // of the configuration
	action   Action
	reason   string
	before   *unstructured.Unstructured // the object before a dry run; nil if absent or unread
	response *unstructured.Unstructured // to the apply; nil without a response
}

// prepare checks a wanted object and gives it the label of members.
func (c *setCall) prepare(w *wantedMember) (err error) {
	w.id = idOf(w.object.manifest)
	if above := c.parentNeeds(w.id); above != "" {
		return fmt.Errorf("the object is %s, whose deletion would delete the parent or wait for it: remove it from the wanted objects", above)
	}
	content := w.object.manifest.Object["metadata"].(map[string]any) // it has a name
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
	labels[inventory.PartOf] = c.setID
	if w.config, err = apply.Encode(w.object.manifest); err != nil {
		return err
	}
	w.sum = sha256.Sum256([]byte(w.config.JSON))
	if w.member.Recreate && defaultStage(w.id.kind) == stageFirst {
		return fmt.Errorf("the deletion of a %s would delete other objects: omit Recreate", w.id.kind.Kind)
	}
	if w.stage, err = c.stageOf(w.object.manifest.GroupVersionKind(), w.object.manifest); err != nil {
		return err
	}
	if kube.IsNil(w.member.Live) {
		w.member.Live = nil
		return nil
	}
	return w.config.Match(w.member.Live)
}

// applyAll applies the wanted objects that need it. The error is about the parent.
func (c *setCall) applyAll(ctx context.Context) error {
	toApply := c.rememberUnchanged(ctx)
	c.batch.first = slices.DeleteFunc(c.batch.first, func(o *batchObject) bool { return toApply[o] == nil })
	byStage := map[int][]*batchObject{}
	definesOwn := false // whether the batch defines the kind of an object
	for o, w := range toApply {
		definesOwn = definesOwn || c.definesKindOf(o)
		byStage[w.stage] = append(byStage[w.stage], o)
	}
	delete(byStage, stageFirst) // c.batch.first
	request := func(ctx context.Context, o *batchObject) error { return c.applyOrWait(ctx, toApply[o]) }
	// A kind that the batch defines joins the inventory once the API server serves it:
	// until then it cannot be listed.
	if err := c.growInventory(ctx, c.batch.definedKinds); err != nil {
		return err
	}
	c.batch.applyFirst(ctx, request)
	for _, kind := range c.batch.definedKinds { // load may have found another version served
		c.unservedVersions.Delete(kind)
		delete(c.mappings, kind.GroupKind())
	}
	if definesOwn && !c.batch.failed {
		if err := c.growInventory(ctx, nil); err != nil {
			return err
		}
	}
	for _, stage := range slices.Sorted(maps.Keys(byStage)) {
		c.batch.run(ctx, byStage[stage], request)
		c.batch.retryDefined(ctx, byStage[stage], request)
	}
	return nil
}

// applyOrWait is applyMember, but with Wait an object whose kind is not served is Pending.
func (c *setCall) applyOrWait(ctx context.Context, w *wantedMember) error {
	err := c.applyMember(ctx, w)
	if w.member.Wait && rejection.IsUnserved(err) && !c.definesKindOf(w.object) {
		w.action, w.reason = Pending, reasonUnserved
		return nil
	}
	return err
}

// rememberUnchanged remembers all wanted objects as members, and returns those that an apply
// would change. Apply remembers them before the apply, because its response can be lost.
func (c *setCall) rememberUnchanged(ctx context.Context) (toApply map[*batchObject]*wantedMember) {
	toApply = map[*batchObject]*wantedMember{}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	for _, w := range c.wanted {
		if w.action == Pending {
			w.config.Release()
			continue
		}
		last := c.memory.members[w.id]
		if c.unchanged(ctx, w, last) {
			w.action, w.object.live = Unchanged, new(unstructured.Unstructured)
			if u, ok := w.member.Live.(*unstructured.Unstructured); ok {
				w.object.live = u
			}
			last = observed{uid: w.member.Live.GetUID(), version: w.member.Live.GetResourceVersion(), sum: w.sum}
		} else {
			toApply[w.object] = w
		}
		c.memory.members[w.id] = last
		w.config.Release()
	}
	return toApply
}

// definesKindOf reports whether a CustomResourceDefinition of the batch defines the kind of
// an object.
func (c *setCall) definesKindOf(o *batchObject) bool {
	return slices.Contains(c.batch.definedKinds, o.manifest.GroupVersionKind())
}

// unchanged reports whether an apply would be a no-op.
func (c *setCall) unchanged(ctx context.Context, w *wantedMember, last observed) bool {
	if w.member.Live == nil || w.member.Live.GetLabels()[inventory.PartOf] != c.setID || w.member.Live.GetDeletionTimestamp() != nil {
		return false
	}
	if _, ok := w.member.Live.(*unstructured.Unstructured); !ok && slices.Contains(c.batch.crds, w.object) {
		return false // only the content shows whether it is established
	}
	if last.uid != "" && last.uid == w.member.Live.GetUID() && last.version == w.member.Live.GetResourceVersion() && last.sum == w.sum {
		return true // the API server returned this object for this configuration
	}
	unchanged, _ := apply.Unchanged[metav1.Object, *unstructured.Unstructured](ctx, c.Manager, w.config, w.member.Live, nil)
	return unchanged
}
