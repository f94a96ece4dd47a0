package controller

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

// The steps of the cleanup.
const (
	stepNamespace = "namespace"
	stepAccount   = "account"
)

// cleanup returns the cleanup of a deleted tenant. The account pays for everything that runs
// in the namespace, so it is closed after the namespace is gone. The timeouts fit into the
// 15s of a reconcile.
func (c *Controller) cleanup() finalizer.Plan[*v1alpha1.Tenant] {
	return finalizer.Plan[*v1alpha1.Tenant]{
		Client: c.tenancy,
		Steps: []finalizer.Step[*v1alpha1.Tenant]{
			// A fault of the cluster, such as an extension API server that does not respond, can
			// keep a namespace for days. The tenant does not pay for that. An account is never
			// given up: it would cost money for good.
			{Name: stepNamespace, Run: c.deleteNamespace, Timeout: 5 * time.Second, GiveUpAfter: time.Hour},
			{Name: stepAccount, Run: c.closeAccount, Timeout: 7 * time.Second},
		},
		GaveUp: func(ctx context.Context, _ finalizer.Held[*v1alpha1.Tenant], step string, cause error) error {
			klog.FromContext(ctx).Info("Gave up a step of the cleanup", "step", step, "err", cause)
			return nil
		},
	}
}

// deleteNamespace deletes the tenant's namespace, and is done once it is gone. The event of
// its deletion enqueues the tenant. A namespace of another owner stays.
func (c *Controller) deleteNamespace(ctx context.Context, held finalizer.Held[*v1alpha1.Tenant]) (finalizer.Progress, error) {
	t := held.Object()
	if finalizer.Has(t, metav1.FinalizerOrphanDependents) {
		// The user deleted the tenant with --cascade=orphan. The garbage collector makes the
		// namespace one without an owner, and then removes this finalizer.
		return finalizer.Progress{Message: "the garbage collector has not released the namespace"}, nil
	}
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, t.Name).String()}
	mine := func(ns metav1.Object) bool { return metav1.IsControlledBy(ns, t) }
	return finalizer.DeleteAll(ctx, c.kube.CoreV1().Namespaces(), opts, mine, metav1.DeletePropagationBackground)
}

// closeAccount closes the tenant's account.
func (c *Controller) closeAccount(ctx context.Context, held finalizer.Held[*v1alpha1.Tenant]) (finalizer.Progress, error) {
	return finalizer.Progress{Done: true}, c.billing.Close(ctx, string(held.Object().UID))
}

// deletion returns the result of a reconcile whose Ensure returned err for a deleted tenant.
// It reports in the conditions why the tenant still exists.
func (c *Controller) deletion(ctx context.Context, t *v1alpha1.Tenant, err error) (reconcile.Result, error) {
	blocked, ok := errors.AsType[*finalizer.BlockedError](err)
	if !ok {
		return reconcile.Result{}, err
	}
	var cause metav1.Condition
	switch step := blocked.Steps[0]; { // a later step waits for it
	case step.Name == stepAccount:
		// The failed request may have closed the account.
		cause = status.Unknown(v1alpha1.ConditionAccountOpen, reasonBillingUnavailable, step.Err.Error())
	case step.Err != nil:
		cause, _ = failed(step.Err, t, "Namespace", t.Name) // blocked.Err has the error
	default:
		cause = status.False(v1alpha1.ConditionNamespaceReady, reasonNamespaceTerminating, "the namespace is deleted with the tenant: "+step.Message)
	}
	err = blocked.Err
	if cause.Type != "" {
		terminating := blocked.Condition(t.Generation)
		ready := status.False(v1alpha1.ConditionReady, cause.Reason, "the tenant is being deleted: "+terminating.Message)
		err = errors.Join(err, c.report(ctx, t, func(t *v1alpha1.Tenant) error { return setConditions(t, cause, terminating, ready) }))
	}
	return reconcile.Result{RequeueAfter: blocked.After}, err
}
