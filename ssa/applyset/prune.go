package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// former is an object that can be a member and is not wanted.
type former struct {
	id     identity
	kind   schema.GroupVersionKind
	stage  int
	client metadata.ResourceInterface
	live   *metav1.PartialObjectMetadata // nil if unknown

	doomed   bool   // it is to be deleted
	gone     bool   // before this call
	unserved bool   // the API server does not serve its kind
	action   Action // "" while doomed, gone or failed
	reason   string
	err      error
}

// candidates finds the former members, and decides about each.
func (c *call) candidates(ctx context.Context) {
	c.uids = map[types.UID]bool{}
	for id := range c.ids {
		if uid := c.memory.members[id].uid; uid != "" {
			c.uids[uid] = true
		}
	}
	for id := range c.memory.members {
		c.defines(id)
		if c.ids[id] {
			continue
		}
		f := &former{id: id, kind: id.kind.WithVersion(""), stage: stageOf(id.kind), live: c.seen[id]}
		mapping, err := c.mapping(id.kind)
		switch {
		case meta.IsNoMatchError(err) && !c.memory.inventory.Kinds.Has(id.kind):
			c.drop(f) // it was never applied
			continue
		case meta.IsNoMatchError(err):
			c.memory.unserved.Insert(id.kind)
		case err != nil:
			f.err = fmt.Errorf("find its resource: %w", err)
		default:
			f.kind = mapping.GroupVersionKind
			f.client = c.Metadata.Resource(mapping.Resource).Namespace(id.namespace)
		}
		c.former = append(c.former, f)
	}
	each(ctx, cmp.Or(c.Concurrency, 8), c.former, func(f *former) error {
		if f.err == nil {
			f.err = c.examine(ctx, f)
		}
		if f.err == nil && f.live != nil && f.action != Kept && !f.gone {
			f.stage, f.err = c.stage(f.kind, f.live)
		}
		if f.err != nil {
			f.stage, f.doomed = maxStage, false // its stage is unknown, so no other goes before it
		}
		return nil // f has the error
	})
	c.spare()
}

// spare keeps the Namespaces and CustomResourceDefinitions whose deletion would delete a
// wanted object or a kept member.
func (c *call) spare() {
	used := map[identity]string{}
	use := func(id identity, resource schema.GroupResource, by string) {
		used[identity{namespaceKind(), "", id.namespace}] = by
		used[identity{definitionKind(), "", resource.String()}] = by
	}
	for _, f := range c.former {
		if _, ok := c.memory.members[f.id]; ok && f.action == Kept {
			use(f.id, c.mappings[f.id.kind].Resource.GroupResource(), "the kept "+f.id.kind.Kind+" "+f.id.name)
		}
	}
	for _, w := range c.wanted {
		use(w.id, w.resource.GroupResource(), "the wanted "+w.id.kind.Kind+" "+w.id.name)
	}
	for _, f := range c.former {
		if by := used[f.id]; by != "" && f.doomed {
			f.keep("its deletion would delete " + by)
		}
	}
}

// prune deletes the former members in the reverse order of the stages, and reduces the
// inventory. The error is about the parent or the bound.
func (c *call) prune(ctx context.Context, bounded bool) error {
	c.candidates(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("applyset: nothing was pruned: %w", context.Cause(ctx))
	}
	if bounded {
		if err := c.checkBound(); err != nil {
			return err
		}
	}
	for stage := maxStage; stage > 0; stage-- {
		if stage == stageDefinitions {
			c.spare() // an object can be kept since
		}
		var now []*former
		for _, f := range c.former {
			if f.stage == stage && f.action != Kept {
				now = append(now, f)
			}
		}
		each(ctx, cmp.Or(c.Concurrency, 8), now, func(f *former) error {
			if f.doomed {
				f.err = c.delete(ctx, f)
			}
			return nil
		})
		if len(now) > 0 || stage == stageDefinitions {
			if err := c.settle(ctx, now); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(now, func(f *former) bool { return f.err != nil || f.action == Pending && !f.unserved }) {
			for _, f := range c.former {
				if f.stage < stage && f.doomed {
					f.action, f.reason = Pending, "objects of a later stage are not gone"
				}
			}
			break
		}
	}
	c.former = slices.DeleteFunc(c.former, func(f *former) bool { return f.gone })
	return nil
}

// examine decides about a former member from its live metadata.
func (c *call) examine(ctx context.Context, f *former) error {
	f.doomed = false
	switch {
	case c.memory.unserved.Has(f.id.kind):
		f.lost()
		return nil
	case f.live == nil:
		live, err := f.client.Get(ctx, f.id.name, metav1.GetOptions{})
		switch {
		case err == nil:
			f.live = live
		case kube.IsGone(err, f.id.name):
			c.drop(f)
			f.gone = true
		case isUnserved(err):
			f.lost()
		default:
			return fmt.Errorf("read it before its deletion: %w", err)
		}
	}
	if f.live == nil {
		return nil
	}
	controller := metav1.GetControllerOfNoCopy(f.live)
	switch {
	case c.uids[f.live.GetUID()]: // two kinds can show one object, such as Events
		c.drop(f)
		f.gone = true
	case f.live.GetLabels()[inventory.PartOf] != c.id:
		c.drop(f)
		f.action, f.reason = Kept, "it is not a member any more"
	case f.live.GetUID() == c.parent.GetUID() || c.above(f.id) != "":
		f.keep("it is " + cmp.Or(c.above(f.id), "the parent"))
	case controller != nil && controller.UID != c.parent.GetUID():
		f.keep(fmt.Sprintf("it has a controller, %.64s %.253q", controller.Kind, controller.Name))
	case c.Keep != nil && c.Keep(f.kind, f.live):
		f.keep("Keep returned true")
	case f.live.GetDeletionTimestamp() != nil:
		f.wait()
	default:
		f.doomed = true
	}
	return nil
}

// drop forgets an object that is no member.
func (c *call) drop(f *former) {
	c.memory.guard.Lock()
	defer c.memory.guard.Unlock()
	delete(c.memory.members, f.id)
}

// keep leaves a member in place. It stays in the inventory, and each call decides again.
func (f *former) keep(reason string) { f.action, f.reason, f.doomed = Kept, reason, false }

// wait reports that the object is being deleted.
func (f *former) wait() {
	f.action, f.reason = Pending, "its deletion was accepted"
	if finalizers := f.live.GetFinalizers(); len(finalizers) > 0 {
		f.reason += fmt.Sprintf(", and it waits for the finalizers %.512s", strings.Join(finalizers, ", "))
	}
}

const unserved = "the API server does not serve its kind"

// lost reports that it is unknown whether the object exists.
func (f *former) lost() {
	f.action, f.reason, f.unserved = Pending, unserved, true
}

// checkBound rejects a prune of more objects than a call may delete.
func (c *call) checkBound() error {
	doomed, namespace, definition := 0, "", ""
	for _, f := range c.former {
		if !f.doomed {
			continue
		}
		doomed++
		switch f.id.kind {
		case namespaceKind():
			namespace = f.id.name
		case definitionKind():
			definition = f.id.name
		}
	}
	number, percent := cmp.Or(c.MaxPrune, 100), cmp.Or(c.MaxPrunePercent, 50)
	var err error
	switch all := doomed + len(c.wanted); {
	case namespace != "" && !c.PruneNamespaces:
		err = fmt.Errorf("applyset: prune would delete the Namespace %q, and with it all objects in it: set PruneNamespaces to allow that, or let Keep report it", namespace)
	case definition != "" && !c.PruneCRDs:
		err = fmt.Errorf("applyset: prune would delete the CustomResourceDefinition %q, and with it all objects of its kind: set PruneCRDs to allow that, or let Keep report it", definition)
	case doomed > number:
		err = fmt.Errorf("applyset: prune would delete %d objects: MaxPrune allows %d", doomed, number)
	case doomed*100 > percent*all:
		err = fmt.Errorf("applyset: prune would delete %d of %d objects: MaxPrunePercent allows %d", doomed, all, percent)
	default:
		return nil
	}
	for _, f := range c.former {
		if f.doomed {
			f.action, f.reason = Pending, "prune would delete more than the Set allows"
		}
	}
	return err
}

// delete deletes a doomed object in the version that was examined.
func (c *call) delete(ctx context.Context, f *former) error {
	for try := 0; f.doomed; try++ {
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
			f.wait()
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

// settle lists live what prune has deleted and what the inventory will lose, and then
// reduces the inventory.
func (c *call) settle(ctx context.Context, deleted []*former) error {
	m := c.memory
	gone := map[schema.GroupKind]sets.Set[string]{} // the namespaces of deleted
	after := inventory.New()
	ids := map[identity]bool{}
	for _, f := range deleted {
		if f.err == nil && !f.gone && !f.unserved && f.action != Kept {
			ids[f.id] = true
			if gone[f.id.kind] == nil {
				gone[f.id.kind] = sets.New[string]()
			}
			gone[f.id.kind].Insert(f.id.namespace)
		}
	}
	if len(ids) == 0 && c.needed().Equal(m.inventory) {
		return nil
	}
	for id := range m.members {
		if !ids[id] {
			after.Add(id.kind, id.namespace, c.parent.GetNamespace())
		}
	}
	scopes, err := c.scopes(m.inventory.Kinds.Union(sets.KeySet(gone)), c.namespaces(m.inventory))
	if err != nil {
		return err
	}
	lost := m.inventory.Namespaces.Difference(after.Namespaces)
	for i, s := range scopes {
		namespaces := s.namespaces
		switch {
		case namespaces.Has(""): // cluster-scoped
			if after.Kinds.Has(s.kind) {
				namespaces = nil
			}
		case after.Kinds.Has(s.kind):
			namespaces = lost
		}
		if more := gone[s.kind]; len(more) > 0 {
			namespaces = namespaces.Union(more)
		}
		scopes[i].namespaces = namespaces
	}
	live, err := c.list(ctx, scopes)
	if err != nil {
		return err
	}
	for _, f := range deleted {
		switch now := live[f.id]; {
		case f.err != nil || f.gone || f.action == Kept:
		case now != nil:
			f.live = now
			f.wait()
		case m.unserved.Has(f.id.kind):
			f.lost()
		default:
			f.action, f.reason = Pruned, ""
			c.drop(f)
		}
	}
	for id, now := range live {
		if _, isMember := m.members[id]; !isMember && !c.uids[now.UID] {
			m.members[id] = known{uid: now.UID} // for the next call
		}
	}
	return c.write(ctx, c.needed(), false)
}

// remaining returns an error about the members that Delete has left.
func (c *call) remaining() error {
	var errs []error
	left := len(c.memory.members)
	for _, f := range c.former {
		if _, ok := c.memory.members[f.id]; ok && f.action == Kept {
			left--
		}
		if f.action == Pending && len(errs) < 3 {
			errs = append(errs, &ObjectError{Index: -1, Kind: f.kind, Namespace: f.id.namespace, Name: f.id.name, Err: errors.New(f.reason)})
		}
	}
	kinds := slices.SortedFunc(maps.Keys(c.memory.unserved), func(a, b schema.GroupKind) int { return cmp.Compare(a.String(), b.String()) })
	for i, kind := range kinds {
		if i == 3 {
			errs = append(errs, fmt.Errorf("applyset: the API server does not serve %d more kinds of the inventory", len(kinds)-i))
			break
		}
		errs = append(errs, fmt.Errorf("applyset: the API server does not serve the kind %s of the inventory: if its CustomResourceDefinition was deleted, remove the kind from the parent's annotation applyset.kubernetes.io/contains-group-kinds", kind))
	}
	if left > 0 {
		errs = append(errs, fmt.Errorf("applyset: %d members are not gone: call Delete again", left))
	}
	return errors.Join(errs...)
}

// each calls f for the items, several at a time, and returns the errors after all calls.
// After an error it makes no more calls. If the context ends, its cause is among the
// errors.
func each[T any](ctx context.Context, limit int, items []T, f func(T) error) []error {
	slots := semaphore.NewWeighted(int64(limit))
	var wg sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, len(items), len(items)+1)
	for i, item := range items {
		if slots.Acquire(ctx, 1) != nil || ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if failed.Load() {
			break
		}
		wg.Go(func() {
			defer slots.Release(1)
			if errs[i] = f(item); errs[i] != nil {
				failed.Store(true)
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}
