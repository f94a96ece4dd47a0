package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
	"github.com/controllerkit/controllerkit/operator/internal/outcome"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// A Reconciler has the functions of a controller of objects of type T, and its settings: see
// [Kind]. Only Reconcile is required.
type Reconciler[T controllerkit.Object] struct {
	// Reconcile brings the cluster and other systems closer to the spec of obj. It must reach the
	// same result if it runs twice. ctx is as for [reconcile.Func], and is the argument of
	// [Controller.Apply], [Reader.Get] and [Held].
	//
	// obj is a copy that belongs to the function. Changes of its status are written after the
	// call. Changes of its spec, such as defaults, are not written. Changed metadata is an error.
	// The function must not use obj after it has returned.
	Reconcile func(ctx context.Context, obj T) (reconcile.Result, error)

	// Cleanup removes what Reconcile made outside of the API server. It must be idempotent. It is
	// called while obj is being deleted and carries the Finalizer, until it returns nil; then the
	// Finalizer is removed. If it returns an error, its changes of the status are written. It can return the
	// error of a [finalizer.Plan], which decides when it is called again. nil means no cleanup.
	Cleanup func(ctx context.Context, obj T) error

	// Finalizer is the name of the finalizer, such as example.com/bucket. It is required with
	// Cleanup or Elsewhere, and an error without them.
	Finalizer string

	// Manager is the field manager of Apply. If a version changes it, name the former one in Former:
	// otherwise it keeps its fields. "" means Options.Name.
	Manager string

	// Former has the field managers of earlier versions that wrote the children by create, update, patch or apply, such as
	// "manager" for a program of that name with controller-runtime. Apply makes their fields its own, once for each
	// child. Set it in the first version that applies, and apply in the API version that the former one wrote in.
	// Without it, a field that Apply no longer names stays in the child, because the former manager still owns it.
	Former []string

	// Prune deletes the children that the calls of Apply in one call of Reconcile do not
	// name, after that call has returned nil. If Apply was not called, it deletes none. If all calls of
	// Apply had no objects, it deletes all children if PruneAll is also set, and otherwise none.
	// See [Controller.Apply].
	Prune, PruneAll bool

	// Elsewhere allows children that cannot have an owner reference, because they are in another
	// namespace, or because they are cluster-scoped and T is not. Labels mark them, and they are
	// deleted before Finalizer is removed. After kubectl delete --cascade=orphan they stay, without
	// the labels, if the process has seen the finalizer orphan before the garbage collector removed
	// it. For a kind with an informer of Inform or InformFrom they are listed in
	// all namespaces, because its selection can have changed. That needs the rules of Rules in a ClusterRole.
	Elsewhere bool

	// Rules decide whether children are ready, in addition to those of package kstatus.
	Rules kstatus.Rules

	// Phases has the values of the field status.phase. If it is set, the field follows from the
	// condition Ready and the deletion; the value of Terminating needs a Cleanup. The API server's
	// schema must allow the values. A state without a value keeps the former one. nil leaves the
	// field to Reconcile. docs/myths.md has the reasons for conditions in place of a phase.
	Phases map[kstatus.State]string

	// ReadOnly is for objects whose status belongs to another controller, such as a Deployment:
	// nothing is written to it, and a changed status is an error.
	ReadOnly bool
}

// Inform makes [Kind], [Children] and [Reads] use an informer of the caller for a resource, for example one
// of package scope. The informer must hold objects of the Go type that they name, with their
// managedFields. Call Inform before them. Without it they make an informer of Options.Namespace.
//
// A namespace can leave a selection of package scope during a call, which then sees none of its objects. Such a
// call prunes no children, and its Finalizer stays, if the informers of Kind and of all that its calls read have one
// selection: make the others by its With.
func (op *Operator) Inform(resource schema.GroupResource, informer cache.SharedIndexInformer) {
	if err := op.objects.Inform(resource, informer); err != nil {
		op.fail("Inform: %w", err)
	}
}

// InformFrom makes [Kind], [Children] and [Reads] use the informers that informer returns, such as those of a
// manager's cache: see package managerkit/bridge. obj is an empty object of the Go type that they name. The rest is as for
// Inform. A resource that Inform names keeps that informer. Optional and single kinds of [Reading] have informers of their own.
func (op *Operator) InformFrom(informer func(kind schema.GroupVersionKind, obj controllerkit.Object) (cache.SharedIndexInformer, error)) {
	op.objects.From = informer
}

// Kind adds a controller of the objects of resource, whose Go type is T, and whose kind has the name
// of T:
//
//	c := operator.Kind(op, v1.GroupVersion.WithResource("websites"), operator.Reconciler[*v1.Website]{
//		Reconcile: r.reconcile, Finalizer: "example.com/dns", Cleanup: r.cleanup,
//	})
//
// Clients and informers are made, and their rights are declared. The name of the controller is that
// of the resource. If a controller of another group has that name, it is followed by the group, as in
// gateways.example.com.
//
// For each key, the controller reads the object. If it is absent, nothing is called. If it is being
// deleted, Cleanup is called if it has the Finalizer. Otherwise the Finalizer is stored if there is
// one, and then Reconcile is called. With a Finalizer, or if the cache can be older than the writes of
// the last leader, the object that Reconcile gets was read from the API server.
//
// After the call, the status that Reconcile changed is written once, or not at all if it is the
// same, also if Reconcile returned an error. The write fails if the object has changed, and then so
// does the call. After a panic or the loss of leadership nothing that Reconcile changed is written. If
// the write or Prune fails after a success, the RequeueAfter of Reconcile does not apply. Two fields of
// the status are set if T has them:
//
//   - status.observedGeneration is the generation of obj, unless Reconcile has changed it.
//   - status.conditions, of type metav1.Condition, gets Ready. obj has no such condition during the
//     call, so one that Reconcile sets is kept. Otherwise Ready follows from the error of the call.
//
// After nil, Ready has the state of the objects that this call has applied, by package kstatus, and is
// true without any. Terminal, rejected and forbidden errors make it false, with the class as the reason
// and the error as the message. So do other errors and panics if the calls of the key have failed for
// 10s, or as often as Loop.MaxAttempts. A controllerkit.WaitingError makes it false with the reason Waiting.
// Conflicts, stale and cancelled calls, and the loss of leadership leave Ready and observedGeneration
// unchanged. Loop.Classify replaces the error first, so it is called twice for each.
//
// The annotation paused of an object, see package [pause], stops all this but its deletion: only the condition
// Paused is written, and Ready Unknown if there is no Ready yet. If the status has a text field
// lastHandledReconcileAt, it gets the value of the annotation requested-at together with observedGeneration.
//
// An error of the registration is returned by Run.
func Kind[T interface {
	controllerkit.Object
	DeepCopy() T
}](op *Operator, resource schema.GroupVersionResource, r Reconciler[T]) *Controller {
	k := &kind[T]{Reconciler: r}
	name := resource.Resource
	if slices.ContainsFunc(op.controllers, func(c *Controller) bool {
		return c.Loop.Name == name && c.owner.Resource == name && c.owner.Group != resource.Group
	}) {
		name = resource.GroupResource().String()
	}
	c := op.Controller(name, k.call)
	k.c = c
	c.manager, c.former, c.prune, c.pruneAll, c.elsewhere = cmp.Or(r.Manager, op.options.Name), slices.Clone(r.Former), r.Prune, r.PruneAll, r.Elsewhere
	c.children = map[schema.GroupKind]child{}
	var err error
	if k.Resource, err = objects.Of[T](&op.objects, op.Config, op.options.Namespace, resource, objects.Required); err == nil {
		err = k.check()
	}
	if err != nil {
		c.fail("%w", err)
		return c
	}
	c.owner, c.gvk = k.Name, k.Kind
	c.phases = served.Phases{Kind: k.Kind, Phases: slices.Sorted(maps.Values(r.Phases))}
	c.readies = k.writes && outcome.HasConditions(reflect.New(reflect.TypeFor[T]().Elem()).Interface())
	handle[T](c, k.Name, k.Resource, func() cache.ResourceEventHandler {
		return k.orphans.Before(enqueue.Handler(c.adder(k.Name), enqueue.KeyOf[metav1.Object]))
	})
	op.Writes(k.Name, "get")
	if r.Finalizer != "" {
		op.Writes(k.Name, "patch")
	}
	if k.writes {
		op.Writes(schema.GroupResource{Group: k.Name.Group, Resource: k.Name.Resource + "/status"}, "patch")
	}
	return c
}

// A kind is a controller of [Kind].
type kind[T interface {
	controllerkit.Object
	DeepCopy() T
}] struct {
	Reconciler[T]
	*objects.Resource[T]
	c      *Controller
	status bool // T has one
	writes bool // which is written

	failing outcome.Failing
	orphans objects.Orphans
}

// check returns an error if the Reconciler is not valid.
func (k *kind[T]) check() error {
	sample := reflect.New(reflect.TypeFor[T]().Elem()).Interface()
	k.status = outcome.HasStatus(sample)
	k.writes = k.status && !k.ReadOnly
	switch {
	case k.Reconcile == nil:
		return errors.New("Reconciler.Reconcile is nil")
	case k.Finalizer == "" && k.Cleanup != nil:
		return errors.New("Reconciler.Cleanup needs a finalizer: set Finalizer, e.g. example.com/bucket")
	case k.Finalizer == "" && k.Elsewhere:
		return errors.New("Reconciler.Elsewhere needs a finalizer, because no garbage collector deletes such children: set Finalizer, e.g. example.com/children")
	case k.Finalizer != "" && k.Cleanup == nil && !k.Elsewhere:
		return errors.New("Reconciler.Finalizer has no work: set Cleanup, or remove it")
	case k.Finalizer != "" && (!strings.Contains(k.Finalizer, "/") || len(validation.IsQualifiedName(k.Finalizer)) > 0):
		return fmt.Errorf("Reconciler.Finalizer is %q: use a domain, a slash and a word, such as example.com/bucket", k.Finalizer)
	case slices.Contains(k.Former, ""):
		return errors.New("Reconciler.Former has an empty name: use those of metadata.managedFields")
	case k.PruneAll && !k.Prune:
		return errors.New("Reconciler.PruneAll has no effect without Prune: set both")
	case !strings.Contains(k.Name.Group, ".") && k.writes: // a kind of Kubernetes
		return fmt.Errorf("the status of %s belongs to another controller: set Reconciler.ReadOnly", k.Kind.Kind)
	case k.Phases != nil && k.ReadOnly:
		return errors.New("Reconciler.Phases and ReadOnly exclude each other")
	}
	return outcome.Wrong(sample, k.Phases)
}

// call is the Func of the loop.
func (k *kind[T]) call(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	stays := k.Stays(key.Namespace)
	before, ok, err := k.Get(key.Namespace, key.Name)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the %s: %w", k.Kind.Kind, err)
	}
	if !ok || before.GetDeletionTimestamp() != nil && !(k.Finalizer != "" && finalizer.Has(before, k.Finalizer)) {
		k.failing.Forget(key)
		return reconcile.Result{}, nil
	}
	if before.GetDeletionTimestamp() != nil {
		return k.clean(ctx, key, before, stays)
	}
	cached := before
	if before, err = k.hold(ctx, cached); err != nil {
		return reconcile.Result{}, k.report(ctx, key, cached, k.copy(cached), outcome.Call{Err: err}, err)
	}
	if a := k.c.op.options.annotations(); a.Paused(before) {
		return k.rest(ctx, key, before, a)
	}
	obj := k.copy(before)
	call := k.c.begin(ctx, before, k.Kind)
	if k.Finalizer != "" {
		// obj shows the finalizer and is newer than any cache, so a dry run would confirm no more.
		held, err := finalizer.Add(context.WithValue(ctx, calls.LiveRead{}, false), k.Client.Namespace(before.GetNamespace()), obj, k.Finalizer)
		if err != nil {
			return reconcile.Result{}, err
		}
		call.lend(obj, held)
	}
	defer outcome.Panics(func(err error) { k.panicked(ctx, key, before, outcome.Call{Err: err}) })
	res, failed := k.run(call, obj)
	call.checkNames(failed)
	err = failed
	if field := outcome.Metadata(before, obj); field != "" {
		err = errors.Join(err, fmt.Errorf("operator: Reconcile changed %s of its copy, which is never written: write it with a client: %w", field, reconcile.ErrTerminal))
	}
	if err == nil {
		err = stays()
	}
	if err == nil && k.Prune {
		var wait time.Duration
		wait, err = k.c.pruneChildren(ctx, call, func(ctx context.Context) error {
			_, err := consistency.ConfirmLive(ctx, k.Client.Namespace(before.GetNamespace()), before)
			return err
		})
		if wait > 0 && (res.RequeueAfter == 0 || res.RequeueAfter > wait) {
			res.RequeueAfter = wait
		}
	}
	err = k.report(ctx, key, before, obj, outcome.Call{Err: err, Children: call.objects()}, err)
	if failed == nil && err != nil {
		res.RequeueAfter = 0 // chosen for a success, it would replace the delay of the retry
	}
	return res, err
}

// run calls Reconcile.
func (k *kind[T]) run(call *call, obj T) (reconcile.Result, error) {
	defer call.end()
	return k.Reconcile(call, obj)
}

// cleanup calls Cleanup.
func (k *kind[T]) cleanup(call *call, obj T) error {
	defer call.end()
	if k.Cleanup == nil {
		return nil
	}
	return k.Cleanup(call, obj)
}

// copy returns the copy that the functions get.
func (k *kind[T]) copy(obj T) T {
	copied := obj.DeepCopy()
	if k.writes {
		outcome.Hide(copied)
	}
	return copied
}

// hold returns the object with its finalizer stored, read from the API server if the cache may be too
// old. It returns a paused object as it is.
func (k *kind[T]) hold(ctx context.Context, cached T) (live T, err error) {
	if k.Finalizer == "" && !consistency.LiveRead(ctx) || k.c.op.options.annotations().Paused(cached) {
		return cached, nil
	}
	client := k.Client.Namespace(cached.GetNamespace())
	if k.Finalizer != "" && !finalizer.Has(cached, k.Finalizer) {
		if _, err := finalizer.Add(ctx, client, cached, k.Finalizer); err != nil {
			return live, err
		}
	}
	// The API server can remove an object whose first finalizer comes in the middle of a deletion.
	// The work on it would never be cleaned up.
	live, err = kube.Live(ctx, client, cached)
	switch {
	case err == nil && live.GetDeletionTimestamp() != nil:
		err = fmt.Errorf("it is being deleted: %w", kube.ErrChanged)
	case err == nil && k.Finalizer != "" && !finalizer.Has(live, k.Finalizer):
		err = fmt.Errorf("it has lost the finalizer %s: %w", k.Finalizer, kube.ErrChanged)
	}
	if err != nil {
		return live, fmt.Errorf("operator: read %s %s: %w", k.Kind.Kind, kube.NameOf(cached), err)
	}
	k.c.saw(ctx, cached, k.Name, live)
	return live, nil
}

// clean calls Cleanup and removes the finalizer.
func (k *kind[T]) clean(ctx context.Context, key types.NamespacedName, before T, stays func() error) (reconcile.Result, error) {
	obj := k.copy(before)
	defer outcome.Panics(func(err error) { k.panicked(ctx, key, before, outcome.Call{Err: err, Deleting: true}) })
	_, _, err := finalizer.Ensure(ctx, k.Client.Namespace(before.GetNamespace()), obj, k.Finalizer, func(ctx context.Context, held finalizer.Held[T]) error {
		// The wish must outlast a cleanup that waits, so it is stored first, in the children.
		if k.Elsewhere && k.orphans.Has(before) {
			if err := objects.End(ctx, k.c.childKinds, before, true); err != nil {
				return err
			}
		}
		call := k.c.begin(ctx, before, k.Kind)
		call.lend(obj, held)
		err := k.cleanup(call, obj)
		if field := outcome.Metadata(before, obj); field != "" {
			return errors.Join(err, fmt.Errorf("operator: Cleanup changed %s of its copy, which is never written: write it with a client: %w", field, reconcile.ErrTerminal))
		}
		if err == nil {
			err = stays()
		}
		if err == nil && k.Elsewhere {
			err = objects.End(ctx, k.c.childKinds, before, k.orphans.Has(before))
		}
		return err
	})
	if err == nil {
		k.failing.Forget(key)
		return reconcile.Result{}, nil
	}
	var res reconcile.Result
	reported := err
	if blocked, alone := outcome.Blocked(err); alone {
		res.RequeueAfter, err = blocked.After, blocked.Err
	}
	waits := err == nil
	if err = k.report(ctx, key, before, obj, outcome.Call{Err: reported, Deleting: true}, err); waits && err != nil {
		res.RequeueAfter = 0 // of the steps, it would replace the delay of the retry
	}
	return res, err
}

// panicked reports a panic of a function, of which nothing is written that it has changed.
func (k *kind[T]) panicked(ctx context.Context, key types.NamespacedName, before T, c outcome.Call) {
	if err := k.report(ctx, key, before, k.copy(before), c, nil); err != nil {
		klog.FromContext(ctx).Error(kube.PrintableError(err, 4<<10), "The status does not show a panic")
	}
}

// report writes the status of obj after a call whose error in the loop is err. It returns that error, with
// the one of the write.
func (k *kind[T]) report(ctx context.Context, key types.NamespacedName, before, obj T, c outcome.Call, err error) error {
	if !k.status {
		return err
	}
	c.Generation, c.Rules, c.Phases, c.Request = before.GetGeneration(), k.Rules, k.Phases, k.c.op.options.annotations().Request(before)
	if !k.writes {
		if outcome.Changed(before, obj) {
			err = errors.Join(err, fmt.Errorf("operator: Reconcile changed the status of its copy, and ReadOnly is set: %w", reconcile.ErrTerminal))
		}
		return err
	}
	k.failing.Judge(ctx, key, before.GetUID(), &k.c.Loop, &c)
	limit := min(k.c.op.options.part(4), max(k.c.Loop.GracePeriod-k.c.Loop.Timeout, k.c.op.options.part(1)))
	ctx, cancel, ok := outcome.Writing(ctx, limit)
	if !ok { // the call was cancelled
		return err
	}
	defer cancel()
	if failed := outcome.Report(before, obj, c); failed != nil {
		return errors.Join(err, failed)
	}
	stored, failed := outcome.Write(ctx, k.Client.Namespace(before.GetNamespace()), before, obj, c)
	if kube.IsGone(failed, before.GetName()) {
		return err // there is nothing to report on
	}
	if failed == nil {
		k.c.op.churn.Reported(ctx, k.Kind.Kind, before, stored)
	}
	return errors.Join(err, failed)
}
