package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/churn"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
	"github.com/controllerkit/controllerkit/operator/internal/pauses"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
)

// Children lets [Controller.Apply] apply the objects of resource, whose Go type is T, and whose kind
// has the name of T. An event of a child runs the key of its owner. It returns a reader, as [Reads]
// does:
//
//	r.deployments = operator.Children(c, appsv1.SchemeGroupVersion.WithResource("deployments"), applyappsv1.ExtractDeployment)
//
// extract is the function of the kind that client-go generates beside its configurations. With it,
// Apply finds out without a request that an object is as configured. nil is for a kind without such
// a function: the first apply of each object is a request, which is repeated every ten minutes
// if the schema of the object has lists or maps that could be atomic.
//
// A version of the program prunes and cleans up only the kinds that it registers. So register a kind one release before
// its first object, and until one release after its last one.
//
// Rights to apply the objects are declared, and with Prune or Elsewhere those to delete them. An error
// of the registration is returned by Run.
func Children[T controllerkit.Object, C any](c *Controller, resource schema.GroupVersionResource, extract func(obj T, fieldManager string) (C, error)) *Reader[T] {
	r, err := objects.Of[T](&c.op.objects, c.op.Config, c.op.options.Namespace, resource, objects.Required)
	switch {
	case err != nil:
		c.fail("%w", err)
		return &Reader[T]{}
	case c.children == nil:
		c.fail("Children of %s: the controller was not made by Kind, so use Owns", resource.GroupResource())
		return &Reader[T]{}
	case c.children[r.Kind.GroupKind()] != nil:
		c.fail("Children was called twice for %s", resource.GroupResource())
		return &Reader[T]{}
	}
	k := &childKind[T]{Resource: r}
	if extract != nil {
		k.extract = func(obj T, fieldManager string) (*unstructured.Unstructured, error) {
			owned, err := extract(obj, fieldManager)
			if err != nil {
				return nil, err
			}
			return objects.Unstructured(owned)
		}
	}
	c.children[r.Kind.GroupKind()] = k
	c.childKinds = append(c.childKinds, k)
	c.owns = true
	owned[T](c, r.Name, r, c.ownerKeys, nil)
	handle[T](c, r.Name, r, func() cache.ResourceEventHandler {
		return pauses.Children(c.op.options.annotations(), c.logger(r.Name))
	})
	k.reader = remember(c, r, nil, c.ownerKeys)
	verbs := []string{"get", "create", "patch"}
	if c.prune || c.elsewhere {
		verbs = append(verbs, "delete")
	}
	c.op.Writes(r.Name, verbs...)
	return k.reader
}

// ownerKeys returns the key of the owner of a child.
func (c *Controller) ownerKeys(obj metav1.Object) []types.NamespacedName {
	if keys := c.controllerKeys(obj); len(keys) > 0 || !c.elsewhere {
		return keys
	}
	return objects.OwnerKey(obj, c.owner, c.about.Owner)
}

// A Child is the result of [Controller.Apply] for one object.
type Child struct {
	// Object is the object that the API server has, of the Go type of [Children], with apiVersion and
	// kind: its response, or a copy of the cached object if that is as configured. nil means that it is
	// not known.
	Object metav1.Object

	// Changed is whether the apply has created or changed the object.
	Changed bool

	// Err is the error of this object.
	Err error
}

// Apply makes objects the children of the object of the call that ctx belongs to, by server-side apply.
// An object is an apply configuration of client-go or an *unstructured.Unstructured, of a kind
// that [Children] has registered. Apply modifies none of them. They are applied one after another:
//
//   - The object of the call becomes their controller. With Elsewhere, labels mark those that cannot have
//     an owner reference.
//   - An object that is as configured costs no request.
//   - An object that exists and does not belong to the object of the call is left alone, also if it
//     has no owner. Its error is of the class rejected, and its deletion runs the key. If it belongs to an earlier object of this kind and
//     name, the error is a controllerkit.WaitingError until it is deleted.
//   - A child that is being deleted is left alone, without an error. Its deletion runs the key again.
//   - Fields of other managers that it names are taken over. Those that they own and it does not name stay: see
//     Reconciler.Former.
//   - A field that it no longer names is removed or gets its default, unless another manager owns it.
//   - An Event names each object that was created or changed.
//
// Before the first request, all objects are checked. If one is not valid, none is applied. If the request of
// an object fails, Apply goes on with the next one. The children have the order of objects. The error
// joins their errors. Apply is safe for concurrent use.
//
// After a Reconcile that called Apply and returned nil, Prune deletes the other children that the cache has,
// at most 100 in a call. Each is deleted in the cached version, after a read that confirms that the
// object of the call has not changed, with background propagation. None is deleted if an Apply of the call
// failed, or a [Reader] did with another error than NotFound. In a new leader none is deleted by a call that has
// used a Reader, until the caches are as new as the last leader's writes. This takes ten minutes or more
// if Leases have an etcd of their own: see C9 of package consistency.
func (c *Controller) Apply(ctx context.Context, objects ...any) ([]Child, error) {
	call, err := callOf(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("operator: Apply: %w", err)
	case call.c != c:
		return nil, fmt.Errorf("operator: Apply: %w", reject(fmt.Errorf("the context is that of controller %q: use its own Controller", call.c.Loop.Name)))
	}
	all := make([]wanted, len(objects))
	for i, obj := range objects {
		if all[i], err = c.want(call, obj); err == nil {
			err = call.claim(all[i].id)
		}
		if err != nil {
			call.note(childID{}, Child{Err: err}) // also if the function drops the error
			return nil, fmt.Errorf("operator: Apply: object %d: %w", i, reject(err))
		}
	}
	call.applied.Store(true)
	children := make([]Child, len(all))
	var errs []error
	for i, w := range all {
		if err := ctx.Err(); err != nil {
			children[i].Err = fmt.Errorf("operator: apply %s: %w", w.id, context.Cause(ctx))
		} else if children[i], err = w.kind.apply(ctx, call, w); err != nil {
			children[i].Err = fmt.Errorf("operator: apply %s: %w", w.id, err)
		}
		if children[i].Err != nil {
			errs = append(errs, children[i].Err)
		}
		call.note(w.id, children[i])
	}
	return children, errors.Join(errs...)
}

// A childID names a child.
type childID = objects.ID

// wanted is a checked configuration, with the reference to its owner.
type wanted struct {
	id     childID
	kind   child
	config *unstructured.Unstructured
}

// want checks a configuration and adds the owner.
func (c *Controller) want(call *call, obj any) (w wanted, err error) {
	if w.config, w.id, err = objects.Child(obj); err != nil {
		return w, err
	}
	kind := w.config.GroupVersionKind()
	w.kind = c.children[kind.GroupKind()]
	switch {
	case w.kind == nil:
		return w, fmt.Errorf("%s is of a kind that is not registered: call operator.Children for it", w.id)
	case w.kind.Info().Kind != kind:
		return w, fmt.Errorf("%s has apiVersion %s, and Children registered %s: use one", w.id, kind.GroupVersion(), w.kind.Info().Kind.GroupVersion())
	}
	if kind, known := c.op.served.Kinds()[w.kind.Info().Name]; known {
		if err := w.id.CheckNamespace(kind); err != nil {
			return w, err
		}
	}
	if c.op.options.Namespace != "" && w.id.Namespace != c.op.options.Namespace && !w.kind.Info().Given {
		return w, fmt.Errorf("%s is outside of Options.Namespace %q, so no informer sees it: use that namespace, or Operator.Inform", w.id, c.op.options.Namespace)
	}
	return w, objects.Owner{Object: call.owner, Kind: call.kind, Resource: c.owner, Elsewhere: c.elsewhere}.Mark(w.config, w.id)
}

// reject marks an error that the same call gets again.
func reject(err error) error { return fmt.Errorf("%w: %w", err, reconcile.ErrRejected) }

// A child is a kind of children.
type child interface {
	Info() objects.About
	apply(ctx context.Context, call *call, w wanted) (Child, error)
	Owned(owner types.UID) ([]metav1.Object, error)
	Whole(namespace, name string) (metav1.Object, bool)
	objects.Marked
}

type childKind[T controllerkit.Object] struct {
	*objects.Resource[T]
	extract func(T, string) (*unstructured.Unstructured, error) // nil without one
	memory  ssa.Memory[T, *unstructured.Unstructured]
	reader  *Reader[T]
}

// apply applies one object.
func (k *childKind[T]) apply(ctx context.Context, call *call, w wanted) (c Child, err error) {
	client := k.Client.Namespace(w.id.Namespace)
	live, exists, err := k.Get(w.id.Namespace, w.id.Name)
	if err != nil {
		return c, err
	}
	cached := exists
	if !exists || consistency.LiveRead(ctx) {
		// An object that the cache does not have yet must not be adopted.
		live, err = client.Get(ctx, w.id.Name, metav1.GetOptions{})
		switch {
		case kube.IsGone(err, w.id.Name):
			live, exists = *new(T), false
		case err != nil:
			return c, err
		default:
			exists = true
			call.c.saw(ctx, call.owner, k.Name, live)
		}
	}
	if exists {
		if err := (objects.Owner{Object: call.owner, Kind: call.kind}).CheckOwned(live); err != nil {
			return c, k.inTheWay(ctx, w.id, cached, err)
		}
		if c.Object = k.Named(live.DeepCopyObject().(T)); live.GetDeletionTimestamp() != nil {
			return c, nil
		}
		if live, err = k.Taken(ctx, live, call.c.manager, call.c.former); err != nil {
			return c, objects.Late(err)
		}
	}
	request := func(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (T, error) {
		return client.Apply(ctx, config, opts)
	}
	response, sent, err := k.memory.ApplyChanged(ctx, ssa.FieldManager(call.c.manager), request, w.config, live, k.extract)
	if err != nil {
		return c, objects.Late(err)
	}
	if sent {
		c.Object = k.Named(response)
	}
	c.Changed = sent && (!exists || response.GetResourceVersion() != live.GetResourceVersion())
	call.churn.Applied(ctx, &call.c.op.churn, churn.Apply{Owner: call.owner, Config: w.config, Manager: call.c.manager, Before: objects.Known(live, exists), After: objects.Known(response, sent), Changed: c.Changed})
	if c.Changed {
		did, reason := "changed", "Changed"
		if !exists {
			did, reason = "created", "Created"
		}
		call.c.Event(call.owner, corev1.EventTypeNormal, reason, "Apply", "%s %s", did, w.id)
	}
	return c, nil
}

// inTheWay returns the error about an object that has the name of a child, and remembers it, so that its deletion runs the key.
func (k *childKind[T]) inTheWay(ctx context.Context, id childID, cached bool, err error) error {
	if failed := k.reader.reads.Remember(ctx, id.Namespace, id.Name); failed != nil {
		return errors.Join(err, failed)
	}
	if _, exists, failed := k.Get(id.Namespace, id.Name); cached && !exists && failed == nil { // its deletion came before Remember
		return fmt.Errorf("the object that had its name is deleted: %w", kube.ErrGone)
	}
	return err
}

// saw notes a live read for an owner, so that its next calls do not see less in the cache.
func (c *Controller) saw(ctx context.Context, owner metav1.Object, resource schema.GroupResource, live metav1.Object) {
	if consistency.LiveRead(ctx) {
		key := types.NamespacedName{Namespace: owner.GetNamespace(), Name: owner.GetName()}
		c.writes.Saw(key, owner.GetUID(), resource, live)
	}
}

// pruneChildren deletes the children that the call has not applied. wait is not 0 if some are left for
// the next call.
func (c *Controller) pruneChildren(ctx context.Context, call *call, confirm func(context.Context) error) (wait time.Duration, err error) {
	if !c.prune || !call.mayPrune(c.pruneAll) {
		return 0, nil
	}
	_, preview := calls.InPreview(ctx) // shows all of them
	tried, errs := 0, []error(nil)     // the first errors: one child that may not be deleted must not keep the others
	for _, k := range c.childKinds {
		children, err := k.Owned(call.owner.GetUID())
		if err != nil {
			return 0, errors.Join(append(errs, fmt.Errorf("operator: prune: %w", err))...)
		}
		for _, child := range children {
			id := childID{GroupKind: k.Info().Kind.GroupKind(), NamespacedName: types.NamespacedName{Namespace: child.GetNamespace(), Name: child.GetName()}}
			_, named := call.get(id)
			switch {
			case child.GetDeletionTimestamp() != nil || named || !objects.IsOwned(child, call.owner):
				continue
			case tried == objects.MaxPrune && !preview:
				return time.Second, errors.Join(errs...)
			case tried == 0 && call.reads.Load() && consistency.LiveRead(ctx): // the caches that were read can be older than the children
				return 10 * time.Second, nil
			case tried == 0:
				if err := confirm(ctx); err != nil {
					return 0, fmt.Errorf("operator: prune: %w", err)
				}
			}
			if ctx.Err() != nil {
				return 0, errors.Join(append(errs, fmt.Errorf("operator: prune: %w", context.Cause(ctx)))...)
			}
			tried++
			if err := k.Remove(ctx, child); err != nil {
				if len(errs) < 3 {
					errs = append(errs, fmt.Errorf("operator: prune %s: %w", id, err))
				}
				continue
			}
			c.Event(call.owner, corev1.EventTypeNormal, "Pruned", "Prune", "deleted %s", id)
		}
	}
	return 0, errors.Join(errs...)
}
