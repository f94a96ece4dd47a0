package applyset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/parallel"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// formerMember is an object that can be a member and is not wanted.
type formerMember struct {
	id     identity
	kind   schema.GroupVersionKind
	stage  int
	client metadata.ResourceInterface
	live   *metav1.PartialObjectMetadata // nil if unknown

	state  formerState
	reason string
	err    error
}

// formerState is what a call knows of a former member, or has decided about it.
type formerState int

const (
	unexamined formerState = iota // also if the examination failed
	absent                        // it was gone before, or is a wanted object in another kind; it has no Result
	leftSet                       // it exists and is not a member any more
	kept                          // it is a member that must stay

	unserved  // the API server does not serve its kind, so it can exist
	doomed    // this call is to delete it
	postponed // a later call is to delete it
	deleting  // the API server accepted its deletion
	pruned    // it was deleted, and a list shows that it is gone
)

// action returns the Action of the Result, which a failed object does not have.
func (s formerState) action() Action {
	switch s {
	case leftSet, kept:
		return Kept
	case pruned:
		return Pruned
	default:
		return Pending
	}
}

// isStaged reports whether the object goes, or can go, in the order of the stages.
func (s formerState) isStaged() bool { return s == unserved || s == doomed || s == deleting }

// blocks reports whether the objects of lower stages wait for the object.
func (f *formerMember) blocks() bool { return f.err != nil || f.state == deleting }

func (f *formerMember) set(state formerState, reason string) { f.state, f.reason = state, reason }

// setDeleting reports that the object is being deleted.
func (f *formerMember) setDeleting() {
	f.set(deleting, "its deletion was accepted")
	if finalizers := f.live.GetFinalizers(); len(finalizers) > 0 {
		f.reason += fmt.Sprintf(", and it waits for the finalizers %.512s", strings.Join(finalizers, ", "))
	}
}

const (
	reasonUnserved = "the API server does not serve its kind"
	reasonStage    = "objects of a later stage are not gone"
)

// findFormer finds the former members, and decides about each. The error is about ctx.
func (c *setCall) findFormer(ctx context.Context) error {
	c.wantedUIDs = map[types.UID]bool{}
	for id := range c.wantedIDs {
		if uid := c.memory.members[id].uid; uid != "" {
			c.wantedUIDs[uid] = true
		}
	}
	for id := range c.memory.members {
		c.noteGroup(id)
		if c.wantedIDs[id] {
			continue
		}
		f := &formerMember{id: id, kind: id.kind.WithVersion(""), stage: defaultStage(id.kind), live: c.listed[id]}
		mapping, err := c.mapping(id.kind)
		switch {
		case meta.IsNoMatchError(err) && !c.memory.inventory.Kinds.Has(id.kind):
			c.memory.drop(f.id) // it was never applied
			continue
		case meta.IsNoMatchError(err):
			c.memory.unservedKinds.Insert(id.kind)
		case err != nil:
			f.err = fmt.Errorf("find its resource: %w", err)
		default:
			f.kind = mapping.GroupVersionKind
			f.client = c.Metadata.Resource(mapping.Resource).Namespace(id.namespace)
		}
		c.former = append(c.former, f)
	}
	parallel.Each(ctx, c.Concurrency, c.former, func(f *formerMember) error {
		if f.err == nil {
			f.err = c.examine(ctx, f)
		}
		if f.err == nil && f.live != nil && f.state.isStaged() {
			f.stage, f.err = c.stageOf(f.kind, f.live)
		}
		if f.err != nil {
			f.stage, f.state = maxStage, unexamined // its stage is unknown, so no other goes before it
		}
		return nil // f has the error
	})
	c.keepUsed()
	if ctx.Err() != nil {
		return fmt.Errorf("applyset: nothing was pruned: %w", context.Cause(ctx))
	}
	return nil
}

// keepUsed keeps the Namespaces and CustomResourceDefinitions whose deletion would delete a
// wanted object or a kept member.
func (c *setCall) keepUsed() {
	used := map[identity]string{}
	use := func(id identity, resource schema.GroupResource, by string) {
		used[identity{namespaceKind(), "", id.namespace}] = by
		used[identity{crdKind(), "", resource.String()}] = by
	}
	for _, f := range c.former {
		if f.state == kept {
			use(f.id, c.mappings[f.id.kind].Resource.GroupResource(), "the kept "+f.id.kind.Kind+" "+f.id.name)
		}
	}
	unresolved := map[string]string{} // by group: each definition of the group can be theirs
	for _, w := range c.wanted {
		by := "the wanted " + w.id.kind.Kind + " " + w.id.name
		use(w.id, w.object.resource.GroupResource(), by)
		if w.object.resource.Empty() { // it is Pending, and can exist in another version
			unresolved[w.id.kind.Group] = by + " if it defines that kind"
		}
	}
	for _, f := range c.former {
		by := used[f.id]
		if f.id.kind == crdKind() {
			_, group, _ := strings.Cut(f.id.name, ".")
			by = cmp.Or(by, unresolved[group])
		}
		if by != "" && f.state == doomed {
			f.set(kept, "its deletion would delete "+by)
		}
	}
}

// prune deletes the former members in the reverse order of the stages, and reduces the
// inventory. The error is about the parent or the bound.
func (c *setCall) prune(ctx context.Context, bounded bool) error {
	if err := c.findFormer(ctx); err != nil {
		return err
	}
	if bounded {
		if err := c.checkBounds(); err != nil {
			return err
		}
	}
	for stage := maxStage; stage > 0; stage-- {
		if stage == stageFirst {
			c.keepUsed() // an object can be kept since
		}
		var now []*formerMember
		for _, f := range c.former {
			if f.stage == stage && f.state != kept && f.state != leftSet {
				now = append(now, f)
			}
		}
		parallel.Each(ctx, c.Concurrency, now, func(f *formerMember) error {
			if f.state == doomed {
				f.err = c.deleteFormer(ctx, f)
			}
			return nil // f has the error
		})
		if c.preview {
			c.supposeGone(now)
		} else if len(now) > 0 || stage == stageFirst {
			if err := c.confirm(ctx, now); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(now, (*formerMember).blocks) {
			c.postpone(func(f *formerMember) bool { return f.stage < stage }, reasonStage)
			break
		}
	}
	c.omitAbsent()
	return nil
}

// postpone leaves the doomed objects that match to a later call.
func (c *setCall) postpone(match func(*formerMember) bool, reason string) {
	for _, f := range c.former {
		if f.state == doomed && match(f) {
			f.set(postponed, reason)
		}
	}
}

// omitAbsent removes the objects without a Result.
func (c *setCall) omitAbsent() {
	c.former = slices.DeleteFunc(c.former, func(f *formerMember) bool { return f.state == absent })
}

// examine reads the live metadata of a former member if they are unknown, and decides about
// the object.
func (c *setCall) examine(ctx context.Context, f *formerMember) error {
	f.state = unexamined
	switch {
	case c.memory.unservedKinds.Has(f.id.kind):
		f.set(unserved, reasonUnserved)
		return nil
	case f.live == nil:
		live, err := f.client.Get(ctx, f.id.name, metav1.GetOptions{})
		switch {
		case err == nil:
			f.live = live
		case kube.IsGone(err, f.id.name):
			f.state = absent
			c.memory.drop(f.id)
			return nil
		case rejection.IsUnserved(err):
			f.set(unserved, reasonUnserved)
			return nil
		default:
			return fmt.Errorf("read it before its deletion: %w", err)
		}
	}
	switch c.decide(f); f.state {
	case absent, leftSet:
		c.memory.drop(f.id)
	case deleting:
		f.setDeleting()
	}
	return nil
}

// decide decides about a former member by its live metadata.
func (c *setCall) decide(f *formerMember) {
	controller := metav1.GetControllerOfNoCopy(f.live)
	switch {
	case c.wantedUIDs[f.live.GetUID()]: // two kinds can show one object, such as Events
		f.state = absent
	case f.live.GetLabels()[inventory.PartOf] != c.setID:
		f.set(leftSet, "it is not a member any more")
	case f.live.GetUID() == c.parent.GetUID() || c.parentNeeds(f.id) != "":
		f.set(kept, "it is "+cmp.Or(c.parentNeeds(f.id), "the parent"))
	case controller != nil && controller.UID != c.parent.GetUID():
		f.set(kept, fmt.Sprintf("it has a controller, %.64s %.253q", controller.Kind, controller.Name))
	case c.Keep != nil && c.Keep(f.kind, f.live):
		f.set(kept, "Keep returned true")
	case f.live.GetDeletionTimestamp() != nil:
		f.state = deleting
	default:
		f.state = doomed
	}
}

// checkBounds rejects a prune of more objects than a call may delete, and postpones it.
func (c *setCall) checkBounds() error {
	number, namespace, definition := 0, "", "" // of the doomed objects
	for _, f := range c.former {
		if f.state != doomed {
			continue
		}
		number++
		switch f.id.kind {
		case namespaceKind():
			namespace = f.id.name
		case crdKind():
			definition = f.id.name
		}
	}
	maxNumber, maxPercent := cmp.Or(c.MaxPrune, 100), cmp.Or(c.MaxPrunePercent, 50)
	var err error
	switch all := number + len(c.wanted); {
	case namespace != "" && !c.PruneNamespaces:
		err = fmt.Errorf("applyset: prune would delete the Namespace %q, and with it all objects in it: set PruneNamespaces to allow that, or let Keep report it", namespace)
	case definition != "" && !c.PruneCRDs:
		err = fmt.Errorf("applyset: prune would delete the CustomResourceDefinition %q, and with it all objects of its kind: set PruneCRDs to allow that, or let Keep report it", definition)
	case number > maxNumber:
		err = fmt.Errorf("applyset: prune would delete %d objects: MaxPrune allows %d", number, maxNumber)
	case number*100 > maxPercent*all:
		err = fmt.Errorf("applyset: prune would delete %d of %d objects: MaxPrunePercent allows %d", number, all, maxPercent)
	default:
		return nil
	}
	c.postpone(func(*formerMember) bool { return true }, "prune would delete more than the Set allows")
	return err
}

// deleteFormer deletes a doomed object in the version that was examined. After a Conflict it
// examines the object again.
func (c *setCall) deleteFormer(ctx context.Context, f *formerMember) error {
	for try := 0; f.state == doomed; try++ {
		uid, version := f.live.GetUID(), f.live.GetResourceVersion()
		propagation := metav1.DeletePropagationBackground
		if c.Propagation != nil {
			propagation = c.Propagation(f.kind, f.live)
		}
		err := f.client.Delete(ctx, f.id.name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &propagation,
		})
		switch {
		case err == nil || kube.IsGone(err, f.id.name):
			f.setDeleting()
			return nil
		case apierrors.IsConflict(err) && try < 2:
			f.live = nil
			if err := c.examine(ctx, f); err != nil {
				return err
			}
		default:
			return fmt.Errorf("delete: %w", err)
		}
	}
	return nil
}
