package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned"
	tenancyclient "github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned/typed/api/v1alpha1"
	tenantinformers "github.com/controllerkit/controllerkit/examples/tenant/client/informers/externalversions"
	tenantlisters "github.com/controllerkit/controllerkit/examples/tenant/client/listers/api/v1alpha1"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
)

const (
	// Finalizer keeps a Tenant until its account is closed.
	Finalizer = "tenancy.example.com/account"

	// TenantLabel marks every object that the controller creates. Its value is
	// the tenant's name. People select by it; the controller does not.
	TenantLabel = "tenancy.example.com/tenant"

	name                     = "tenant-controller"
	manager ssa.FieldManager = name

	tenantKind = "Tenant"

	// childName is the name of every object in a tenant's namespace. The informers
	// select by this name instead of by label, so they also see an object of
	// another owner and an object that lost its labels.
	childName = "tenant"
)

// Reasons of conditions.
const (
	reasonApplied              = "Applied"
	reasonOpened               = "Opened"
	reasonInvalidMember        = "InvalidMember"
	reasonNamespaceTaken       = "NamespaceTaken"
	reasonObjectTaken          = "ObjectTaken"
	reasonNamespaceTerminating = "NamespaceTerminating"
	reasonRefused              = "Refused"
	reasonBillingUnavailable   = "BillingUnavailable"
	reasonAccountClosed        = "AccountClosed"
)

// Config configures a [Controller].
type Config struct {
	// REST is the configuration of the API server's clients. New copies it.
	// Required.
	REST *rest.Config

	// Billing is the client of the billing service. Required.
	Billing *billing.Client

	// Workers is the maximum number of concurrent reconciles. 0 means 4.
	Workers int

	// Selector selects the tenants of this instance by their labels, so that
	// several instances can share a cluster. Exactly one instance must select each
	// tenant: a tenant that no instance selects is neither reconciled nor, once
	// deleted, cleaned up. A change of a tenant's labels moves it to another
	// instance. Nil selects all tenants.
	Selector labels.Selector

	// Metrics receives the controller's metrics. Nil disables metrics.
	Metrics *metrics.Metrics
}

// Controller reconciles Tenants. Make one with [New].
type Controller struct {
	kube    kubernetes.Interface
	tenancy tenancyclient.TenantInterface
	billing *billing.Client

	tenants    tenantlisters.TenantLister
	namespaces corelisters.NamespaceLister
	quotas     corelisters.ResourceQuotaLister
	bindings   rbaclisters.RoleBindingLister
	policies   networkinglisters.NetworkPolicyLister

	// The last applied configurations. They make it cheap to decide that an
	// unchanged child needs no request.
	appliedQuotas   ssa.Memory[*corev1.ResourceQuota, *applycorev1.ResourceQuotaApplyConfiguration]
	appliedBindings ssa.Memory[*rbacv1.RoleBinding, *applyrbacv1.RoleBindingApplyConfiguration]
	appliedPolicies ssa.Memory[*networkingv1.NetworkPolicy, *applynetworkingv1.NetworkPolicyApplyConfiguration]

	informers informer.Set
	loop      reconcile.Controller[types.NamespacedName]
}

// New connects the informers, the queue and the loop. It starts no goroutine:
// call [Controller.RunInformers] and [Controller.Run].
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Billing == nil {
		return nil, errors.New("controller: Config.REST and Config.Billing are required")
	}
	// Each reconcile of a key waits until the caches show the writes of the
	// previous one.
	writes := consistency.New(consistency.Config{})
	config := rest.AddUserAgent(rest.CopyConfig(cfg.REST), name)
	config.Wrap(writes.Wrap)
	config.Wrap(cfg.Metrics.Transport)
	// A list from an old cache could be older than what the previous process saw, and
	// the controller would create children for a deleted tenant.
	config.Wrap(informer.ConsistentLists)
	c := &Controller{billing: cfg.Billing}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	tenancy, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	c.kube, c.tenancy = kube, tenancy.TenancyV1alpha1().Tenants()

	// informer.Trim drops managedFields, which are often the larger half of an
	// object. The informers of the children must keep them, because
	// ssa.ApplyChanged reads the fields that this controller owns from them.
	//
	// The selector applies to Tenants only. Each instance sees all namespaces and
	// children, because an object that blocks a tenant does not carry the tenant's
	// labels. tenantOf ignores objects that concern no tenant of this instance.
	crs := tenantinformers.NewSharedInformerFactoryWithOptions(tenancy, 0, tenantinformers.WithTransform(informer.Trim),
		tenantinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if cfg.Selector != nil {
				o.LabelSelector = cfg.Selector.String()
			}
		}))
	cluster := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(informer.Trim))
	inside := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, childName).String()
	}))
	tenants := crs.Tenancy().V1alpha1().Tenants()
	namespaces := cluster.Core().V1().Namespaces()
	quotas := inside.Core().V1().ResourceQuotas()
	bindings := inside.Rbac().V1().RoleBindings()
	policies := inside.Networking().V1().NetworkPolicies()
	c.tenants, c.namespaces = tenants.Lister(), namespaces.Lister()
	c.quotas, c.bindings, c.policies = quotas.Lister(), bindings.Lister(), policies.Lister()

	c.loop.Name = name
	c.loop.Metrics = cfg.Metrics
	c.loop.Queue = queue.New(queue.Config[types.NamespacedName]{
		Name: name,
		// While the billing service fails, each tenant retries at least every 30s.
		RateLimiter:     queue.Exponential[types.NamespacedName](100*time.Millisecond, 30*time.Second),
		MetricsProvider: cfg.Metrics,
	})
	for _, watched := range []struct {
		resource schema.GroupResource
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{v1alpha1.Resource("tenants"), tenants.Informer(), enqueue.Handler(c.loop.Source("tenants"), enqueue.KeyOf[*v1alpha1.Tenant])},
		{corev1.Resource("namespaces"), namespaces.Informer(), enqueue.Handler(c.loop.Source("namespaces"), tenantOf[*corev1.Namespace](c))},
		{corev1.Resource("resourcequotas"), quotas.Informer(), enqueue.Handler(c.loop.Source("resourcequotas"), tenantOf[*corev1.ResourceQuota](c))},
		{rbacv1.Resource("rolebindings"), bindings.Informer(), enqueue.Handler(c.loop.Source("rolebindings"), tenantOf[*rbacv1.RoleBinding](c))},
		{networkingv1.Resource("networkpolicies"), policies.Informer(), enqueue.Handler(c.loop.Source("networkpolicies"), tenantOf[*networkingv1.NetworkPolicy](c))},
	} {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return nil, fmt.Errorf("controller: %s: %w", watched.resource, err)
		}
		if err := writes.AddInformer(watched.resource, watched.informer); err != nil {
			return nil, fmt.Errorf("controller: %w", err)
		}
		c.informers.Add(watched.resource.String(), watched.informer, registration)
	}

	c.loop.Reconcile = c.reconcile
	c.loop.Workers = cmp.Or(cfg.Workers, 4)
	c.loop.Timeout = 15 * time.Second // less than the loop gives running calls at a stop
	c.loop.HasSynced = []cache.DoneChecker{c.informers.HasSyncedChecker()}
	c.loop.Gate = writes
	return c, nil
}

// tenantOf maps an object to the key of the tenant that it concerns. It uses the
// object's namespace, which has the tenant's name, instead of the object's owner:
// an object of another owner can block a tenant, and its deletion must enqueue
// that tenant. Other namespaces map to no key.
func tenantOf[T metav1.Object](c *Controller) func(T) []types.NamespacedName {
	return func(obj T) []types.NamespacedName {
		name := cmp.Or(obj.GetNamespace(), obj.GetName())
		if _, err := c.tenants.Get(name); err != nil {
			// The event of a tenant that is not in the cache yet enqueues it.
			return nil
		}
		return []types.NamespacedName{{Name: name}}
	}
}

// RunInformers runs the informers until ctx is done. If an informer does not
// sync, for example because the CRD or a right is missing, RunInformers returns an
// error that names it. A Controller's informers run only once.
func (c *Controller) RunInformers(ctx context.Context) error {
	defer c.loop.Queue.ShutDown() // no more events arrive
	return c.informers.Run(ctx)
}

// Ready returns nil once the informers have synced.
func (c *Controller) Ready() error { return c.informers.Ready() }

// Check reports whether the workers make progress.
func (c *Controller) Check() error { return c.loop.Check(nil) }

// Run waits until the informers have synced and then reconciles tenants until ctx
// is done. A leader calls it once for each of its terms.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }
