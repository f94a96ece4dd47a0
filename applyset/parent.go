package applyset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/controllerkit/controllerkit/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	parentManager = "-applyset" // the suffix of the field manager of the parent's metadata

	// trusted is how long a Set relies on its memory of a parent.
	trusted = time.Hour
	// retried is that time if the API server did not serve a kind.
	retried = time.Minute

	// parentLabel marks a CustomResourceDefinition whose objects can be parents.
	parentLabel = "applyset.kubernetes.io/is-parent-type"
	parentKinds = "a parent is a ConfigMap, a Secret, or of a CustomResourceDefinition with a label for that"

	maxParents = 10_000 // whose members a Set remembers
	maxScopes  = 4096   // that one call lists
)

// memory is the knowledge of a Set about a parent.
type memory struct {
	call sync.Mutex // held by a call

	until     time.Time // zero if the next call must list
	inventory inventory.Inventory
	unserved  sets.Set[schema.GroupKind] // of the inventory
	kept      map[identity]*former

	guard   sync.Mutex         // guards members
	members map[identity]known // all objects that can be members, except kept ones
}

// known is the last response for a member. The zero value is unknown.
type known struct {
	uid     types.UID
	version string
	sum     [32]byte // of the configuration
}

// lock waits for other calls for the parent, and returns the end of this call.
func (c *call) lock() (unlock func()) {
	c.mu.Lock()
	uid := c.parent.GetUID()
	m := c.known[uid]
	if m == nil {
		if c.known == nil {
			c.known = map[types.UID]*memory{}
		}
		for other := range c.known {
			if len(c.known) < maxParents {
				break
			}
			delete(c.known, other)
		}
		m = &memory{inventory: inventory.New(), members: map[identity]known{}}
		c.known[uid] = m
	}
	c.mu.Unlock()
	m.call.Lock()
	c.memory = m
	return m.call.Unlock
}

func (s *Set) forget(parent types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, parent)
}

// load makes the memory complete: from the parent that the caller passed if it is
// unchanged, otherwise from the live parent and lists.
func (c *call) load(ctx context.Context, remove bool) error {
	m := c.memory
	if !remove {
		if err := c.checkParent(c.parent); err != nil {
			return err
		}
		i, found, err := inventory.Read(c.parent, c.id, c.Manager)
		if err == nil && found && i.Equal(m.inventory) && time.Now().Before(m.until) {
			return nil
		}
	}
	m.until = time.Time{}
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
		if err := c.checkParent(c.live); err != nil {
			return err
		}
	}
	m.kept, m.unserved = map[identity]*former{}, sets.New[schema.GroupKind]()
	scopes, err := c.scopes(i.Union(m.inventory)) // the live one can have lost entries
	if err != nil {
		return err
	}
	if c.seen, err = c.list(ctx, scopes); err != nil {
		return err
	}
	for id := range c.seen {
		if _, ok := m.members[id]; !ok {
			m.members[id] = known{}
		}
	}
	// If a user removes a kind that is not served from the inventory, it has no members.
	forgotten := m.unserved.Difference(i.Kinds)
	m.unserved = m.unserved.Difference(forgotten)
	maps.DeleteFunc(m.members, func(id identity, _ known) bool { return forgotten.Has(id.kind) })
	m.inventory, m.until = i, time.Now().Add(trusted)
	if len(m.unserved) > 0 {
		m.until = time.Now().Add(retried)
	}
	return nil
}

// checkParent rejects a parent whose members could outlive it.
func (c *call) checkParent(parent metav1.Object) error {
	switch {
	case parent.GetDeletionTimestamp() != nil:
		return errors.New("applyset: the parent is being deleted: call Delete")
	case c.Finalizer != "" && !slices.Contains(parent.GetFinalizers(), c.Finalizer):
		return fmt.Errorf("applyset: the parent lacks the finalizer %q: add it before Apply", c.Finalizer)
	}
	return nil
}

// checkKind rejects kinds of parents that kubectl rejects.
func (c *call) checkKind(ctx context.Context) error {
	kind := c.ParentKind.GroupKind()
	c.mu.Lock()
	checked := c.checked
	c.mu.Unlock()
	switch {
	case checked, kind == schema.GroupKind{Kind: "ConfigMap"}, kind == schema.GroupKind{Kind: "Secret"}:
		return nil
	case kind.Group == "":
		return fmt.Errorf("applyset: ParentKind is %s: %s", kind, parentKinds)
	}
	name := c.parents.GroupResource().String()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	crd, err := c.Metadata.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	switch {
	case kube.IsGone(err, name):
		return fmt.Errorf("applyset: ParentKind is %s, which no CustomResourceDefinition defines: %s", kind, parentKinds)
	case err != nil:
		return fmt.Errorf("applyset: ParentKind: read the CustomResourceDefinition %s: %w", name, err)
	}
	if _, ok := crd.Labels[parentLabel]; !ok {
		return fmt.Errorf("applyset: ParentKind is %s: %s: add the label %s=true to the CustomResourceDefinition %s", kind, parentKinds, parentLabel, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked = true
	return nil
}

// readLive reads the live parent.
func (c *call) readLive(ctx context.Context) error {
	live, err := c.resource.Get(ctx, c.parent.GetName(), metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("applyset: read the parent: %w", err)
	case live.GetUID() != c.parent.GetUID():
		return errors.New("applyset: another object has the name of the parent: pass that one")
	}
	c.live = live
	return nil
}

// readParent reads the live parent and its inventory.
func (c *call) readParent(ctx context.Context) (inventory.Inventory, error) {
	if err := c.readLive(ctx); err != nil {
		return inventory.Inventory{}, err
	}
	i, _, err := inventory.Read(c.live, c.id, c.Manager)
	if err != nil {
		return i, fmt.Errorf("applyset: %w", err)
	}
	return i, nil
}

// needed returns the inventory of all that can be a member.
func (c *call) needed() inventory.Inventory {
	i := inventory.New()
	for id := range c.memory.members {
		i.Add(id.kind, id.namespace, c.parent.GetNamespace())
	}
	for id := range c.memory.kept {
		i.Add(id.kind, id.namespace, c.parent.GetNamespace())
	}
	if len(c.memory.unserved) > 0 { // they can have members in each namespace
		i.Kinds = i.Kinds.Union(c.memory.unserved)
		i.Namespaces = i.Namespaces.Union(c.memory.inventory.Namespaces)
	}
	return i
}

// grow adds the kinds and namespaces of all members to the inventory, except new kinds
// among later.
func (c *call) grow(ctx context.Context, later []schema.GroupVersionKind) error {
	i := c.needed().Union(c.memory.inventory)
	for _, gvk := range later {
		if !c.memory.inventory.Kinds.Has(gvk.GroupKind()) {
			i.Kinds.Delete(gvk.GroupKind())
		}
	}
	return c.write(ctx, i, true)
}

// write stores the inventory if it differs.
func (c *call) write(ctx context.Context, i inventory.Inventory, grow bool) error {
	m := c.memory
	if i.Equal(m.inventory) {
		return nil
	}
	for try := 0; ; try++ {
		if c.live == nil {
			stored, err := c.readParent(ctx)
			if err == nil && !stored.Equal(m.inventory) {
				err = errors.New("applyset: another user changed the inventory in the parent's annotations: apply again")
			}
			if err != nil {
				m.until = time.Time{}
				return err
			}
		}
		if grow {
			if err := c.checkParent(c.live); err != nil {
				return err
			}
		}
		err := c.store(ctx, i)
		switch {
		case err == nil:
			m.inventory = i
			return nil
		case isStale(err) && try < 2:
			c.live = nil
		default:
			m.until = time.Time{} // the API server may have stored it
			return err
		}
	}
}

// store writes the inventory to the parent, in the version that live has. The API server
// fails each apply of a custom resource that was written in a version that its definition
// has lost; it does not fail a merge patch.
func (c *call) store(ctx context.Context, i inventory.Inventory) error {
	labels, annotations := i.Metadata(c.id, c.Manager)
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": c.live.GetUID(), "resourceVersion": c.live.GetResourceVersion(), "labels": labels, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("applyset: encode the inventory: %w", err)
	}
	live, err := c.resource.Patch(ctx, c.parent.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: c.Manager + parentManager})
	if err != nil {
		return fmt.Errorf("applyset: write the inventory to the parent: %w", err)
	}
	c.live = live
	return nil
}

// scope is a kind in a namespace, or in the cluster if the namespace is empty.
type scope struct {
	kind      schema.GroupKind
	namespace string
}

// scopes returns where an inventory has members. It notes the kinds that the API server
// does not serve.
func (c *call) scopes(i inventory.Inventory) ([]scope, error) {
	namespaces := sets.List(i.Namespaces)
	if own := c.parent.GetNamespace(); own != "" {
		namespaces = append(namespaces, own)
	}
	var scopes []scope
	for kind := range i.Kinds {
		mapping, err := c.mapping(kind)
		switch {
		case meta.IsNoMatchError(err):
			c.memory.unserved.Insert(kind)
		case err != nil:
			return nil, fmt.Errorf("applyset: find the resource of %s, which the inventory has: %w", kind, err)
		case mapping.Scope.Name() == meta.RESTScopeNameRoot:
			scopes = append(scopes, scope{kind: kind})
		default:
			for _, namespace := range namespaces {
				scopes = append(scopes, scope{kind, namespace})
			}
		}
		if len(scopes) > maxScopes {
			return nil, fmt.Errorf("applyset: the inventory in the parent's annotations has %d kinds in %d namespaces: make it smaller", len(i.Kinds), len(namespaces))
		}
	}
	return scopes, nil
}

// mapping finds the resource of a kind, in the version of a wanted object or in the
// preferred one.
func (c *call) mapping(kind schema.GroupKind) (*meta.RESTMapping, error) {
	if mapping := c.mappings[kind]; mapping != nil {
		return mapping, nil
	}
	mapping, err := c.Mapper.RESTMapping(kind)
	for _, w := range c.wanted {
		if w.id.kind == kind {
			mapping, err = c.run.mapper.RESTMapping(kind, w.object.GroupVersionKind().Version)
			break
		}
	}
	if meta.IsNoMatchError(err) && !c.reset {
		c.resetMapper()
		mapping, err = c.Mapper.RESTMapping(kind)
	}
	if err == nil {
		c.mappings[kind] = mapping
	}
	return mapping, err
}

// resetMapper resets the Mapper once in a call.
func (c *call) resetMapper() {
	if !c.reset {
		c.reset = true
		meta.MaybeResetRESTMapper(c.Mapper)
	}
}

// list reads the metadata of all members in the scopes, whose mappings are known. It notes
// the kinds that the API server does not serve.
func (c *call) list(ctx context.Context, scopes []scope) (map[identity]*metav1.PartialObjectMetadata, error) {
	var mu sync.Mutex
	found := map[identity]*metav1.PartialObjectMetadata{}
	errs := each(ctx, cmp.Or(c.Concurrency, 8), scopes, func(s scope) error {
		mapping := c.mappings[s.kind]
		opts := metav1.ListOptions{LabelSelector: inventory.PartOf + "=" + c.id, Limit: 500}
		for {
			list, err := c.Metadata.Resource(mapping.Resource).Namespace(s.namespace).List(ctx, opts)
			mu.Lock()
			switch {
			case isUnserved(err):
				c.memory.unserved.Insert(s.kind)
				mu.Unlock()
				return nil
			case apierrors.IsResourceExpired(err) && opts.Limit > 0:
				mu.Unlock()
				opts.Limit, opts.Continue = 0, "" // from the start, in one page
				continue
			case err != nil:
				mu.Unlock()
				return fmt.Errorf("applyset: list the members of the kind %s: %w", s.kind, err)
			}
			for i := range list.Items {
				item := &list.Items[i]
				found[identity{s.kind, item.GetNamespace(), item.GetName()}] = item
			}
			mu.Unlock()
			if opts.Continue = list.GetContinue(); opts.Continue == "" {
				return nil
			}
		}
	})
	return found, errors.Join(errs...)
}
