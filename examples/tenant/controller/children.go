package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// namespace makes the tenant's namespace and the objects in it match the spec. It
// returns the condition NamespaceReady. If the outcome is unknown, it returns an
// error and a condition without a type, which leaves the status unchanged.
func (c *Controller) namespace(ctx context.Context, t *v1alpha1.Tenant, members []rbacv1.Subject) (metav1.Condition, error) {
	ns, err := c.namespaces.Get(t.Name)
	if apierrors.IsNotFound(err) {
		// Create instead of apply: an apply would take over an existing namespace
		// of this name that is not in the cache yet.
		client := c.kube.CoreV1().Namespaces()
		ns, err = client.Create(ctx, newNamespace(t), metav1.CreateOptions{FieldManager: string(manager)})
		if apierrors.IsAlreadyExists(err) {
			ns, err = client.Get(ctx, t.Name, metav1.GetOptions{})
		}
	}
	switch {
	case err != nil:
		return failed(err, t, "Namespace", t.Name)
	case ns.DeletionTimestamp != nil:
		// The API server rejects new objects in it. The event of its deletion
		// enqueues the tenant.
		return terminating(t.Name), nil
	case !metav1.IsControlledBy(ns, t):
		if owner := metav1.GetControllerOfNoCopy(ns); isTenant(owner) && owner.Name == t.Name {
			// It belongs to a deleted tenant of the same name: the garbage
			// collector removes it.
			return terminating(t.Name), nil
		}
		return taken(reasonNamespaceTaken, "Namespace", t.Name)
	case ns.Labels[TenantLabel] != t.Name:
		config := applycorev1.Namespace(t.Name).
			WithLabels(map[string]string{TenantLabel: t.Name}).
			WithOwnerReferences(ownerReference(t))
		if _, _, err := ssa.ApplyChanged(ctx, manager, c.kube.CoreV1().Namespaces().Apply, config, ns, applycorev1.ExtractNamespace); err != nil {
			return failed(err, t, "Namespace", t.Name)
		}
	}

	// A failure of one child does not block the others.
	quota, quotaErr := c.resourceQuota(ctx, t)
	binding, bindingErr := c.roleBinding(ctx, t, members)
	policy, policyErr := c.networkPolicy(ctx, t)
	err = errors.Join(quotaErr, bindingErr, policyErr)
	for _, trouble := range []metav1.Condition{quota, binding, policy} {
		if trouble.Type != "" {
			return trouble, err
		}
	}
	if err != nil {
		return metav1.Condition{}, err
	}
	return status.True(v1alpha1.ConditionNamespaceReady, reasonApplied, fmt.Sprintf("namespace %q matches the spec", t.Name)), nil
}

func newNamespace(t *v1alpha1.Tenant) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   t.Name,
		Labels: map[string]string{TenantLabel: t.Name},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(),
			Kind:       tenantKind,
			Name:       t.Name,
			UID:        t.UID,
			Controller: ptr.To(true),
		}},
	}}
}

func (c *Controller) resourceQuota(ctx context.Context, t *v1alpha1.Tenant) (metav1.Condition, error) {
	config := applycorev1.ResourceQuota(childName, t.Name).
		WithLabels(map[string]string{TenantLabel: t.Name}).
		WithOwnerReferences(ownerReference(t)).
		WithSpec(applycorev1.ResourceQuotaSpec().WithHard(t.Spec.Quota))
	live, err := c.quotas.ResourceQuotas(t.Name).Get(childName)
	return child[*corev1.ResourceQuota, *applycorev1.ResourceQuotaApplyConfiguration]{
		kind: "ResourceQuota", memory: &c.appliedQuotas, client: c.kube.CoreV1().ResourceQuotas(t.Name), extract: applycorev1.ExtractResourceQuota,
		live: live, liveErr: err, config: config, wanted: len(t.Spec.Quota) > 0,
	}.ensure(ctx, t)
}

func (c *Controller) roleBinding(ctx context.Context, t *v1alpha1.Tenant, members []rbacv1.Subject) (metav1.Condition, error) {
	config := applyrbacv1.RoleBinding(childName, t.Name).
		WithLabels(map[string]string{TenantLabel: t.Name}).
		WithOwnerReferences(ownerReference(t)).
		WithRoleRef(applyrbacv1.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName("edit"))
	for _, m := range members {
		subject := applyrbacv1.Subject().WithKind(m.Kind).WithName(m.Name)
		// An empty string would be applied as a value. The server stores another
		// value, so every reconcile would find a difference.
		if m.APIGroup != "" {
			subject.WithAPIGroup(m.APIGroup)
		}
		if m.Namespace != "" {
			subject.WithNamespace(m.Namespace)
		}
		config.WithSubjects(subject)
	}
	live, err := c.bindings.RoleBindings(t.Name).Get(childName)
	return child[*rbacv1.RoleBinding, *applyrbacv1.RoleBindingApplyConfiguration]{
		kind: "RoleBinding", memory: &c.appliedBindings, client: c.kube.RbacV1().RoleBindings(t.Name), extract: applyrbacv1.ExtractRoleBinding,
		live: live, liveErr: err, config: config, wanted: len(members) > 0,
	}.ensure(ctx, t)
}

func (c *Controller) networkPolicy(ctx context.Context, t *v1alpha1.Tenant) (metav1.Condition, error) {
	// The policy selects all pods, so it denies all traffic that no rule allows.
	// Its only rule allows traffic from pods of the same namespace.
	fromWithin := applynetworkingv1.NetworkPolicyPeer().WithPodSelector(applymetav1.LabelSelector())
	config := applynetworkingv1.NetworkPolicy(childName, t.Name).
		WithLabels(map[string]string{TenantLabel: t.Name}).
		WithOwnerReferences(ownerReference(t)).
		WithSpec(applynetworkingv1.NetworkPolicySpec().
			WithPodSelector(applymetav1.LabelSelector()).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(applynetworkingv1.NetworkPolicyIngressRule().WithFrom(fromWithin)))
	live, err := c.policies.NetworkPolicies(t.Name).Get(childName)
	return child[*networkingv1.NetworkPolicy, *applynetworkingv1.NetworkPolicyApplyConfiguration]{
		kind: "NetworkPolicy", memory: &c.appliedPolicies, client: c.kube.NetworkingV1().NetworkPolicies(t.Name), extract: applynetworkingv1.ExtractNetworkPolicy,
		live: live, liveErr: err, config: config, wanted: t.Spec.NetworkIsolation,
	}.ensure(ctx, t)
}

// child is an object in the tenant's namespace: its cached and its desired state.
type child[T metav1.Object, C any] struct {
	kind   string
	memory *ssa.Memory[T, C]
	client interface {
		Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
		Apply(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
		Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	}
	extract func(live T, fieldManager string) (C, error)
	live    T
	liveErr error // of the lister that returned live
	config  C
	wanted  bool
}

// ensure applies or deletes the child. It returns the zero condition and no error
// if the child matches the spec.
func (ch child[T, C]) ensure(ctx context.Context, t *v1alpha1.Tenant) (metav1.Condition, error) {
	name := t.Name + "/" + childName
	found := ch.liveErr == nil
	if !found && !apierrors.IsNotFound(ch.liveErr) {
		return metav1.Condition{}, fmt.Errorf("%s %s: %w", ch.kind, name, ch.liveErr)
	}
	var err error
	if !found && ch.wanted {
		// An apply would take over an object that is not in the cache yet: also without
		// force, the server returns a conflict only for a field that has another value.
		live, getErr := ch.client.Get(ctx, childName, metav1.GetOptions{})
		switch found = getErr == nil; {
		case found:
			ch.live = live
		case !apierrors.IsNotFound(getErr):
			return failed(getErr, t, ch.kind, name)
		}
	}
	own := found && metav1.IsControlledBy(ch.live, t)
	switch {
	case !ch.wanted && !own:
		// There is none, or it belongs to another owner.
	case !ch.wanted:
		uid := ch.live.GetUID()
		err = ch.client.Delete(ctx, childName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	case found && !own:
		return taken(reasonObjectTaken, ch.kind, name)
	case found:
		// The apply carries the uid of live. If that object has been deleted or
		// replaced, the server rejects the apply instead of creating or changing
		// another object.
		_, _, err = ch.memory.ApplyChanged(ctx, manager, ch.client.Apply, ch.config, ch.live, ch.extract)
	default:
		_, err = ssa.TryApply(ctx, manager, ch.client.Apply, ch.config, ch.live)
	}
	if err != nil {
		return failed(err, t, ch.kind, name)
	}
	return metav1.Condition{}, nil
}

func ownerReference(t *v1alpha1.Tenant) *applymetav1.OwnerReferenceApplyConfiguration {
	// blockOwnerDeletion is not set, because some clusters require the right to
	// update tenants/finalizers for it.
	return applymetav1.OwnerReference().
		WithAPIVersion(v1alpha1.SchemeGroupVersion.String()).
		WithKind(tenantKind).
		WithName(t.Name).
		WithUID(t.UID).
		WithController(true)
}

func isTenant(ref *metav1.OwnerReference) bool {
	if ref == nil || ref.Kind != tenantKind {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == v1alpha1.GroupName
}

// taken reports an object of another owner that blocks the tenant. The error is
// terminal, because a retry does not help: the event of the object's deletion
// enqueues the tenant.
func taken(reason, kind, name string) (metav1.Condition, error) {
	message := fmt.Sprintf("%s %q exists and does not belong to this tenant: delete it if it is not needed", kind, name)
	if reason == reasonNamespaceTaken {
		message += ", or create the tenant under another name"
	}
	return status.False(v1alpha1.ConditionNamespaceReady, reason, message),
		fmt.Errorf("%s: %w", message, reconcile.ErrTerminal)
}

// terminating reports a namespace that is being deleted. No retry is needed: the
// event of its deletion enqueues the tenant.
func terminating(name string) metav1.Condition {
	return status.False(v1alpha1.ConditionNamespaceReady, reasonNamespaceTerminating,
		fmt.Sprintf("namespace %q is being deleted; the controller creates it again afterwards", name))
}

// failed handles an error of the API server. The condition reports only errors
// that a person must fix. Other errors are transient and their text differs from
// attempt to attempt: in a condition, each attempt would cause a write.
func failed(err error, t *v1alpha1.Tenant, kind, name string) (metav1.Condition, error) {
	wrapped := fmt.Errorf("%s %s: %w", kind, name, err)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return terminating(t.Name), nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if errors.Is(err, ssa.ErrUIDMismatch) {
			break // the object was replaced, and an event will update the cache
		}
		return status.False(v1alpha1.ConditionNamespaceReady, reasonRefused, wrapped.Error()), wrapped
	}
	return metav1.Condition{}, wrapped
}
