package applyset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

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
// A Set remembers the members that it has listed and applied. An hour after the last list,
// or a minute if the API server did not serve a kind of the inventory, and in another term of
// package leader or shard, the next call lists again. Until then the Set does not see that another user labels an object as a member.
// The memory grows with the members of all parents: the number of parents has no bound, so
// a parent never evicts another. A Set forgets a parent after Delete succeeds. It also
// forgets the parents without a call in the last hour; it looks for them during calls,
// once an hour. If it has forgotten a parent, the next call lists the members.
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

	mu                sync.Mutex // guards the fields below
	memories          map[types.UID]*memory
	swept             time.Time // when memories was searched for old ones
	parentKindChecked bool      // whether ParentKind can be the kind of parents
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
	// kind. Each call then resets the Mapper, if it is a meta.ResettableRESTMapper, and prune
	// leaves the CustomResourceDefinitions of its group. To call Apply again in time, watch
	// CustomResourceDefinitions.
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
// If an object fails, later stages are not tried and no object is pruned. If it only waits for the end of
// a deletion, the error is a controllerkit.WaitingError. Prune
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
//
// In a call of package preview, the results are those of Plan, and the report has the writes.
func (s *Set) Apply(ctx context.Context, parent metav1.Object, wanted ...Member) ([]Result, error) {
	return s.call(ctx, parent, wanted, false, func(c *setCall) ([]Result, error) {
		if c.reports = c.preview; c.reports {
			return c.plan(ctx)
		}
		err := c.applyAll(ctx)
		if err != nil {
			return nil, err
		}
		if !c.batch.failed {
			err = c.prune(ctx, true)
		}
		return c.report(err)
	})
}

// Delete prunes all members of parent, in the reverse order of the stages and without the
// bounds of Apply. With a Namespace go all objects in it. Its error is nil once complete lists from the API server had no member
// except kept ones. Otherwise call it again, for example after the event of a member. If only
// deletions are not finished, the error is a controllerkit.WaitingError.
//
// If a user deleted the parent with --cascade=orphan, Delete deletes no member and returns nil. The members keep
// their label: a new parent of the same kind, namespace and name takes them over, and another one needs
// Force. The finalizer orphan shows that deletion. The garbage collector removes it soon: if parent, as
// passed, lacks it, Delete deletes the members. To be sure that an object stays, use Keep.
//
// Call Delete as the cleanup of Finalizer. parent may be being deleted or not.
func (s *Set) Delete(ctx context.Context, parent metav1.Object) ([]Result, error) {
	return s.call(ctx, parent, nil, true, func(c *setCall) ([]Result, error) {
		if c.preview {
			defer c.memory.restore(maps.Clone(c.memory.members), c.memory.inventory)
			return c.report(c.prune(ctx, false))
		}
		results, err := c.report(c.prune(ctx, false))
		if err == nil {
			err = c.remaining()
		}
		if err == nil {
			c.memory.forget()
		}
		return results, err
	})
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
// Fields of members that the other tool applied, and that the wanted objects omit, stay:
// ssa.Migrate gives them to Manager. To give a set to another tool, stop the controller and change the
// annotation.
func (s *Set) TakeOver(ctx context.Context, parent metav1.Object, tool string) error {
	c, err := s.newCall(parent)
	switch {
	case err != nil:
		return err
	case tool == "":
		return errors.New("applyset: the tool is empty: pass the name that the annotation applyset.kubernetes.io/tooling of the parent has, without its version")
	}
	unlock, err := c.lockParent(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c.memory.trustedUntil = time.Time{} // the other tool can have created members
	if err := c.checkKind(ctx); err != nil {
		return err
	}
	if err := c.readLive(ctx); err != nil {
		return err
	}
	switch _, found, err := inventory.Read(c.liveParent, c.setID, s.Manager); {
	case !found:
		return errors.New("applyset: the parent has no set: call Apply")
	case err == nil:
		return nil
	}
	i, _, err := inventory.Read(c.liveParent, c.setID, tool)
	if err != nil {
		return fmt.Errorf("applyset: %w", err)
	}
	if err := c.checkParent(c.liveParent); err != nil {
		return err
	}
	return c.patchParent(ctx, i)
}
