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

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

const (
	parentManager = "-applyset" // the suffix of the field manager of the parent's metadata

	// trusted is how long a Set relies on its memory of a parent. It drops the memory of a
	// parent without a call in this time.
	trusted = time.Hour
	// retried is that time if the API server did not serve a kind.
	retried = time.Minute

	// parentLabel marks a CustomResourceDefinition whose objects can be parents.
	parentLabel = "applyset.kubernetes.io/is-parent-type"
	parentKinds = "a parent is a ConfigMap, a Secret, or of a CustomResourceDefinition with a label for that"

	// maxLists is in how many namespaces a kind is listed one by one. Another user can add
	// any number of namespaces to the inventory.
	maxLists = 64
)

// memory is the knowledge of a Set about a parent.
type memory struct {
	calls int       // that run or wait; guarded by the mutex of the Set
	used  time.Time // the end of the last call; guarded by the mutex of the Set

	call chan struct{} // has an element while a call runs

	until     time.Time // zero if the next call must list
	inventory inventory.Inventory
	unserved  sets.Set[schema.GroupKind] // of the inventory

	guard   sync.Mutex         // guards members
	members map[identity]known // all objects that can be members
}

// known is the last response for a member. The zero value is unknown.
type known struct {
	uid     types.UID
	version string
	sum     [32]byte // of the configuration
}

// lock waits for other calls for the parent, and returns the end of this call. The error is
// the cause of ctx.
func (c *call) lock(ctx context.Context) (unlock func(), err error) {
	c.mu.Lock()
	now, uid := time.Now(), c.parent.GetUID()
	if now.Sub(c.swept) >= trusted {
		maps.DeleteFunc(c.known, func(_ types.UID, m *memory) bool { return m.calls == 0 && now.Sub(m.used) >= trusted })
		c.swept = now
	}
	m := c.known[uid]
	if m == nil {
		if c.known == nil {
			c.known = map[types.UID]*memory{}
		}
		m = &memory{call: make(chan struct{}, 1)}
		m.forget()
		c.known[uid] = m
	}
	m.calls++
	c.mu.Unlock()
	end := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		m.calls--
		m.used = time.Now()
		if m.calls == 0 && m.until.IsZero() && len(m.members) == 0 {
			delete(c.known, uid) // it has no knowledge
		}
	}
	select {
	case m.call <- struct{}{}: // also if ctx has ended
	default:
		select {
		case m.call <- struct{}{}:
		case <-ctx.Done():
			end()
			return nil, fmt.Errorf("applyset: wait for another call for the parent: %w", context.Cause(ctx))
		}
	}
	c.memory = m
	return func() { <-m.call; end() }, nil
}

// forget drops all knowledge.
func (m *memory) forget() {
	m.until, m.inventory, m.unserved, m.members = time.Time{}, inventory.New(), nil, map[identity]known{}
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
	m.unserved = sets.New[schema.GroupKind]()
	all := i.Union(m.inventory) // the live one can have lost entries
	scopes, err := c.scopes(all.Kinds, c.namespaces(all))
	if err != nil {
		return err
	}
	if c.seen, err = c.list(ctx, scopes); err != nil {
		return err
	}
	for id, live := range c.seen {
		if _, ok := m.members[id]; !ok {
			m.members[id] = known{uid: live.UID}
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
	if len(c.memory.unserved) > 0 { // they can have members in each namespace
		i.Kinds = i.Kinds.Union(c.memory.unserved)
		i.Namespaces = i.Namespaces.Union(c.memory.inventory.Namespaces)
	}
	return i
}

// checkGrowth rejects wanted objects whose inventory is too large for the parent, before
// the first request.
func (c *call) checkGrowth() error {
	i, _, err := inventory.Read(c.parent, c.id, c.Manager)
	if err != nil {
		i = inventory.New() // load returns the error, unless the live parent has none
	}
	for id := range c.ids {
		i.Add(id.kind, id.namespace, c.parent.GetNamespace())
	}
	if err := i.CheckSize(c.parent, c.Manager); err != nil {
		return fmt.Errorf("applyset: the inventory: %w", err)
	}
	return nil
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
			if err := i.CheckSize(c.live, c.Manager); err != nil {
				return fmt.Errorf("applyset: the inventory: %w", err)
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

// scope is a kind in namespaces, or in the cluster if it is cluster-scoped.
type scope struct {
	kind       schema.GroupKind
	namespaces sets.Set[string] // "" for the cluster; not to be modified
}

// namespaces returns the namespaces that can have members.
func (c *call) namespaces(i inventory.Inventory) sets.Set[string] {
	namespaces := i.Namespaces.Clone()
	if own := c.parent.GetNamespace(); own != "" {
		namespaces.Insert(own)
	}
	return namespaces
}

// scopes returns where kinds have members. It notes the kinds that the API server does not
// serve.
func (c *call) scopes(kinds sets.Set[schema.GroupKind], namespaces sets.Set[string]) ([]scope, error) {
	var scopes []scope
	for kind := range kinds {
		mapping, err := c.mapping(kind)
		switch {
		case meta.IsNoMatchError(err):
			c.memory.unserved.Insert(kind)
		case err != nil:
			return nil, fmt.Errorf("applyset: find the resource of %s, which the inventory has: %w", kind, err)
		case mapping.Scope.Name() == meta.RESTScopeNameRoot:
			scopes = append(scopes, scope{kind, sets.New("")})
		default:
			scopes = append(scopes, scope{kind, namespaces})
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
	mapper, versions := c.Mapper, []string(nil)
	if version, ok := c.versions[kind]; ok {
		mapper, versions = c.run.mapper, []string{version}
	}
	mapping, err := mapper.RESTMapping(kind, versions...)
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
// the kinds that the API server does not serve. If a kind is in many namespaces, it reads
// all namespaces at once, if it may.
func (c *call) list(ctx context.Context, scopes []scope) (map[identity]*metav1.PartialObjectMetadata, error) {
	type request struct {
		scope
		namespace string // "" for all, or for the cluster
	}
	single := func(s scope) (requests []request) {
		for namespace := range s.namespaces {
			requests = append(requests, request{s, namespace})
		}
		return requests
	}
	var requests []request
	for _, s := range scopes {
		if len(s.namespaces) > maxLists {
			requests = append(requests, request{s, ""})
		} else {
			requests = append(requests, single(s)...)
		}
	}
	var mu sync.Mutex
	var forbidden []scope
	found := map[identity]*metav1.PartialObjectMetadata{}
	read := func(r request) error {
		err := c.pages(ctx, r.kind, r.namespace, func(item *metav1.PartialObjectMetadata) {
			if r.namespaces.Has(item.Namespace) {
				mu.Lock()
				defer mu.Unlock()
				found[identity{r.kind, item.Namespace, item.Name}] = item
			}
		})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case isUnserved(err):
			c.memory.unserved.Insert(r.kind)
		case apierrors.IsForbidden(err) && !r.namespaces.Has(r.namespace):
			forbidden = append(forbidden, r.scope)
		case err != nil:
			return fmt.Errorf("applyset: list the members of the kind %s: %w", r.kind, err)
		}
		return nil
	}
	errs := each(ctx, cmp.Or(c.Concurrency, 8), requests, read)
	for _, s := range forbidden {
		if len(errs) == 0 {
			errs = each(ctx, cmp.Or(c.Concurrency, 8), single(s), read)
		}
	}
	return found, errors.Join(errs...)
}

// pages calls f for each member of a kind in a namespace, also more than once.
func (c *call) pages(ctx context.Context, kind schema.GroupKind, namespace string, f func(*metav1.PartialObjectMetadata)) error {
	client := c.Metadata.Resource(c.mappings[kind].Resource).Namespace(namespace)
	opts := metav1.ListOptions{LabelSelector: inventory.PartOf + "=" + c.id, Limit: 500}
	for {
		list, err := client.List(ctx, opts)
		switch {
		case apierrors.IsResourceExpired(err) && opts.Limit > 0:
			opts.Limit, opts.Continue = 0, "" // from the start, in one page
			continue
		case err != nil:
			return err
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if opts.Continue = list.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}
