package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// confirm confirms by lists which objects of a stage are gone, and that no member has a kind
// or namespace that leaves the inventory. Then it reduces the inventory.
func (c *setCall) confirm(ctx context.Context, stage []*formerMember) error {
	m := c.memory
	deleted := map[identity]bool{}
	for _, f := range stage {
		if f.mayBeGone() {
			deleted[f.id] = true
		}
	}
	if len(deleted) == 0 && c.neededInventory().Equal(m.inventory) {
		return nil
	}
	kinds := m.inventory.Kinds.Clone()
	for id := range deleted {
		kinds.Insert(id.kind)
	}
	scopes, err := c.scopes(kinds, c.namespaces(m.inventory))
	if err != nil {
		return err
	}
	live, err := c.list(ctx, c.uncertain(scopes, deleted))
	if err != nil {
		return err
	}
	for _, f := range stage {
		f.judge(live[f.id], m.unservedKinds)
		if f.state == pruned {
			m.drop(f.id)
		}
	}
	for id, found := range live {
		if _, ok := m.members[id]; !ok && !c.wantedUIDs[found.UID] {
			m.members[id] = observed{uid: found.UID} // for the next call
		}
	}
	return c.writeInventory(ctx, c.neededInventory(), false)
}

// mayBeGone reports whether the call deleted the object, or found it being deleted.
func (f *formerMember) mayBeGone() bool {
	return f.err == nil && (f.state == doomed || f.state == deleting)
}

// uncertain reduces the scopes of the inventory to those that lists must confirm: kinds and
// namespaces that leave the inventory with the deleted members, and the namespaces of these.
func (c *setCall) uncertain(scopes []scope, deleted map[identity]bool) []scope {
	deletedIn := map[schema.GroupKind]sets.Set[string]{}
	remaining := inventory.New()
	for id := range c.memory.members {
		if !deleted[id] {
			remaining.Add(id.kind, id.namespace, c.parent.GetNamespace())
		}
	}
	for id := range deleted {
		if deletedIn[id.kind] == nil {
			deletedIn[id.kind] = sets.New[string]()
		}
		deletedIn[id.kind].Insert(id.namespace)
	}
	leaving := c.memory.inventory.Namespaces.Difference(remaining.Namespaces)
	reduced := make([]scope, len(scopes))
	for i, s := range scopes {
		namespaces := s.namespaces
		switch {
		case !remaining.Kinds.Has(s.kind): // the kind leaves
		case s.isCluster():
			namespaces = nil
		default:
			namespaces = leaving
		}
		reduced[i] = scope{s.kind, namespaces.Union(deletedIn[s.kind])}
	}
	return reduced
}

// judge decides about an object by a list. live is nil if the list did not have the object.
func (f *formerMember) judge(live *metav1.PartialObjectMetadata, unservedKinds sets.Set[schema.GroupKind]) {
	switch {
	case !f.mayBeGone():
	case live != nil:
		f.live = live
		f.setDeleting()
	case unservedKinds.Has(f.id.kind):
		f.set(unserved, reasonUnserved)
	default:
		f.set(pruned, "")
	}
}

// remaining returns an error about the members that Delete has left.
func (c *setCall) remaining() error {
	var errs []error
	left := len(c.memory.members)
	for _, f := range c.former {
		if f.state == kept {
			left--
		}
		if f.state.action() == Pending && len(errs) < 3 {
			err := errors.New(f.reason)
			if f.state != unserved { // which can need a human
				err = waiting{err}
			}
			errs = append(errs, &ObjectError{Index: -1, Kind: f.kind, Namespace: f.id.namespace, Name: f.id.name, Err: err})
		}
	}
	kinds := slices.SortedFunc(maps.Keys(c.memory.unservedKinds), func(a, b schema.GroupKind) int { return cmp.Compare(a.String(), b.String()) })
	for i, kind := range kinds {
		if i == 3 {
			errs = append(errs, fmt.Errorf("applyset: the API server does not serve %d more kinds of the inventory", len(kinds)-i))
			break
		}
		errs = append(errs, fmt.Errorf("applyset: the API server does not serve the kind %s of the inventory: if its CustomResourceDefinition was deleted, remove the kind from the parent's annotation applyset.kubernetes.io/contains-group-kinds", kind))
	}
	if left > 0 {
		errs = append(errs, waiting{fmt.Errorf("applyset: %d members are not gone: call Delete again", left)})
	}
	return errors.Join(errs...)
}
