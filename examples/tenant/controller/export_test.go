package controller

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned"
	tenantlisters "github.com/controllerkit/controllerkit/examples/tenant/client/listers/api/v1alpha1"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
)

var (
	SubjectOf = subjectOf
	Retries   = retries
)

// Fixture is a Controller on fake clients. Only Sync updates its caches, so a test
// decides how stale they are.
type Fixture struct {
	c      *Controller
	kube   kubernetes.Interface
	stores []cache.Indexer

	// Result is the result of the last Reconcile.
	Result reconcile.Result
}

func NewFixture(kube kubernetes.Interface, tenancy versioned.Interface, service *billing.Client) *Fixture {
	f := &Fixture{kube: kube}
	for range 5 {
		f.stores = append(f.stores, cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}))
	}
	f.c = &Controller{
		kube: kube, tenancy: tenancy.TenancyV1alpha1().Tenants(), billing: service,
		tenants:    tenantlisters.NewTenantLister(f.stores[0]),
		namespaces: corelisters.NewNamespaceLister(f.stores[1]),
		quotas:     corelisters.NewResourceQuotaLister(f.stores[2]),
		bindings:   rbaclisters.NewRoleBindingLister(f.stores[3]),
		policies:   networkinglisters.NewNetworkPolicyLister(f.stores[4]),
	}
	return f
}

// Own makes the fixture a replica of a group that owns the first of two shards, with the context of its work. The
// loop has the gate.
func (f *Fixture) Own(t *testing.T, ctx context.Context, gate *consistency.Store) {
	t.Helper()
	f.c.shards = &shards{
		group: &shard.Group{Ranges: shard.Ranges{N: 2}}, loop: &reconcile.Controller[types.NamespacedName]{Gate: gate},
		tenants: f.stores[0], owned: map[int]*owned{0: {ctx: ctx}},
	}
	f.c.tenants = tenantlisters.NewTenantLister(unlisted{f.stores[0], t})
	if err := f.stores[0].AddIndexers(cache.Indexers{byShard: f.c.shards.index}); err != nil {
		t.Fatal(err)
	}
}

// unlisted is a cache that must not be read as a whole: with many shards, each would read the tenants of all.
type unlisted struct {
	cache.Indexer
	t *testing.T
}

func (u unlisted) List() []any {
	u.t.Error("a shard reads the tenants of all shards")
	return u.Indexer.List()
}

// Loop returns the loop of a replica that owns no shard, and the function that does the work of one.
func (f *Fixture) Loop(t *testing.T, m *metrics.Metrics) (*reconcile.Controller[types.NamespacedName], func(context.Context, shard.Shard) error) {
	t.Helper()
	f.Own(t, t.Context(), consistency.New(consistency.Config{}))
	delete(f.c.shards.owned, 0)
	loop := f.c.shards.loop
	loop.Name, loop.Queue, loop.Reconcile, loop.Workers, loop.Metrics = name, queue.New(queue.Config[types.NamespacedName]{Name: name}), f.c.reconcile, 1, m
	return loop, f.c.work(loop.Queue)
}

// Objects returns the number of tenants of the replica.
func (f *Fixture) Objects() int64 { return f.c.objects() }

// Sync copies the objects of the fake servers into the caches.
func (f *Fixture) Sync(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	var lists [5][]any
	tenants, err := f.c.tenancy.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range tenants.Items {
		lists[0] = append(lists[0], &tenants.Items[i])
	}
	namespaces, err := f.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range namespaces.Items {
		lists[1] = append(lists[1], &namespaces.Items[i])
	}
	quotas, err := f.kube.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range quotas.Items {
		lists[2] = append(lists[2], &quotas.Items[i])
	}
	bindings, err := f.kube.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range bindings.Items {
		lists[3] = append(lists[3], &bindings.Items[i])
	}
	policies, err := f.kube.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range policies.Items {
		lists[4] = append(lists[4], &policies.Items[i])
	}
	for i, store := range f.stores {
		if err := store.Replace(lists[i], ""); err != nil {
			t.Fatal(err)
		}
	}
}

// Cached returns everything in the caches.
func (f *Fixture) Cached() []any {
	var all []any
	for _, store := range f.stores {
		all = append(all, store.List()...)
	}
	return all
}

// Reconcile runs the reconcile function for a tenant.
func (f *Fixture) Reconcile(ctx context.Context, name string) (err error) {
	f.Result, err = f.c.reconcile(ctx, types.NamespacedName{Name: name})
	return err
}
