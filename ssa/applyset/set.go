package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// Set keeps the objects of each parent as wanted: it applies the wanted objects, the
// members, and prunes former members. A controller has one Set for a kind of parents. A
// Set is safe for concurrent use and must not be copied; calls for one parent wait for
// each other.
//
// The label applyset.kubernetes.io/part-of makes an object a member. Annotations of the
// parent have the kinds and namespaces of its members, in the format of KEP-3659. Apply
// adds a kind or namespace before it creates the first member there, and removes it
// after a list from the API server has no such member. So a restarted controller finds
// all members.
//
// The stages are: 1, Namespaces and CustomResourceDefinitions; 2, access, such as
// ServiceAccounts and Roles; 3, ConfigMaps, Secrets, volumes and Services; 4, all other
// kinds; 5, webhooks, admission policies and APIServices; 6, objects of stage 4 whose group
// a CustomResourceDefinition or an APIService of the set defines, because the programs that
// serve them can be members. A stage begins after the previous one has succeeded, and prune
// has the reverse order.
//
// The parent, its Namespace, its CustomResourceDefinition and its owners cannot be members:
// their deletion would wait for the parent, and Delete for their deletion. A wanted one is
// an error before the first request. Prune leaves one that another program labels. What
// the controller itself needs, such as its Namespace and its ServiceAccount, must not be a
// member either.
//
// A Set remembers the members that it has listed and applied, for at most an hour.
// Until then it does not see that another user labels an object as a member. It forgets a
// parent after Delete, and an hour after the last call.
//
// The API server accepts 256 KiB of annotations, which limits the kinds and namespaces of a
// set. If the wanted objects need more, Apply returns an error before the first request.
//
// The identity needs the verbs patch, create, get, list and delete for the kinds of the
// members, patch and get for the parent, get and watch for CustomResourceDefinitions among
// the members, and get for the CustomResourceDefinition of the parent. If members are in many
// namespaces, a Set lists their kinds in all namespaces at once. If the identity may not do
// that, it lists each namespace.
type Set struct {
	Client   dynamic.Interface  // Required.
	Metadata metadata.Interface // Required. It reads and deletes objects of the same API server.
	Mapper   meta.RESTMapper    // Required, as in a Batch.

	// Manager is the field manager of the members. The parent's labels and annotations
	// have the manager Manager + "-applyset". Manager is also the name of the tool in the
	// annotation applyset.kubernetes.io/tooling: other tools refuse the set, and a Set
	// refuses theirs. It has at most 119 bytes: with one manager for both, an apply of the
	// parent by the controller would remove the inventory. Required.
	Manager string

	// ParentKind is the kind of the parents: ConfigMap, Secret, or a custom resource whose
	// CustomResourceDefinition has the label applyset.kubernetes.io/is-parent-type. kubectl
	// and the Set reject all other kinds. Required.
	ParentKind schema.GroupVersionKind

	// Finalizer is the parent's finalizer that [Set.Delete] works for. If the parent lacks
	// it, Apply returns an error, because the members could outlive the parent.
	// Required, except with Own. The package finalizer adds and removes it.
	Finalizer string

	// Own makes the parent the controller of each member, so that the members are garbage
	// collected after it. All must be in the namespace of the parent, unless the parent is
	// cluster-scoped. As for the Owner of a Batch, the identity can need the verb update on
	// the finalizers subresource of the parent. An object with another controller cannot be
	// forced.
	Own bool

	// Stage returns the stage of an object, 2 to 99, or 0 for the default. obj is the
	// wanted object, or the metadata of a former member. Namespaces and
	// CustomResourceDefinitions stay first. nil means the default for each object.
	Stage func(kind schema.GroupVersionKind, obj metav1.Object) int

	// MaxPrune is how many objects a call of Apply may prune; 0 means 100. It does not count
	// the objects that Kubernetes deletes with them.
	MaxPrune int
	// MaxPrunePercent bounds the share of the pruned objects in all objects, wanted and
	// pruned; 0 means 50. With 100, an empty set is no mistake.
	MaxPrunePercent int
	// PruneNamespaces allows that Apply prunes Namespaces, with all objects in them, also
	// those of other users. Otherwise it is an error, Apply prunes no object, and the wanted
	// objects stay applied. Delete ignores it.
	PruneNamespaces bool
	// PruneCRDs allows that Apply prunes CustomResourceDefinitions, with all objects of their
	// kinds. Otherwise it is an error, as for Namespaces. Delete ignores it.
	PruneCRDs bool

	// Keep reports whether prune must leave a former member in place, for example
	// because of an annotation. obj has the metadata only. Each call reads the kept objects
	// and asks again. Prune also leaves the Namespace and the CustomResourceDefinition of a
	// kept object. nil means no object.
	Keep func(kind schema.GroupVersionKind, obj metav1.Object) bool

	// Propagation returns the propagation policy of a deletion. nil means Background for
	// each object.
	Propagation func(kind schema.GroupVersionKind, obj metav1.Object) metav1.DeletionPropagation

	Concurrency int           // the number of requests of one call that run at once; 0 means 8
	CRDTimeout  time.Duration // as in a Batch

	mu      sync.Mutex // guards the fields below
	known   map[types.UID]*memory
	swept   time.Time // when known was searched for old memories
	checked bool      // whether ParentKind can be the kind of parents
}

// Member is a wanted object of a [Set].
type Member struct {
	// Object is the configuration to apply, of the types that a Batch accepts. It must not
	// have the label applyset.kubernetes.io/part-of.
	Object any

	// Live is the object as the caller knows it, usually from a lister, with its
	// managedFields. If Object would not change it, Apply makes no request. nil means
	// unknown: Apply creates the object, and reads its metadata if it exists.
	Live metav1.Object

	// Adopt allows that an existing object becomes a member, unless it is a member of
	// another set or has a controller other than the parent. Otherwise such an object is
	// an error, and Apply does not change it. A member that this Set remembers, and that lost
	// its label, needs no Adopt: Apply adds the label again. Fields that kubectl apply or
	// another controller wrote, and Object omits, stay: ssa.Migrate gives them to Manager
	// before.
	Adopt bool
	// Force adopts any existing object. The other set then leaves it alone. Owner references
	// stay.
	Force bool

	// Recreate allows that Apply deletes a member, with the policy of Propagation, and
	// creates it again if the API server rejects each of its invalid fields as immutable.
	// Only the texts of the response show that. If finalizers delay the deletion, the
	// error asks to apply again.
	Recreate bool
	// Wait makes the object Pending, and no error, while the API server does not serve its
	// kind. Each call then resets the Mapper, if it is a meta.ResettableRESTMapper. To call
	// Apply again in time, watch CustomResourceDefinitions.
	Wait bool
}

// Action is the change that a call made to an object of a [Set].
type Action string

const (
	Created   Action = "Created"   // by an apply
	Adopted   Action = "Adopted"   // an existing object became a member
	Changed   Action = "Changed"   // by an apply
	Recreated Action = "Recreated" // by a deletion and an apply
	Unchanged Action = "Unchanged" // without a request, or by an apply that was a no-op
	Pruned    Action = "Pruned"    // a former member, which was deleted and is gone
	Pending   Action = "Pending"   // a former member whose deletion waits, or an object with Wait; Reason has the cause
	Kept      Action = "Kept"      // a former member that must stay; Reason has the cause
)

// Result is the outcome for one object of a [Set].
type Result struct {
	Kind            schema.GroupVersionKind
	Namespace, Name string // Namespace is "" for a cluster-scoped object

	Action Action // "" if Err is not nil
	Reason string // for logs; of Pending and Kept, and of a Plan
	Err    error  // ErrNotTried, or the cause

	// Object is the response to an apply, and nil without a response.
	Object *unstructured.Unstructured
}

// Apply brings the members of parent to wanted. It returns a Result for each wanted object,
// in the order of wanted, then one for each former member. The error joins an
// [*ObjectError] for each Result with an Err; the Index of a former member is -1. An error
// about the Set or the parent comes alone, without results.
//
// parent is the object as the caller knows it. Its annotations decide whether Apply can
// rely on what the Set remembers. Otherwise Apply reads the live parent and lists the
// members.
//
// If an object fails, later stages are not tried and no object is pruned. Prune
// compares with the live object: an object of another set, or with a controller other
// than the parent, stays. If the deletion of an object waits, for example for its
// finalizers, the remaining stages wait for it, with the Action Pending. The next call
// continues: so watch the kinds of the members.
//
// If a call would prune more than MaxPrune or MaxPrunePercent allow, or what PruneNamespaces
// or PruneCRDs must allow, it prunes no object, and the error has the cause. Prune leaves
// the Namespace and the CustomResourceDefinition of a wanted object. If ctx ends, Apply makes no further request, and each
// object without one has [ErrNotTried].
//
// A creation has the resourceVersion 9223372036854775807, so that it fails if the object
// exists. Admission webhooks and policies see it. If an API server rejects the version
// of an absent object, Apply creates the object without one. If another user has created
// it just before, Apply removes its own fields and its label again. If the program dies
// before that, the other user's object stays a member.
func (s *Set) Apply(ctx context.Context, parent metav1.Object, wanted ...Member) ([]Result, error) {
	c, err := s.begin(parent)
	if err != nil {
		return nil, err
	}
	if err := c.plan(wanted); err != nil {
		return nil, err
	}
	if c.run.failed {
		return c.report(nil)
	}
	if err := c.checkGrowth(); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.load(ctx, false); err != nil {
		return nil, err
	}
	if err := c.applyAll(ctx); err != nil {
		return nil, err
	}
	if !c.run.failed {
		err = c.prune(ctx, true)
	}
	return c.report(err)
}

// Delete prunes all members of parent, in the reverse order of the stages and without the
// bounds of Apply. With a Namespace go all objects in it. Its error is nil once complete lists from the API server had no member
// except kept ones. Otherwise call it again, for example after the event of a member.
//
// Call Delete as the cleanup of Finalizer. parent may be being deleted or not.
func (s *Set) Delete(ctx context.Context, parent metav1.Object) ([]Result, error) {
	c, err := s.begin(parent)
	if err != nil {
		return nil, err
	}
	if err := c.plan(nil); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.load(ctx, true); err != nil {
		return nil, err
	}
	results, err := c.report(c.prune(ctx, false))
	if err == nil {
		err = c.remaining()
	}
	if err == nil {
		c.memory.forget()
	}
	return results, err
}

// TakeOver makes the set of another tool, such as "kubectl", one of this Set: it changes the
// tool in the parent's annotation applyset.kubernetes.io/tooling, and no member. The
// inventory stays, so that the next Apply prunes the members that are not wanted. The other
// tool refuses the set from then on. During the call no other program may change the set.
//
// The error is a Conflict if the parent changed since it was read: try again. If the set
// belongs to this Set already, TakeOver makes no change. If it belongs to a third tool, or
// parent has no set, that is an error.
//
// Fields of members that the other tool applied, and that the wanted objects omit, stay; see
// ssa.Migrate. To give a set to another tool, stop the controller and change the
// annotation.
func (s *Set) TakeOver(ctx context.Context, parent metav1.Object, tool string) error {
	c, err := s.begin(parent)
	switch {
	case err != nil:
		return err
	case tool == "":
		return errors.New("applyset: the tool is empty: pass the name that the annotation applyset.kubernetes.io/tooling of the parent has, without its version")
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c.memory.until = time.Time{} // the other tool can have created members
	if err := c.checkKind(ctx); err != nil {
		return err
	}
	if err := c.readLive(ctx); err != nil {
		return err
	}
	switch _, found, err := inventory.Read(c.live, c.id, s.Manager); {
	case !found:
		return errors.New("applyset: the parent has no set: call Apply")
	case err == nil:
		return nil
	}
	i, _, err := inventory.Read(c.live, c.id, tool)
	if err != nil {
		return fmt.Errorf("applyset: %w", err)
	}
	if err := c.checkParent(c.live); err != nil {
		return err
	}
	return c.store(ctx, i)
}

// call is one call of a method of a Set.
type call struct {
	*Set
	batch    *Batch
	run      *batchRun
	wanted   []*wantedMember
	ids      map[identity]bool // of wanted
	id       string            // of the set
	parent   metav1.Object
	parents  schema.GroupVersionResource
	resource metadata.ResourceInterface // of the parent
	live     *metav1.PartialObjectMetadata
	memory   *memory
	seen     map[identity]*metav1.PartialObjectMetadata // the members that this call has listed
	former   []*former
	uids     map[types.UID]bool                     // of the wanted objects
	mappings map[schema.GroupKind]*meta.RESTMapping // of the kinds of members
	versions map[schema.GroupKind]string            // of the kinds of the wanted objects
	groups   sets.Set[string]                       // that definitions among the members have
	dryRun   bool
	reset    bool // whether the call has reset the Mapper
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

// above returns what an object is to the parent, if its deletion would delete the parent or
// wait for it, and "" otherwise.
func (c *call) above(id identity) string {
	owns := func(ref metav1.OwnerReference) bool {
		gv, _ := schema.ParseGroupVersion(ref.APIVersion)
		return id.kind == schema.GroupKind{Group: gv.Group, Kind: ref.Kind} && id.name == ref.Name && (id.namespace == "" || id.namespace == c.parent.GetNamespace())
	}
	switch id {
	case identity{c.ParentKind.GroupKind(), c.parent.GetNamespace(), c.parent.GetName()}:
		return "the parent"
	case identity{namespaceKind(), "", c.parent.GetNamespace()}:
		return "the Namespace of the parent"
	case identity{definitionKind(), "", c.parents.GroupResource().String()}:
		return "the CustomResourceDefinition of the parent"
	}
	if slices.ContainsFunc(c.parent.GetOwnerReferences(), owns) {
		return "an owner of the parent"
	}
	return ""
}

// begin checks the Set and the parent.
func (s *Set) begin(parent metav1.Object) (*call, error) {
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
	batch := &Batch{Client: s.Client, Mapper: s.Mapper, Manager: s.Manager, Concurrency: s.Concurrency, CRDTimeout: s.CRDTimeout}
	if s.Own {
		batch.Owner, batch.OwnerKind = parent, kind
	}
	return &call{
		Set:      s,
		batch:    batch,
		id:       inventory.ID(kind.GroupKind(), parent.GetNamespace(), parent.GetName()),
		parent:   parent,
		parents:  mapping.Resource,
		resource: s.Metadata.Resource(mapping.Resource).Namespace(parent.GetNamespace()),
		mappings: map[schema.GroupKind]*meta.RESTMapping{},
		versions: map[schema.GroupKind]string{},
		groups:   sets.New[string](),
	}, nil
}

// plan checks the wanted objects. If one is not valid, the run has failed before it begins.
func (c *call) plan(wanted []Member) (err error) {
	objects := make([]any, len(wanted))
	for i, m := range wanted {
		objects[i] = m.Object
	}
	if c.run, err = c.batch.plan(objects, false); err != nil {
		return err
	}
	c.ids = make(map[identity]bool, len(wanted))
	c.run.failed = false
	for _, m := range c.run.members {
		c.defines(idOf(m.object))
	}
	for i, m := range c.run.members {
		w := &wantedMember{Member: wanted[i], member: m}
		if w.Wait && meta.IsNoMatchError(m.err) {
			c.resetMapper()
			if m.err = c.batch.place(c.run, m, false); meta.IsNoMatchError(m.err) {
				m.err, w.action, w.reason = nil, Pending, unserved
			}
		}
		if m.err == nil {
			m.err = c.check(w)
		}
		c.run.failed = c.run.failed || m.err != nil
		c.wanted = append(c.wanted, w)
		c.ids[w.id] = true
		if _, ok := c.versions[w.id.kind]; !ok {
			c.versions[w.id.kind] = m.object.GroupVersionKind().Version
		}
	}
	return nil
}

// report makes the results, and the error that joins err and theirs.
func (c *call) report(err error) ([]Result, error) {
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
		if w.err == nil && c.run.failed && w.action == "" {
			w.err = fmt.Errorf("%w: another object has failed", ErrNotTried)
		}
		add(i, Result{Kind: w.object.GroupVersionKind(), Namespace: w.object.GetNamespace(), Name: w.object.GetName(), Action: w.action, Reason: w.reason, Err: w.err, Object: w.answer})
	}
	slices.SortFunc(c.former, func(a, b *former) int {
		return cmp.Or(cmp.Compare(b.stage, a.stage), cmp.Compare(a.kind.String(), b.kind.String()), cmp.Compare(a.id.namespace, b.id.namespace), cmp.Compare(a.id.name, b.id.name))
	})
	for _, f := range c.former {
		if f.action == "" && f.err == nil {
			f.action, f.reason = Pending, "the call ended before"
		}
		add(-1, Result{Kind: f.kind, Namespace: f.id.namespace, Name: f.id.name, Action: f.action, Reason: f.reason, Err: f.err})
	}
	return results, errors.Join(errs...)
}
