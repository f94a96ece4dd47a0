// Package after is the operator with finalizer, status, consistency and ssa.
package after

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/examples/memcached"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
	"github.com/controllerkit/controllerkit/status"
)

// Finalizer keeps a Memcached until its address is removed from the Directory.
const Finalizer = "cache.example.com/directory"

// Reconciler runs the servers of each Memcached, and registers their address.
type Reconciler struct {
	client.Client
	Events    recorder.EventRecorder
	Directory memcached.Directory
	Writes    *managerkit.Writes

	memcacheds  *managerkit.Client[*v1.Memcached]
	deployments *managerkit.Client[*appsv1.Deployment]
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) (err error) {
	if r.memcacheds, err = managerkit.NewClient[*v1.Memcached](r.Client, mgr.GetAPIReader()); err != nil {
		return err
	}
	if r.deployments, err = managerkit.NewClient[*appsv1.Deployment](r.Client, mgr.GetAPIReader()); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&v1.Memcached{}).Owns(&appsv1.Deployment{}).Complete(r.Writes.Reconciler(r))
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	m := &v1.Memcached{}
	if err := r.Get(ctx, req.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	held, live, err := finalizer.Ensure(ctx, r.memcacheds.Namespace(m.Namespace), m, Finalizer, r.cleanup)
	if err != nil || !live {
		return ctrl.Result{}, err
	}
	m = held.Object()
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
	_, err = status.Update(ctx, r.memcacheds.Namespace(m.Namespace), m, func(m *v1.Memcached) error {
		m.Status.Ready = deployment.Status.ReadyReplicas
		return status.Set(&m.Status.Conditions, m.Generation, available(m, deployment))
	})
	return ctrl.Result{}, err
}

// cleanup removes what the garbage collector does not.
func (r *Reconciler) cleanup(ctx context.Context, held finalizer.Held[*v1.Memcached]) error {
	m := held.Object()
	if err := r.Directory.Unregister(ctx, string(m.UID)); err != nil && !errors.Is(err, memcached.ErrNotRegistered) {
		return err
	}
	r.Events.Eventf(m, nil, corev1.EventTypeNormal, "Unregistered", "Unregister", "The address is removed")
	return nil
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
