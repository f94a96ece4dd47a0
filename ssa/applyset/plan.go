package applyset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/changes"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/parallel"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// Plan returns the results that Apply would have, without a change of any object. The
// API server checks each apply in a dry run. Pruned is an object that Apply would
// delete: if its deletion then waits, such as for finalizers, it is Pending, as are those of
// lower stages. Reason of a Changed or Adopted object has the fields whose values would
// change.
//
// An object whose kind or namespace is among wanted and does not exist yet is Created
// without such a check.
func (s *Set) Plan(ctx context.Context, parent metav1.Object, wanted ...Member) ([]Result, error) {
	return s.call(ctx, parent, wanted, false, func(c *setCall) ([]Result, error) {
		return c.plan(ctx)
	})
}

// plan is Apply in dry runs.
func (c *setCall) plan(ctx context.Context) (_ []Result, err error) {
	defer c.memory.restore(maps.Clone(c.memory.members), c.memory.inventory)
	c.dryRun = true
	toApply, concurrency := slices.Clone(c.wanted), c.Concurrency
	if c.reports { // in the order of Apply
		slices.SortStableFunc(toApply, func(a, b *wantedMember) int { return cmp.Compare(a.stage, b.stage) })
		concurrency = 1
	}
	parallel.Each(ctx, concurrency, toApply, func(w *wantedMember) error {
		w.object.err = c.dryApply(ctx, w)
		return nil
	})
	for _, w := range c.wanted {
		if w.object.err == nil && w.action == "" {
			w.object.err = fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
		}
		c.batch.failed = c.batch.failed || w.object.err != nil
	}
	switch {
	case c.batch.failed:
	case c.reports:
		if err = c.prune(ctx, true); err == nil {
			err = c.writeInventory(ctx, c.neededInventory(), true)
		}
	default:
		if err = c.findFormer(ctx); err == nil {
			err = c.checkBounds()
			c.planPrune()
		}
		c.omitAbsent()
	}
	return c.report(err)
}

// supposeGone takes the objects of a stage that a preview has deleted as gone: lists show them.
func (c *setCall) supposeGone(stage []*formerMember) {
	for _, f := range stage {
		if f.state == deleting && f.live.GetDeletionTimestamp() == nil {
			f.set(pruned, "")
			c.memory.drop(f.id)
		}
	}
}

// noteRecreation reports the deletion and the creation of an object.
func (c *setCall) noteRecreation(ctx context.Context, w *wantedMember, live metav1.Object) error {
	if !c.reports {
		return nil
	}
	if err := c.deleteToRecreate(ctx, w, live); err != nil {
		return fmt.Errorf("delete, to recreate it: %w", err)
	}
	c.noteUncheckedCreation(ctx, w, "It is created again, because a change of an immutable field is rejected.")
	return nil
}

// noteUncheckedCreation reports the creation of an object that the API server cannot check.
func (c *setCall) noteUncheckedCreation(ctx context.Context, w *wantedMember, note string) {
	c.memory.remember(w.id, c.memory.last(w.id))
	if c.reports {
		calls.NoteUnsent(ctx, calls.Unsent{Action: "create", Resource: w.object.resource.GroupResource().String(), Namespace: w.id.namespace, Name: w.id.name, Note: note})
	}
}

// planPrune sets what prune would do to the doomed objects.
func (c *setCall) planPrune() {
	last := 0 // the stage after which prune would end
	for _, f := range c.former {
		if f.blocks() {
			last = max(last, f.stage)
		}
	}
	c.postpone(func(f *formerMember) bool { return f.stage < last }, reasonStage)
	for _, f := range c.former {
		if f.state == doomed {
			f.state = pruned
		}
	}
}

// dryApply applies an object in a dry run, and sets the action that Apply would have.
func (c *setCall) dryApply(ctx context.Context, w *wantedMember) error {
	if w.action == Pending {
		return nil
	}
	unchanged := c.unchanged(ctx, w, c.memory.last(w.id))
	w.config.Release()
	if unchanged {
		w.action = Unchanged
		return nil
	}
	err := c.applyOrWait(ctx, w)
	switch {
	case rejection.IsUnserved(err) && c.definesKindOf(w.object),
		!rejection.IsUnserved(err) && apierrors.IsNotFound(err) && c.wantedIDs[identity{namespaceKind(), "", w.id.namespace}]:
		w.action = Created
		c.noteUncheckedCreation(ctx, w, "It is not checked: its kind or its namespace does not exist yet.")
		return nil
	case err != nil || w.action == Created || w.action == Recreated || w.action == Pending:
		return err
	}
	if w.before == nil {
		if err := c.readWhole(ctx, w); err != nil {
			return fmt.Errorf("read the object: %w", err)
		}
	}
	changed := changes.Paths(w.before, w.response)
	w.reason = strings.Join(changed[:min(len(changed), 16)], ", ")
	switch {
	case w.action == Adopted:
	case len(changed) > 0:
		w.action = Changed
	default:
		w.action = Unchanged
	}
	return nil
}

// readWhole sets before to the existing object.
func (c *setCall) readWhole(ctx context.Context, w *wantedMember) (err error) {
	w.before, err = c.batch.client(w.object).Get(ctx, w.id.name, metav1.GetOptions{})
	return err
}
