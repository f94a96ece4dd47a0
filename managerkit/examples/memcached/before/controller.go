// Package before is the operator with the usual patterns.
package before

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/controllerkit/controllerkit/managerkit/examples/memcached"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
)

// Finalizer keeps a Memcached until its address is removed from the Directory.
const Finalizer = "cache.example.com/directory"

// Reconciler runs the servers of each Memcached, and registers their address.
type Reconciler struct {
	client.Client
	Events    recorder.EventRecorder
	Directory memcached.Directory
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&v1.Memcached{}).Owns(&appsv1.Deployment{}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	m := &v1.Memcached{}
	if err := r.Get(ctx, req.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !m.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.cleanup(ctx, m)
	}
	if controllerutil.AddFinalizer(m, Finalizer) {
		if err := r.Update(ctx, m); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.Directory.Register(ctx, string(m.UID), fmt.Sprintf("%s.%s:%d", m.Name, m.Namespace, m.Spec.Port)); err != nil {
		r.Events.Eventf(m, nil, corev1.EventTypeWarning, "NotRegistered", "Register", "%v", err)
		return ctrl.Result{}, err
	}
	deployment, changed, err := r.deploy(ctx, m)
	if err != nil {
		return ctrl.Result{}, err
	}
	if changed {
		r.Events.Eventf(m, deployment, corev1.EventTypeNormal, "Deployed", "Deploy", "Size is %d", m.Spec.Size)
	}
	m.Status.Ready = deployment.Status.ReadyReplicas
	meta.SetStatusCondition(&m.Status.Conditions, available(m, deployment))
	return ctrl.Result{}, r.Status().Update(ctx, m)
}

// cleanup removes what the garbage collector does not.
func (r *Reconciler) cleanup(ctx context.Context, m *v1.Memcached) error {
	if !controllerutil.ContainsFinalizer(m, Finalizer) {
		return nil
	}
	if err := r.Directory.Unregister(ctx, string(m.UID)); err != nil {
		return err
	}
	r.Events.Eventf(m, nil, corev1.EventTypeNormal, "Unregistered", "Unregister", "The address is removed")
	controllerutil.RemoveFinalizer(m, Finalizer)
	return r.Update(ctx, m)
}

// available is the condition of the Memcached.
func available(m *v1.Memcached, d *appsv1.Deployment) metav1.Condition {
	c := metav1.Condition{Type: "Available", Status: metav1.ConditionFalse, Reason: "Starting", ObservedGeneration: m.Generation}
	if d.Status.ReadyReplicas >= m.Spec.Size {
		c.Status, c.Reason = metav1.ConditionTrue, "Running"
	}
	c.Message = fmt.Sprintf("%d of %d servers are ready", d.Status.ReadyReplicas, m.Spec.Size)
	return c
}
