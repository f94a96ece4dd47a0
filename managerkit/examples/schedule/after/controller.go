// Package after is the operator with status, consistency, the loop and the queue.
package after

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/examples/schedule"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

// Reconciler runs the Jobs of each Schedule.
type Reconciler struct {
	client.Client
	Now func() time.Time

	schedules *managerkit.Client[*v1.Schedule]

	Writes *managerkit.Writes
	live   client.Reader // of the API server
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) (err error) {
	if r.schedules, err = managerkit.NewClient[*v1.Schedule](mgr.GetClient(), mgr.GetAPIReader()); err != nil {
		return err
	}
	r.live = mgr.GetAPIReader()
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1.Schedule{}).
		Owns(&batchv1.Job{})
	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Timeout: 15 * time.Second, Gate: r.Writes.Gate()}
	return managerkit.Complete(b, r, loop, controller.Options{})
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var reader client.Reader = r.Client
	if consistency.LiveRead(ctx) {
		reader = r.live
	}
	s := &v1.Schedule{}
	if err := reader.Get(ctx, req.NamespacedName, s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	jobs := &batchv1.JobList{}
	if err := reader.List(ctx, jobs, client.InNamespace(s.Namespace), client.MatchingLabels{schedule.Label: string(s.UID)}); err != nil {
		return ctrl.Result{}, err
	}
	if !s.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	plan := schedule.PlanFor(s, jobs.Items, r.Now())
	if _, err := status.Update(ctx, r.schedules.Namespace(s.Namespace), s, func(s *v1.Schedule) error {
		s.Status.Active, s.Status.LastTime = plan.Active, plan.LastTime
		return status.Set(&s.Status.Conditions, s.Generation, plan.Ready)
	}); err != nil {
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
