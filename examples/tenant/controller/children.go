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

// namespace brings the tenant's namespace and what is in it to what the spec
// asks for. It returns the condition NamespaceReady, or a condition without a
// type where nothing can be said but that it has to be tried again.
func (c *Controller) namespace(ctx context.Context, t *v1alpha1.Tenant, members []rbacv1.Subject) (metav1.Condition, error) {
	ns, err := c.namespaces.Get(t.Name)
	if apierrors.IsNotFound(err) {
		// Create and not apply: apply would take over a namespace of this name
		// that the cache does not show yet.
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
		// Nothing can be made in it. Its deletion is an event that brings the
		// tenant back.
		return terminating(t.Name), nil
	case !metav1.IsControlledBy(ns, t):
		if owner := metav1.GetControllerOfNoCopy(ns); isTenant(owner) && owner.Name == t.Name {
			// Of an earlier tenant of this name: the garbage collector removes it.
			return terminating(t.Name), nil
		}
		return taken(reasonNamespaceTaken, "Namespace", t.Name)
	case ns.Labels[TenantLabel] != t.Name:
		config := applycorev1.Namespace(t.Name).
			WithLabels(map[string]string{TenantLabel: t.Name}).
			WithOwnerReferences(ownerReference(t))
		if _, _, err := ssa.ApplyChanged(ctx, manager, c.kube.CoreV1().Namespaces(), config, ns, applycorev1.ExtractNamespace); err != nil {
			return failed(err, t, "Namespace", t.Name)
		}
	}

	// One child that is in trouble does not keep the others waiting.
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
	return status.True(v1alpha1.ConditionNamespaceReady, reasonApplied, fmt.Sprintf("namespace %q is as the spec asks", t.Name)), nil
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
		// An empty string would be a field with a value, and not the one that the
		// server stores: every reconcile would find a difference.
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
	// All pods are selected, so what no rule allows is denied; the one rule
	// allows the pods of this namespace.
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

// child is an object in the tenant's namespace: as the cache shows it, and as
// it should be.
type child[T metav1.Object, C any] struct {
	kind   string
	memory *ssa.Memory[T, C]
	client interface {
		ssa.Applier[T, C]
		Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	}
	extract func(live T, fieldManager string) (C, error)
	live    T
	liveErr error // of the lister that returned live
	config  C
	wanted  bool
}

// ensure applies or deletes the child. The zero condition and no error mean
// that it is as it should be.
func (ch child[T, C]) ensure(ctx context.Context, t *v1alpha1.Tenant) (metav1.Condition, error) {
	name := t.Name + "/" + childName
	found := ch.liveErr == nil
	if !found && !apierrors.IsNotFound(ch.liveErr) {
		return metav1.Condition{}, fmt.Errorf("%s %s: %w", ch.kind, name, ch.liveErr)
	}
	own := found && metav1.IsControlledBy(ch.live, t)
	var err error
	switch {
	case !ch.wanted && !own:
		// None, or somebody else's.
	case !ch.wanted:
		uid := ch.live.GetUID()
		err = ch.client.Delete(ctx, childName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	case found && !own:
		return taken(reasonObjectTaken, ch.kind, name)
	case found:
		// With the uid of live, so that the server refuses what would bring back an
		// object that has gone meanwhile, or change another one of its name.
		_, _, err = ch.memory.ApplyChanged(ctx, manager, ch.client, ch.config, ch.live, ch.extract)
	default:
		// Without force: should there be one that the cache does not show yet, it
		// is somebody else's, and stays as it is.
		_, err = ssa.TryApply(ctx, manager, ch.client, ch.config)
	}
	if err != nil {
		return failed(err, t, ch.kind, name)
	}
	return metav1.Condition{}, nil
}

func ownerReference(t *v1alpha1.Tenant) *applymetav1.OwnerReferenceApplyConfiguration {
	// Without blockOwnerDeletion, for which some clusters want the right to
	// update tenants/finalizers.
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

// taken is what stands in the way and is not the tenant's. Retrying does not
// help; the event of its deletion does.
func taken(reason, kind, name string) (metav1.Condition, error) {
	message := fmt.Sprintf("%s %q exists and does not belong to this tenant: delete it if nobody needs it", kind, name)
	if reason == reasonNamespaceTaken {
		message += ", or create the tenant under another name"
	}
	return status.False(v1alpha1.ConditionNamespaceReady, reason, message),
		fmt.Errorf("%s: %w", message, reconcile.ErrTerminal)
}

// terminating is what passes by itself: an event ends it, no retry.
func terminating(name string) metav1.Condition {
	return status.False(v1alpha1.ConditionNamespaceReady, reasonNamespaceTerminating,
		fmt.Sprintf("namespace %q is being deleted; it is made anew when it is gone", name))
}

// failed is for an error of the API server. Only what a human has to cure goes
// into the condition. The rest passes, and its text differs from one attempt
// to the next: in a condition that would be a write for each of them.
func failed(err error, t *v1alpha1.Tenant, kind, name string) (metav1.Condition, error) {
	wrapped := fmt.Errorf("%s %s: %w", kind, name, err)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return terminating(t.Name), nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if errors.Is(err, ssa.ErrUIDMismatch) {
			break // it was replaced; the cache will show it
		}
		return status.False(v1alpha1.ConditionNamespaceReady, reasonRefused, wrapped.Error()), wrapped
	}
	return metav1.Condition{}, wrapped
}
