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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned"
	tenancyclient "github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned/typed/api/v1alpha1"
	tenantinformers "github.com/controllerkit/controllerkit/examples/tenant/client/informers/externalversions"
	tenantlisters "github.com/controllerkit/controllerkit/examples/tenant/client/listers/api/v1alpha1"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/ssa"
)

const (
	// Finalizer keeps a Tenant until its namespace is gone and its account is closed.
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

	// Group divides the tenants among its replicas, whose Selector is nil. The group runs
	// with the operator, and the operator has no election. Nil reconciles all tenants.
	Group *shard.Group

	// Metrics receives the metrics of the queue. nil disables them.
	Metrics *metrics.Metrics
}

// Controller reconciles Tenants. [Register] makes one.
type Controller struct {
	kube    kubernetes.Interface
	tenancy tenancyclient.TenantInterface
	billing *billing.Client
	shards  *shards // nil without a Group

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
}

// Register adds a Controller to an operator. It sends no request. ctx is that of [operator.Operator.Run].
func Register(ctx context.Context, op *operator.Operator, cfg Config) error {
	if cfg.Billing == nil {
		return errors.New("controller: Config.Billing is required")
	}
	if cfg.Group != nil {
		op.Config.Wrap(shard.Guard) // sends the writes of the owner alone
	}
	op.Events = nil // the controller reports in conditions, and needs no right to write Events
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	tenancy, err := versioned.NewForConfig(op.Config)
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	c := &Controller{kube: kube, tenancy: tenancy.TenancyV1alpha1().Tenants(), billing: cfg.Billing}
	tenants := op.Controller(name, c.reconcile)
	tenants.Loop.Workers = cmp.Or(cfg.Workers, 4)
	tenants.Loop.Queue = queue.New(queue.Config[types.NamespacedName]{Name: name, RateLimiter: retries(), MetricsProvider: cfg.Metrics})

	if cfg.Group != nil {
		c.shards = &shards{group: cfg.Group, loop: &tenants.Loop, owned: map[int]*owned{}}
		// The part stops last, but the replica leaves the group when the process begins to stop: a shard without
		// a reconcile moves then, and the others when theirs have ended.
		process := ctx
		op.Group.Add("shards", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(process, cancel)()
			select {
			case <-op.Informers.HasSyncedChecker().Done(): // a replica that cannot work takes no shard
			case <-ctx.Done():
				return nil
			}
			op.Metrics.ReconcileObjects(name, c.objects) // without those of the other replicas
			return cfg.Group.Run(ctx, c.work(tenants.Loop.Queue))
		})
	}

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
	if c.shards != nil {
		informer := crs.Tenancy().V1alpha1().Tenants().Informer()
		if err := informer.AddIndexers(cache.Indexers{byShard: c.shards.index}); err != nil {
			return fmt.Errorf("controller: %w", err)
		}
		c.shards.tenants = informer.GetIndexer()
	}
	c.tenants = operator.For(tenants, v1alpha1.Resource("tenants"), crs.Tenancy().V1alpha1().Tenants())
	c.namespaces = operator.Watches(tenants, corev1.Resource("namespaces"), cluster.Core().V1().Namespaces(), tenantOf[*corev1.Namespace](c))
	c.quotas = operator.Watches(tenants, corev1.Resource("resourcequotas"), inside.Core().V1().ResourceQuotas(), tenantOf[*corev1.ResourceQuota](c))
	c.bindings = operator.Watches(tenants, rbacv1.Resource("rolebindings"), inside.Rbac().V1().RoleBindings(), tenantOf[*rbacv1.RoleBinding](c))
	c.policies = operator.Watches(tenants, networkingv1.Resource("networkpolicies"), inside.Networking().V1().NetworkPolicies(), tenantOf[*networkingv1.NetworkPolicy](c))
	op.Writes(v1alpha1.Resource("tenants"), "patch")
	op.Writes(v1alpha1.Resource("tenants/status"), "update")
	op.Writes(corev1.Resource("namespaces"), "get", "create", "patch", "delete")
	for _, child := range []schema.GroupResource{corev1.Resource("resourcequotas"), rbacv1.Resource("rolebindings"), networkingv1.Resource("networkpolicies")} {
		op.Writes(child, "get", "create", "patch", "delete")
	}
	return c.cleanup().Validate()
}

// retries returns the limiter of failed reconciles. While the billing service opens no account,
// each tenant retries at least every 30s; a cleanup has the delays of its Plan. The first retries of a tenant come fast. The bucket limits
// the retries of all tenants together to 50 a second, because thousands of requests at once can
// keep a service down that recovers. With more than 1,500 tenants, the 30s have precedence.
func retries() workqueue.TypedRateLimiter[types.NamespacedName] {
	return queue.MaxOf(
		queue.Exponential[types.NamespacedName](100*time.Millisecond, 30*time.Second),
		queue.TokenBucket[types.NamespacedName](50, 50, 30*time.Second))
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
