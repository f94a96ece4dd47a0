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

	// TenantLabel is on everything the controller makes; its value is the
	// tenant's name. It is for people who look for these objects.
	TenantLabel = "tenancy.example.com/tenant"

	name                     = "tenant-controller"
	manager ssa.FieldManager = name

	tenantKind = "Tenant"

	// childName is the name of every object in a tenant's namespace. It is one
	// name, so that the informers can select by it: they then see all that there
	// is of that name, also what belongs to somebody else or has lost its
	// labels, and nothing more.
	childName = "tenant"
)

// GracePeriod is how long tenants that are being reconciled may go on after
// Run was asked to stop. Whoever runs it must wait a little longer.
const GracePeriod = 8 * time.Second

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

// Config is what a [Controller] needs.
type Config struct {
	// REST reaches the API server. It is copied. Required.
	REST *rest.Config

	// Billing reaches the billing service. Required.
	Billing *billing.Client

	// Workers is the number of tenants that may be reconciled at once. 0 means 4.
	Workers int

	// Selector chooses the tenants that this instance serves by their labels, so
	// that several instances can share a cluster. Each tenant needs exactly one:
	// what no instance selects waits, also for its deletion. A tenant changes hands
	// when its labels do. nil means all.
	Selector labels.Selector

	// Metrics receives counts. nil means none.
	Metrics *metrics.Metrics

	// Unguarded turns off the loop's guard against hot loops, for tests that look for
	// them.
	Unguarded bool
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

	// What was applied to the children: where nothing changed, the decision is cheap.
	appliedQuotas   ssa.Memory[*corev1.ResourceQuota, *applycorev1.ResourceQuotaApplyConfiguration]
	appliedBindings ssa.Memory[*rbacv1.RoleBinding, *applyrbacv1.RoleBindingApplyConfiguration]
	appliedPolicies ssa.Memory[*networkingv1.NetworkPolicy, *applynetworkingv1.NetworkPolicyApplyConfiguration]

	informers informer.Set
	loop      reconcile.Controller[types.NamespacedName]
}

// New connects the informers, the queue and the loop. It starts nothing:
// [Controller.RunInformers] and [Controller.Run] do.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Billing == nil {
		return nil, errors.New("controller: Config.REST and Config.Billing are required")
	}
	// Each reconcile waits until the caches show what the one before it wrote.
	writes := consistency.New(consistency.Config{})
	config := rest.AddUserAgent(rest.CopyConfig(cfg.REST), name)
	config.Wrap(writes.Wrap)
	queueConfig := queue.Config[types.NamespacedName]{
		Name: name,
		// While the billing service is away, a tenant asks at least every 30s.
		RateLimiter: queue.Exponential[types.NamespacedName](100*time.Millisecond, 30*time.Second),
	}
	c := &Controller{billing: cfg.Billing}
	if cfg.Metrics != nil {
		config.Wrap(cfg.Metrics.Transport)
		queueConfig.MetricsProvider = cfg.Metrics
		c.loop.Metrics = cfg.Metrics
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	tenancy, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	c.kube, c.tenancy = kube, tenancy.TenancyV1alpha1().Tenants()

	// Of Tenants and Namespaces nothing is extracted, so their managedFields,
	// often the larger half of an object, need not be kept. The children's must
	// be: ssa.ApplyChanged reads from them what this controller owns.
	//
	// The selector is for Tenants alone. Of namespaces and children each instance
	// sees all, because what stands in a tenant's way does not carry its labels;
	// tenantOf drops the events of those that others serve.
	crs := tenantinformers.NewSharedInformerFactoryWithOptions(tenancy, 0, tenantinformers.WithTransform(informer.Trim),
		tenantinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
			consistentList(o)
			if cfg.Selector != nil {
				o.LabelSelector = cfg.Selector.String()
			}
		}))
	cluster := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(informer.Trim), informers.WithTweakListOptions(consistentList))
	inside := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		consistentList(o)
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
	c.loop.Queue = queue.New(queueConfig)
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
	c.loop.Timeout = 30 * time.Second
	c.loop.GracePeriod = GracePeriod
	c.loop.HasSynced = []cache.DoneChecker{c.informers.HasSyncedChecker()}
	c.loop.Gate = writes
	c.loop.Unguarded = cfg.Unguarded
	return c, nil
}

// consistentList keeps an informer from beginning in the past. Where the server
// does not stream the initial list, client-go asks for one of any version, which
// after a restart may be older than what this process acted on before it: it
// would make children for a tenant that has long gone. Such a list costs the API
// server more, once at each start.
func consistentList(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}

// tenantOf names the tenant that an object concerns, by the object's namespace,
// which has the tenant's name, and not by its owner: what belongs to somebody
// else can stand in a tenant's way, and its deletion must bring the tenant
// back. Namespaces that are no tenant's are nobody's business.
func tenantOf[T metav1.Object](c *Controller) func(T) []types.NamespacedName {
	return func(obj T) []types.NamespacedName {
		name := cmp.Or(obj.GetNamespace(), obj.GetName())
		if _, err := c.tenants.Get(name); err != nil {
			// A tenant that the cache does not show yet comes with its own event.
			return nil
		}
		return []types.NamespacedName{{Name: name}}
	}
}

// RunInformers runs the informers until ctx is done. One that does not sync, for
// want of the CRD or of a right, is an error that says so. It runs once.
func (c *Controller) RunInformers(ctx context.Context) error {
	defer c.loop.Queue.ShutDown() // nobody fills it any more
	return c.informers.Run(ctx)
}

// Ready returns nil once the informers are in sync.
func (c *Controller) Ready() error { return c.informers.Ready() }

// Run reconciles tenants until ctx is done. It waits for the informers first,
// and can be called again after it returned: it is what a leader runs.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }
