package controller

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

// reconcile makes the cluster and the billing service match one tenant's spec. It
// reads from the informers' caches and never modifies the cached objects.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	t, err := c.tenants.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if c.shards != nil {
		owner, end, ok := c.shards.begin(ctx, key, t)
		if !ok {
			return reconcile.Result{}, nil // it is queued when this replica gains its shard
		}
		defer end()
		ctx = owner
	}

	// If live is true, the API server has stored the finalizer. Otherwise the
	// tenant is being deleted, or Ensure failed.
	held, live, err := finalizer.Ensure(ctx, c.tenancy, t, Finalizer, c.cleanup().Run)
	if !live {
		return c.deletion(ctx, t, err)
	}
	t = held.Object()

	members, err := subjectsOf(t.Spec.Members)
	if err != nil {
		// An invalid spec makes no change. Objects of an earlier valid spec stay.
		invalid := status.False(v1alpha1.ConditionReady, reasonInvalidMember, err.Error())
		return reconcile.Result{}, errors.Join(
			fmt.Errorf("%w: %w", err, reconcile.ErrTerminal),
			c.report(ctx, t, func(t *v1alpha1.Tenant) error { return setConditions(t, invalid) }))
	}

	// A failure of one does not block the other.
	namespaceReady, namespaceErr := c.namespace(ctx, t, members)
	accountID, accountOpen, accountErr := c.openAccount(ctx, held)
	statusErr := c.report(ctx, t, func(t *v1alpha1.Tenant) error {
		switch {
		case namespaceReady.Status == metav1.ConditionTrue:
			t.Status.Namespace = t.Name
		case namespaceReady.Reason == reasonNamespaceTaken:
			t.Status.Namespace = ""
		}
		if accountOpen.Type != "" {
			t.Status.AccountID = accountID
		}
		if err := setConditions(t, namespaceReady, accountOpen); err != nil {
			return err
		}
		return setConditions(t, status.Summary(t.Status.Conditions, t.Generation,
			v1alpha1.ConditionReady, v1alpha1.ConditionNamespaceReady, v1alpha1.ConditionAccountOpen))
	})
	return reconcile.Result{}, errors.Join(namespaceErr, accountErr, statusErr)
}

// openAccount opens the tenant's account unless the status reports it as open: only
// this controller closes accounts. It takes a Held, so it cannot run before the
// finalizer that closes the account is stored. The tenant's UID is the idempotency
// key: retries, also of other replicas, get the same account.
func (c *Controller) openAccount(ctx context.Context, held finalizer.Held[*v1alpha1.Tenant]) (string, metav1.Condition, error) {
	t := held.Object()
	id := t.Status.AccountID
	if id == "" || !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionAccountOpen) {
		if preview.Skip(ctx, "open the account of %s", t.Name) {
			return id, metav1.Condition{}, nil // what the service would answer is not known
		}
		account, err := c.billing.Open(ctx, string(t.UID), t.Name, string(t.Spec.Account.Plan))
		switch {
		case errors.Is(err, billing.ErrClosed):
			return "", status.False(v1alpha1.ConditionAccountOpen, reasonAccountClosed, err.Error()),
				fmt.Errorf("%w: %w", err, reconcile.ErrTerminal)
		case err != nil:
			return "", status.False(v1alpha1.ConditionAccountOpen, reasonBillingUnavailable, err.Error()), err
		}
		id = account.ID
	}
	return id, status.True(v1alpha1.ConditionAccountOpen, reasonOpened, fmt.Sprintf("account %s is open", id)), nil
}

// report writes the status if change modifies it. If ctx is done, report is a
// no-op: the errors of a stop are not about the tenant, and the write would fail.
func (c *Controller) report(ctx context.Context, t *v1alpha1.Tenant, change func(*v1alpha1.Tenant) error) (err error) {
	if ctx.Err() == nil {
		_, err = status.Update(ctx, c.tenancy, t, func(t *v1alpha1.Tenant) error {
			t.Status.ObservedGeneration = t.Generation
			return change(t)
		})
	}
	return err
}

// setConditions sets the given conditions and skips a condition without a type.
func setConditions(t *v1alpha1.Tenant, conditions ...metav1.Condition) error {
	for _, condition := range conditions {
		if condition.Type == "" {
			continue
		}
		if err := status.Set(&t.Status.Conditions, t.Generation, condition); err != nil {
			return err
		}
	}
	return nil
}

func subjectsOf(members []string) ([]rbacv1.Subject, error) {
	subjects := make([]rbacv1.Subject, len(members))
	for i, member := range members {
		var err error
		if subjects[i], err = subjectOf(member); err != nil {
			return nil, err
		}
	}
	return subjects, nil
}
