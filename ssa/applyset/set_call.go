package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// setCall is one call of a method of a Set.
type setCall struct {
	*Set
	batch  *batchCall // of the wanted objects
	memory *memory    // of the parent; nil until lockParent

	parent         metav1.Object                 // as the caller passed it
	liveParent     *metav1.PartialObjectMetadata // nil if unread or stale
	parentClient   metadata.ResourceInterface    // of the kind and namespace of the parent
	parentResource schema.GroupVersionResource   // of the kind of the parent
	setID          string                        // the value of the label of members

	wanted     []*wantedMember
	wantedIDs  map[identity]bool
	wantedUIDs map[types.UID]bool // as far as the memory has them
	former     []*formerMember
	listed     map[identity]*metav1.PartialObjectMetadata // the members that load has listed

	mappings         map[schema.GroupKind]*meta.RESTMapping // of the kinds of members
	wantedVersions   map[schema.GroupKind]string            // of the kinds of the wanted objects
	unservedVersions sets.Set[schema.GroupVersionKind]      // that lists found
	definedGroups    sets.Set[string]                       // that definitions among the members have

	dryRun      bool
	preview     bool // in a call of package preview
	reports     bool // the preview reports the dry runs
	resetMapper bool // whether the call has reset the Mapper
}

// identity is the name of an object in all versions of its kind.
type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

// idOf returns the identity of an object with a kind.
func idOf(u *unstructured.Unstructured) identity {
	return identity{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// parentNeeds returns what an object is to the parent. It is "" if the deletion of the object
// neither deletes the parent nor waits for it.
func (c *setCall) parentNeeds(id identity) string {
	owns := func(ref metav1.OwnerReference) bool {
		gv, _ := schema.ParseGroupVersion(ref.APIVersion)
		return id.kind == schema.GroupKind{Group: gv.Group, Kind: ref.Kind} && id.name == ref.Name && (id.namespace == "" || id.namespace == c.parent.GetNamespace())
	}
	switch id {
	case identity{c.ParentKind.GroupKind(), c.parent.GetNamespace(), c.parent.GetName()}:
		return "the parent"
	case identity{namespaceKind(), "", c.parent.GetNamespace()}:
		return "the Namespace of the parent"
	case identity{crdKind(), "", c.parentResource.GroupResource().String()}:
		return "the CustomResourceDefinition of the parent"
	}
	if slices.ContainsFunc(c.parent.GetOwnerReferences(), owns) {
		return "an owner of the parent"
	}
	return ""
}

// call calls do for a method, after the checks and with a complete memory. Delete has remove.
func (s *Set) call(ctx context.Context, parent metav1.Object, wanted []Member, remove bool, do func(*setCall) ([]Result, error)) ([]Result, error) {
	c, err := s.newCall(parent)
	if err == nil {
		err = c.checkWanted(wanted)
	}
	if err != nil {
		return nil, err
	}
	if c.batch.failed {
		return c.report(nil)
	}
	if err := c.checkInventorySize(); err != nil && !remove {
		return nil, err
	}
	unlock, err := c.lockParent(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if remove && parent.GetDeletionTimestamp() != nil && slices.Contains(parent.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		c.memory.forget()
		return nil, nil
	}
	if err := c.load(ctx, remove); err != nil {
		return nil, err
	}
	_, c.preview = calls.InPreview(ctx)
	return do(c)
}

// newCall checks the Set and the parent.
func (s *Set) newCall(parent metav1.Object) (*setCall, error) {
	kind := s.ParentKind
	switch {
	case kube.IsNil(s.Metadata):
		return nil, errors.New("applyset: Metadata is nil: set a metadata client")
	case kube.IsNil(s.Mapper):
		return nil, errors.New("applyset: Mapper is nil: set a RESTMapper")
	case kind.Version == "" || kind.Kind == "":
		return nil, fmt.Errorf("applyset: ParentKind is %q: set the version and the kind of the parents", kind)
	case s.Finalizer == "" && !s.Own:
		return nil, errors.New("applyset: Finalizer is empty: set the finalizer for which the controller calls Delete, or Own")
	case s.MaxPrune < 0:
		return nil, fmt.Errorf("applyset: MaxPrune is %d: set a positive number, or 0 for the default", s.MaxPrune)
	case s.MaxPrunePercent < 0 || s.MaxPrunePercent > 100:
		return nil, fmt.Errorf("applyset: MaxPrunePercent is %d: set 1 to 100, or 0 for the default", s.MaxPrunePercent)
	case kube.IsNil(parent):
		return nil, errors.New("applyset: the parent is nil: pass an object that the API server returned")
	case parent.GetUID() == "" || parent.GetName() == "":
		return nil, errors.New("applyset: the parent has no metadata.uid or no metadata.name: pass an object that the API server returned")
	}
	if err := apply.CheckManager(s.Manager); err != nil {
		return nil, fmt.Errorf("applyset: Manager: %w", err)
	}
	if err := apply.CheckManager(s.Manager + parentManager); err != nil {
		return nil, fmt.Errorf("applyset: Manager with the suffix %q: %w", parentManager, err)
	}
	mapping, err := s.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("applyset: ParentKind: find the resource of %s: %w", kind, err)
	}
	if err := apply.CheckScope(mapping, parent); err != nil {
		return nil, fmt.Errorf("applyset: the parent: %w", err)
	}
	return &setCall{
		Set:              s,
		setID:            inventory.ID(kind.GroupKind(), parent.GetNamespace(), parent.GetName()),
		parent:           parent,
		parentResource:   mapping.Resource,
		parentClient:     s.Metadata.Resource(mapping.Resource).Namespace(parent.GetNamespace()),
		mappings:         map[schema.GroupKind]*meta.RESTMapping{},
		wantedIDs:        map[identity]bool{},
		wantedVersions:   map[schema.GroupKind]string{},
		unservedVersions: sets.New[schema.GroupVersionKind](),
		definedGroups:    sets.New[string](),
	}, nil
}

// checkWanted checks the wanted objects. If one is not valid, the batch has failed before
// it begins.
func (c *setCall) checkWanted(members []Member) (err error) {
	batch := &Batch{Client: c.Client, Mapper: c.Mapper, Manager: c.Manager, Concurrency: c.Concurrency, CRDTimeout: c.CRDTimeout}
	if c.Own {
		batch.Owner, batch.OwnerKind = c.parent, c.ParentKind
	}
	objects := make([]any, len(members))
	for i, m := range members {
		objects[i] = m.Object
	}
	if c.batch, err = batch.validate(objects, false); err != nil {
		return err
	}
	c.batch.failed = false // with Wait, an unserved kind is no failure
	for _, o := range c.batch.objects {
		c.noteGroup(idOf(o.manifest))
	}
	for i, o := range c.batch.objects {
		w := &wantedMember{member: members[i], object: o}
		if w.member.Wait && meta.IsNoMatchError(o.err) {
			c.resetMapperOnce()
			if o.err = c.batch.resolve(o); meta.IsNoMatchError(o.err) {
				o.err, w.action, w.reason = nil, Pending, reasonUnserved
			}
		}
		if o.err == nil {
			o.err = c.prepare(w)
		}
		c.batch.failed = c.batch.failed || o.err != nil
		c.wanted = append(c.wanted, w)
		c.wantedIDs[w.id] = true
		if _, ok := c.wantedVersions[w.id.kind]; !ok {
			c.wantedVersions[w.id.kind] = o.manifest.GroupVersionKind().Version
		}
	}
	return nil
}

// report makes the results, and the error that joins err and theirs.
func (c *setCall) report(err error) ([]Result, error) {
	var results []Result
	errs := []error{err}
	add := func(index int, r Result) {
		if r.Err != nil {
			r.Action = ""
			errs = append(errs, &ObjectError{Index: index, Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Err: r.Err})
		}
		results = append(results, r)
	}
	for i, w := range c.wanted {
		if w.object.err == nil && c.batch.failed && w.action == "" {
			w.object.err = errSkipped
		}
		add(i, Result{Kind: w.object.manifest.GroupVersionKind(), Namespace: w.object.manifest.GetNamespace(), Name: w.object.manifest.GetName(), Action: w.action, Reason: w.reason, Err: w.object.err, Object: w.response})
	}
	slices.SortFunc(c.former, func(a, b *formerMember) int {
		return cmp.Or(cmp.Compare(b.stage, a.stage), cmp.Compare(a.kind.String(), b.kind.String()), cmp.Compare(a.id.namespace, b.id.namespace), cmp.Compare(a.id.name, b.id.name))
	})
	for _, f := range c.former {
		if f.err == nil && (f.state == unexamined || f.state == doomed) {
			f.reason = "the call ended before"
		}
		add(-1, Result{Kind: f.kind, Namespace: f.id.namespace, Name: f.id.name, Action: f.state.action(), Reason: f.reason, Err: f.err})
	}
	return results, errors.Join(errs...)
}
