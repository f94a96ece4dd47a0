package applyset

import (
	"context"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/changes"
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
	c, err := s.newCall(parent)
	if err != nil {
		return nil, err
	}
	if err := c.checkWanted(wanted); err != nil {
		return nil, err
	}
	if c.batch.failed {
		return c.report(nil)
	}
	if err := c.checkInventorySize(); err != nil {
		return nil, err
	}
	unlock, err := c.lockParent(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.load(ctx, false); err != nil {
		return nil, err
	}
	members := maps.Clone(c.memory.members)
	defer func() { c.memory.members = members }()
	c.dryRun = true
	each(ctx, c.Concurrency, c.wanted, func(w *wantedMember) error {
		w.object.err = c.dryApply(ctx, w)
		return nil
	})
	for _, w := range c.wanted {
		if w.object.err == nil && w.action == "" {
			w.object.err = fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
		}
		c.batch.failed = c.batch.failed || w.object.err != nil
	}
	if !c.batch.failed {
		if err = c.findFormer(ctx); err == nil {
			err = c.checkBounds()
			c.planPrune()
		}
		c.omitAbsent()
	}
	return c.report(err)
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
		return nil
	case err != nil || w.action == Created || w.action == Recreated || w.action == Pending:
		return err
	}
	live, err := c.batch.client(w.object).Get(ctx, w.id.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	changed := changes.Paths(live, w.response)
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
