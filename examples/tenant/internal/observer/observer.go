// Package observer observes the cluster of the tenant example's demo and integration
// tests.
package observer

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned"
	tenantinformers "github.com/controllerkit/controllerkit/examples/tenant/client/informers/externalversions"
	tenantlisters "github.com/controllerkit/controllerkit/examples/tenant/client/listers/api/v1alpha1"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// Names of the objects in config/rbac.yaml.
const (
	SystemNamespace = "tenant-system"
	ServiceAccount  = "tenant-controller"
	LeaseName       = "tenant-controller"
)

// Event is a change of an object.
type Event struct {
	Type     string // Added, Modified or Deleted
	Kind     string
	Object   metav1.Object
	Previous metav1.Object // the old object, for Modified only
	Initial  bool          // whether the object existed before the observer
}

// Observer observes a cluster with its own informers.
type Observer struct {
	Kube    kubernetes.Interface
	Tenants versioned.Interface

	TenantLister    tenantlisters.TenantLister
	Namespaces      corelisters.NamespaceLister
	Quotas          corelisters.ResourceQuotaLister
	RoleBindings    rbaclisters.RoleBindingLister
	NetworkPolicies networkinglisters.NetworkPolicyLister
	Leases          coordinationlisters.LeaseNamespaceLister

	lab.Signal
	stop context.CancelFunc
	wait func()
}

// Start starts an observer and returns once its caches have synced. If onEvent is
// not nil, the observer calls it for every event, one call at a time for each kind.
func Start(ctx context.Context, cfg *rest.Config, onEvent func(Event)) (*Observer, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	tenants, err := versioned.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	all := informers.NewSharedInformerFactory(kube, 0)
	leases := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(SystemNamespace))
	own := tenantinformers.NewSharedInformerFactory(tenants, 0)
	o := &Observer{
		Kube:            kube,
		Tenants:         tenants,
		TenantLister:    own.Tenancy().V1alpha1().Tenants().Lister(),
		Namespaces:      all.Core().V1().Namespaces().Lister(),
		Quotas:          all.Core().V1().ResourceQuotas().Lister(),
		RoleBindings:    all.Rbac().V1().RoleBindings().Lister(),
		NetworkPolicies: all.Networking().V1().NetworkPolicies().Lister(),
		Leases:          leases.Coordination().V1().Leases().Lister().Leases(SystemNamespace),
		stop:            stop,
		wait:            func() { all.Shutdown(); leases.Shutdown(); own.Shutdown() },
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"Tenant":        own.Tenancy().V1alpha1().Tenants().Informer(),
		"Namespace":     all.Core().V1().Namespaces().Informer(),
		"ResourceQuota": all.Core().V1().ResourceQuotas().Informer(),
		"RoleBinding":   all.Rbac().V1().RoleBindings().Informer(),
		"NetworkPolicy": all.Networking().V1().NetworkPolicies().Informer(),
		"Lease":         leases.Coordination().V1().Leases().Informer(),
	} {
		if _, err := informer.AddEventHandler(o.handler(kind, onEvent)); err != nil {
			stop()
			return nil, err
		}
	}
	all.StartWithContext(ctx)
	leases.StartWithContext(ctx)
	own.StartWithContext(ctx)
	sync, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, result := range []cache.SyncResult{
		all.WaitForCacheSyncWithContext(sync), leases.WaitForCacheSyncWithContext(sync), own.WaitForCacheSyncWithContext(sync),
	} {
		if err := result.AsError(); err != nil {
			o.Stop()
			return nil, err
		}
	}
	return o, nil
}

// Stop stops the observer and waits until its informers have ended.
func (o *Observer) Stop() {
	o.stop()
	o.wait()
}

func (o *Observer) handler(kind string, onEvent func(Event)) cache.ResourceEventHandler {
	see := func(e Event) {
		if onEvent != nil {
			onEvent(e)
		}
		o.Notify()
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			see(Event{Type: "Added", Kind: kind, Object: obj.(metav1.Object), Initial: initial})
		},
		UpdateFunc: func(old, obj any) {
			see(Event{Type: "Modified", Kind: kind, Object: obj.(metav1.Object), Previous: old.(metav1.Object)})
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if obj, ok := obj.(metav1.Object); ok {
				see(Event{Type: "Deleted", Kind: kind, Object: obj})
			}
		},
	}
}

// Ready returns nil if all conditions of the tenant are True for its current
// generation.
func (o *Observer) Ready(name string) error {
	t, err := o.TenantLister.Get(name)
	if err != nil {
		return err
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAccountOpen, v1alpha1.ConditionNamespaceReady} {
		c := meta.FindStatusCondition(t.Status.Conditions, kind)
		switch {
		case c == nil:
			return fmt.Errorf("tenant %s has no condition %s", name, kind)
		case c.Status != metav1.ConditionTrue:
			return fmt.Errorf("tenant %s: %s is %s: %s: %s", name, kind, c.Status, c.Reason, c.Message)
		case c.ObservedGeneration != t.Generation:
			return fmt.Errorf("tenant %s: %s is of generation %d, the tenant of %d", name, kind, c.ObservedGeneration, t.Generation)
		}
	}
	if t.Status.ObservedGeneration != t.Generation {
		return fmt.Errorf("tenant %s: the status is of generation %d, the tenant of %d", name, t.Status.ObservedGeneration, t.Generation)
	}
	return nil
}

// Leader returns the holder of the controller's Lease, "" if it has no holder.
func (o *Observer) Leader() string {
	lease, err := o.Leases.Get(LeaseName)
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// NamespaceGone returns nil if the namespace does not exist.
func (o *Observer) NamespaceGone(name string) error {
	ns, err := o.Namespaces.Get(name)
	if err != nil {
		return nil //nolint:nilerr // not found is the success
	}
	return fmt.Errorf("namespace %s still exists (%s)", name, ns.Status.Phase)
}

// HasPods returns nil if the quota of a tenant allows exactly this number of Pods.
func HasPods(q *corev1.ResourceQuota, pods int64) error {
	if got := q.Spec.Hard.Pods().Value(); got != pods {
		return fmt.Errorf("quota %s/%s allows %d Pods, want %d", q.Namespace, q.Name, got, pods)
	}
	return nil
}
