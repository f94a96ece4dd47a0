package applyset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

const (
	parentManager = "-applyset" // the suffix of the field manager of the parent's metadata

	// parentLabel marks a CustomResourceDefinition whose objects can be parents.
	parentLabel = "applyset.kubernetes.io/is-parent-type"
	parentKinds = "a parent is a ConfigMap, a Secret, or of a CustomResourceDefinition with a label for that"
)

// checkParent rejects a parent whose members could outlive it.
func (c *setCall) checkParent(parent metav1.Object) error {
	switch {
	case parent.GetDeletionTimestamp() != nil:
		return errors.New("applyset: the parent is being deleted: call Delete")
	case c.Finalizer != "" && !slices.Contains(parent.GetFinalizers(), c.Finalizer):
		return fmt.Errorf("applyset: the parent lacks the finalizer %q: add it before Apply", c.Finalizer)
	}
	return nil
}

// checkKind rejects kinds of parents that kubectl rejects.
func (c *setCall) checkKind(ctx context.Context) error {
	kind := c.ParentKind.GroupKind()
	c.mu.Lock()
	checked := c.parentKindChecked
	c.mu.Unlock()
	switch {
	case checked, kind == schema.GroupKind{Kind: "ConfigMap"}, kind == schema.GroupKind{Kind: "Secret"}:
		return nil
	case kind.Group == "":
		return fmt.Errorf("applyset: ParentKind is %s: %s", kind, parentKinds)
	}
	name := c.parentResource.GroupResource().String()
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
	c.parentKindChecked = true
	return nil
}

// readLive reads the live parent.
func (c *setCall) readLive(ctx context.Context) error {
	live, err := c.parentClient.Get(ctx, c.parent.GetName(), metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("applyset: read the parent: %w", err)
	case live.GetUID() != c.parent.GetUID():
		return errors.New("applyset: another object has the name of the parent: pass that one")
	}
	c.liveParent = live
	return nil
}

// readParent reads the live parent and its inventory.
func (c *setCall) readParent(ctx context.Context) (inventory.Inventory, error) {
	if err := c.readLive(ctx); err != nil {
		return inventory.Inventory{}, err
	}
	i, _, err := inventory.Read(c.liveParent, c.setID, c.Manager)
	if err != nil {
		return i, fmt.Errorf("applyset: %w", err)
	}
	return i, nil
}

// neededInventory returns the inventory of all that can be a member.
func (c *setCall) neededInventory() inventory.Inventory {
	i := inventory.New()
	for id := range c.memory.members {
		i.Add(id.kind, id.namespace, c.parent.GetNamespace())
	}
	if len(c.memory.unservedKinds) > 0 { // they can have members in each namespace
		i.Kinds = i.Kinds.Union(c.memory.unservedKinds)
		i.Namespaces = i.Namespaces.Union(c.memory.inventory.Namespaces)
	}
	return i
}

// checkInventorySize rejects wanted objects whose inventory is too large for the parent, before
// the first request.
func (c *setCall) checkInventorySize() error {
	i, _, err := inventory.Read(c.parent, c.setID, c.Manager)
	if err != nil {
		i = inventory.New() // load returns the error, unless the live parent has none
	}
	for id := range c.wantedIDs {
		i.Add(id.kind, id.namespace, c.parent.GetNamespace())
	}
	if err := i.CheckSize(c.parent, c.Manager); err != nil {
		return fmt.Errorf("applyset: the inventory: %w", err)
	}
	return nil
}

// growInventory adds the kinds and namespaces of all members to the inventory, except new kinds
// among later.
func (c *setCall) growInventory(ctx context.Context, later []schema.GroupVersionKind) error {
	i := c.neededInventory().Union(c.memory.inventory)
	for _, gvk := range later {
		if !c.memory.inventory.Kinds.Has(gvk.GroupKind()) {
			i.Kinds.Delete(gvk.GroupKind())
		}
	}
	return c.writeInventory(ctx, i, true)
}

// writeInventory stores the inventory if it differs.
func (c *setCall) writeInventory(ctx context.Context, i inventory.Inventory, grow bool) error {
	m := c.memory
	if i.Equal(m.inventory) {
		return nil
	}
	for try := 0; ; try++ {
		if c.liveParent == nil {
			stored, err := c.readParent(ctx)
			if err == nil && !stored.Equal(m.inventory) {
				err = errors.New("applyset: another user changed the inventory in the parent's annotations: apply again")
			}
			if err != nil {
				m.trustedUntil = time.Time{}
				return err
			}
		}
		if grow {
			if err := c.checkParent(c.liveParent); err != nil {
				return err
			}
			if err := i.CheckSize(c.liveParent, c.Manager); err != nil {
				return fmt.Errorf("applyset: the inventory: %w", err)
			}
		}
		err := c.patchParent(ctx, i)
		switch {
		case err == nil:
			m.inventory = i
			return nil
		case rejection.IsStale(err) && try < 2:
			c.liveParent = nil
		default:
			m.trustedUntil = time.Time{} // the API server may have stored it
			return err
		}
	}
}

// patchParent writes the inventory to the parent, in the version that liveParent has. The API server
// fails each apply of a custom resource that was written in a version that its definition
// has lost; it does not fail a merge patch.
func (c *setCall) patchParent(ctx context.Context, i inventory.Inventory) error {
	labels, annotations := i.Metadata(c.setID, c.Manager)
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": c.liveParent.GetUID(), "resourceVersion": c.liveParent.GetResourceVersion(), "labels": labels, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("applyset: encode the inventory: %w", err)
	}
	live, err := c.parentClient.Patch(ctx, c.parent.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: c.Manager + parentManager})
	if err != nil {
		return fmt.Errorf("applyset: write the inventory to the parent: %w", err)
	}
	c.liveParent = live
	return nil
}
