package applyset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

const (
	// memoryTTL is how long a Set relies on a list of the members of a parent, and how long
	// it remembers a parent after its last call.
	memoryTTL = time.Hour
	// unservedTTL replaces memoryTTL for lists if the API server did not serve a kind.
	unservedTTL = time.Minute
)

// memory is the knowledge of a Set about one parent.
type memory struct {
	calls int       // that run or wait; guarded by the mutex of the Set
	used  time.Time // the end of the last call; guarded by the mutex of the Set

	busy chan struct{} // has an element while a call runs, which then owns the fields below

	trustedUntil  time.Time       // zero if the next call must list
	term          <-chan struct{} // of the last list: in another one, another process has worked for the parent
	inventory     inventory.Inventory
	unservedKinds sets.Set[schema.GroupKind] // of the inventory

	mu      sync.Mutex            // guards members while the call sends requests in parallel
	members map[identity]observed // all objects that can be members
}

// observed identifies the last response for a member. The zero value is unknown.
type observed struct {
	uid     types.UID
	version string
	sum     [32]byte // of the configuration
}

// lockParent waits for other calls for the parent, and sets memory. unlock ends this call.
// The error is the cause of ctx.
func (c *setCall) lockParent(ctx context.Context) (unlock func(), err error) {
	c.mu.Lock()
	now, uid := time.Now(), c.parent.GetUID()
	if now.Sub(c.swept) >= memoryTTL {
		maps.DeleteFunc(c.memories, func(_ types.UID, m *memory) bool { return m.calls == 0 && now.Sub(m.used) >= memoryTTL })
		c.swept = now
	}
	m := c.memories[uid]
	if m == nil {
		if c.memories == nil {
			c.memories = map[types.UID]*memory{}
		}
		m = &memory{busy: make(chan struct{}, 1)}
		m.forget()
		c.memories[uid] = m
	}
	m.calls++
	c.mu.Unlock()
	end := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		m.calls--
		m.used = time.Now()
		if m.calls == 0 && m.trustedUntil.IsZero() && len(m.members) == 0 {
			delete(c.memories, uid) // it has no knowledge
		}
	}
	select {
	case m.busy <- struct{}{}: // also if ctx has ended
	default:
		select {
		case m.busy <- struct{}{}:
		case <-ctx.Done():
			end()
			return nil, fmt.Errorf("applyset: wait for another call for the parent: %w", context.Cause(ctx))
		}
	}
	c.memory = m
	return func() { c.boundTrust(); <-m.busy; end() }, nil
}

// boundTrust makes a call list again soon if the API server does not serve a kind.
func (c *setCall) boundTrust() {
	m := c.memory
	soon := time.Now().Add(unservedTTL)
	if m.trustedUntil.After(soon) && (len(m.unservedKinds) > 0 || slices.ContainsFunc(c.former, func(f *formerMember) bool { return f.state == unserved })) {
		m.trustedUntil = soon
	}
}

// forget drops all knowledge.
func (m *memory) forget() {
	m.trustedUntil, m.inventory, m.unservedKinds, m.members = time.Time{}, inventory.New(), nil, map[identity]observed{}
}

// restore sets the members and the inventory.
func (m *memory) restore(members map[identity]observed, i inventory.Inventory) {
	m.members, m.inventory = members, i
}

// drop forgets an object that is no member.
func (m *memory) drop(id identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.members, id)
}

// last returns the last response for a member.
func (m *memory) last(id identity) observed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members[id]
}

// remember stores the last response for a member.
func (m *memory) remember(id identity, response observed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members[id] = response
}

// load makes the memory complete: from the parent that the caller passed if it is
// unchanged since a list in this term, otherwise from the live parent and lists.
func (c *setCall) load(ctx context.Context, remove bool) error {
	m, term := c.memory, calls.Term(ctx)
	if !remove {
		if err := c.checkParent(c.parent); err != nil {
			return err
		}
		i, found, err := inventory.Read(c.parent, c.setID, c.Manager)
		if err == nil && found && i.Equal(m.inventory) && m.term == term && time.Now().Before(m.trustedUntil) {
			return nil
		}
	}
	m.trustedUntil = time.Time{}
	if !remove {
		if err := c.checkKind(ctx); err != nil {
			return err
		}
	}
	i, err := c.readParent(ctx)
	if err != nil {
		return err
	}
	if !remove {
		if err := c.checkParent(c.liveParent); err != nil {
			return err
		}
	}
	m.unservedKinds = sets.New[schema.GroupKind]()
	all := i.Union(m.inventory) // the live one can have lost entries
	scopes, err := c.scopes(all.Kinds, c.namespaces(all))
	if err != nil {
		return err
	}
	if c.listed, err = c.list(ctx, scopes); err != nil {
		return err
	}
	for id, live := range c.listed {
		if _, ok := m.members[id]; !ok {
			m.members[id] = observed{uid: live.UID}
		}
	}
	// If a user removes a kind that is not served from the inventory, it has no members.
	forgotten := m.unservedKinds.Difference(i.Kinds)
	m.unservedKinds = m.unservedKinds.Difference(forgotten)
	maps.DeleteFunc(m.members, func(id identity, _ observed) bool { return forgotten.Has(id.kind) })
	m.inventory, m.trustedUntil, m.term = i, time.Now().Add(memoryTTL), term
	return nil
}
