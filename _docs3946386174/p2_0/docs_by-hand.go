package page

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)
type boxes struct {
	apply   func(ctx context.Context, children ...any) ([]operator.Child, error)
	cleanup func(ctx context.Context, b *Box) error
}

func (r *boxes) register(op *operator.Operator) {
	c := operator.Kind(op, boxVersion.WithResource("boxes"), operator.Reconciler[*Box]{
		Reconcile: r.reconcile, Finalizer: boxFinalizer, Cleanup: r.cleanup, Prune: true,
	})
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	r.apply = c.Apply
}

func (r *boxes) reconcile(ctx context.Context, b *Box) (reconcile.Result, error) {
	var items []any
	for _, name := range b.Spec.Items {
		items = append(items, applycorev1.ConfigMap(name, b.Namespace).WithData(map[string]string{"text": b.Spec.Text}))
	}
	_, err := r.apply(ctx, items...)
	return reconcile.Result{}, err
}
type byHand struct {
	kube    kubernetes.Interface
	boxes   *crd.Client[*Box]
	cached  crd.Lister[*Box]
	items   corelisters.ConfigMapLister
	memory  ssa.Memory[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration]
	event   func(obj metav1.Object, eventType, reason, action, note string, args ...any)
	cleanup func(ctx context.Context, held finalizer.Held[*Box]) error
}

func (r *byHand) register(op *operator.Operator, namespace string) (c *operator.Controller, err error) {
	if r.boxes, err = crd.New[*Box](op.Config, boxVersion.WithKind("Box"), "boxes"); err != nil {
		return nil, err
	}
	if r.kube, err = kubernetes.NewForConfig(op.Config); err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.kube, 0, informers.WithNamespace(namespace))
	boxes := boxVersion.WithResource("boxes").GroupResource()
	c = op.Controller("boxes", r.reconcile)
	r.event = c.Event
	r.cached = operator.For(c, boxes, r.boxes.Namespace(namespace).Informer(0, nil))
	r.items = operator.Owns(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	op.Writes(boxes, "get", "patch")
	op.Writes(boxVersion.WithResource("boxes/status").GroupResource(), "patch")
	op.Writes(corev1.Resource("configmaps"), "get", "create", "patch", "delete")
	return c, nil
}

func (r *byHand) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	client := r.boxes.Namespace(key.Namespace)
	b, err := r.cached.Namespace(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	held, live, err := finalizer.Ensure(ctx, client, b, boxFinalizer, r.cleanup)
	if err != nil || !live {
		return reconcile.Result{}, err
	}
	// The API server can remove an object whose first finalizer comes in the middle of a deletion.
	if b, err = client.Get(ctx, held.Object().Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if b.UID != held.Object().UID || b.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // an event of it follows
	}
	children, err := r.apply(ctx, b)
	if err == nil {
		err = r.prune(ctx, b)
	}
	_, statusErr := status.Patch(ctx, client, b, func(b *Box) error {
		ready := kstatus.Condition(children...)
		switch reconcile.Class(err) {
		case "success":
		case "terminal", "rejected", "forbidden":
			ready = status.False("Ready", "Failed", err.Error())
		default:
			return nil // the next call may succeed
		}
		b.Status.ObservedGeneration = b.Generation
		return status.Set(&b.Status.Conditions, b.Generation, ready)
	})
	return reconcile.Result{}, errors.Join(err, statusErr)
}

// apply makes the items children of the box.
func (r *byHand) apply(ctx context.Context, b *Box) (children []metav1.Object, err error) {
	client := r.kube.CoreV1().ConfigMaps(b.Namespace)
	ref, err := owner.Controller(b, boxVersion.WithKind("Box"))
	if err != nil {
		return nil, err
	}
	for _, name := range b.Spec.Items {
		live, err := r.items.ConfigMaps(b.Namespace).Get(name)
		if apierrors.IsNotFound(err) { // an object that the cache does not show yet must not be adopted
			if live, err = client.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				live, err = nil, nil
			}
		}
		switch {
		case err != nil:
			return children, err
		case live != nil && !metav1.IsControlledBy(live, b):
			return children, fmt.Errorf("ConfigMap %s does not belong to this Box: %w", name, reconcile.ErrRejected)
		case live != nil && live.DeletionTimestamp != nil:
			children = append(children, live)
			continue
		}
		config := applycorev1.ConfigMap(name, b.Namespace).WithOwnerReferences(ref).WithData(map[string]string{"text": b.Spec.Text})
		applied, changed, err := r.memory.ApplyChanged(ctx, "shelf", client.Apply, config, live, applycorev1.ExtractConfigMap)
		if err != nil {
			return children, err
		}
		if changed {
			r.event(b, corev1.EventTypeNormal, "Changed", "Apply", "changed ConfigMap %s", name)
		}
		children = append(children, applied)
	}
	return children, nil
}

// prune deletes the items that the box no longer names.
func (r *byHand) prune(ctx context.Context, b *Box) error {
	all, err := r.items.ConfigMaps(b.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	confirmed := len(b.Spec.Items) == 0
	for _, item := range all {
		if !metav1.IsControlledBy(item, b) || item.DeletionTimestamp != nil || slices.Contains(b.Spec.Items, item.Name) || len(b.Spec.Items) == 0 {
			continue
		}
		if !confirmed { // an old spec must not delete what a newer one names
			live, err := r.boxes.Namespace(b.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
			if err != nil || live.ResourceVersion != b.ResourceVersion {
				return errors.Join(errors.New("the box has changed"), err)
			}
			confirmed = true
		}
		err := r.kube.CoreV1().ConfigMaps(b.Namespace).Delete(ctx, item.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &item.UID, ResourceVersion: &item.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
