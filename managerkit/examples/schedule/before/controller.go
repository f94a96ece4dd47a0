// Package before is the operator with the usual patterns.
package before

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/controllerkit/controllerkit/managerkit/examples/schedule"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
)

// Reconciler runs the Jobs of each Schedule.
type Reconciler struct {
	client.Client
	Now func() time.Time
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.Schedule{}).
		Owns(&batchv1.Job{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &v1.Schedule{}
	if err := r.Get(ctx, req.NamespacedName, s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	jobs := &batchv1.JobList{}
	if err := r.List(ctx, jobs, client.InNamespace(s.Namespace), client.MatchingLabels{schedule.Label: string(s.UID)}); err != nil {
		return ctrl.Result{}, err
	}
	if !s.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	plan := schedule.PlanFor(s, jobs.Items, r.Now())
	s.Status.Active, s.Status.LastTime = plan.Active, plan.LastTime
	meta.SetStatusCondition(&s.Status.Conditions, plan.Ready)
	if err := r.Status().Update(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	for _, job := range plan.Delete {
		if err := r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
	}
	if plan.Create != nil {
		if err := r.Create(ctx, plan.Create); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: plan.Wait}, nil
}
