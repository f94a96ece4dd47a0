package controller_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	tenantinformers "github.com/controllerkit/controllerkit/examples/tenant/client/informers/externalversions"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/leasetest"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/shard"
)

// cluster is an API server with one tenant. If refuses is set, it forbids each list and watch.
type cluster struct {
	refuses bool
	held    chan struct{} // a write waits until it is closed; nil means it does not
}

func (c cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if discovery, ok := discovered()[r.URL.Path]; ok {
		_, _ = io.WriteString(w, discovery)
		return
	}
	if r.Method != http.MethodGet && c.held != nil {
		<-c.held
	}
	if c.refuses || r.URL.Query().Get("watch") == "" {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		return
	}
	kinds := map[string]string{ // by the last part of the path
		"tenants": "tenancy.example.com/v1alpha1 Tenant", "namespaces": "v1 Namespace", "resourcequotas": "v1 ResourceQuota",
		"rolebindings": "rbac.authorization.k8s.io/v1 RoleBinding", "networkpolicies": "networking.k8s.io/v1 NetworkPolicy",
	}
	version, kind, _ := strings.Cut(kinds[path.Base(r.URL.Path)], " ")
	event := func(event, metadata string) {
		_, _ = fmt.Fprintf(w, `{"type":%q,"object":{"apiVersion":%q,"kind":%q,"metadata":{%s,"resourceVersion":"5"}}}`+"\n", event, version, kind, metadata)
	}
	if kind == "Tenant" {
		event("ADDED", `"name":"blue","uid":"uid-blue"`)
	}
	event("BOOKMARK", `"annotations":{"k8s.io/initial-events-end":"true"}`)
}

// newReplica returns a replica with -shards, and the client of its Leases.
func newReplica(ctx context.Context, t *testing.T, c cluster, leases coordinationv1client.LeaseInterface) *operator.Operator {
	t.Helper()
	op, err := operator.New(&rest.Config{Host: "http://cluster", Transport: inProcess{c}}, operator.Options{Name: "tenant-controller"})
	if err != nil {
		t.Fatal(err)
	}
	group := &shard.Group{Leases: leases, Namespace: "system", Name: "tenant-shards", Ranges: shard.Ranges{N: 4}}
	if err := controller.Register(ctx, op, controller.Config{Billing: &billing.Client{URL: "http://billing"}, Group: group}); err != nil {
		t.Fatal(err)
	}
	return op
}

// TestNoShardWithoutCaches: a replica whose informers do not sync, for example because its Role lacks a right, does not join
// the group, and takes no shard from a replica that works.
func TestNoShardWithoutCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := fake.NewClientset()
		op := newReplica(t.Context(), t, cluster{refuses: true}, leases.CoordinationV1().Leases("system"))
		if err := op.Run(klog.NewContext(t.Context(), klog.Logger{})); err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("Run() = %v, want an error with the missing right", err)
		}
		for _, a := range leases.Actions() {
			t.Errorf("the replica sends %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	})
}

// TestObjectsWithoutShards: controller_objects of a replica that caches a tenant and owns no shard is 0, so that the sum over
// the replicas is the number of tenants.
func TestObjectsWithoutShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := fake.NewClientset()
		op := newReplica(t.Context(), t, cluster{}, leases.CoordinationV1().Leases("system"))
		leases.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("a test")
		})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- op.Run(ctx) }()
		time.Sleep(5 * time.Second)
		if len(leases.Actions()) == 0 {
			t.Error("the replica with full caches does not join the group")
		}
		w := httptest.NewRecorder()
		op.Mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
		for _, want := range []string{`controller_objects{controller="tenant-controller"} 0`, `controller_workers{controller="tenant-controller"} 4`} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("the metrics lack %s", want)
			}
		}
		cancel()
		<-ended
	})
}

// TestStopLeavesTheGroup: the shards of a replica that stops move at once while one of its calls lasts, but for that of the call.
func TestStopLeavesTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		held, leases := make(chan struct{}), leasetest.New()
		op := newReplica(ctx, t, cluster{held: held}, leases.Client())
		var running sync.WaitGroup
		running.Go(func() {
			if err := op.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Second) // it has all shards
		other, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var owned atomic.Int32
		group := &shard.Group{Leases: leases.Client(), Namespace: "system", Name: "tenant-shards", Identity: "other", Ranges: shard.Ranges{N: 4}}
		running.Go(func() {
			if err := group.Run(other, func(ctx context.Context, _ shard.Shard) error {
				owned.Add(1)
				<-ctx.Done()
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		cancel()
		time.Sleep(8 * time.Second)
		if got := owned.Load(); got != 3 {
			t.Errorf("the other replica has %d shards during the call, want 3 of 4", got)
		}
		close(held)
		time.Sleep(5 * time.Second)
		if got := owned.Load(); got != 4 {
			t.Errorf("the other replica has %d shards after the call, want 4", got)
		}
		stop()
		running.Wait()
		leases.Wait()
	})
}

// TestNewShardReadsLive: a shard moves to this replica, whose cache shows a tenant that the former owner has cleaned up. Its
// account is not opened again. Without a move, the finalizer in the cache is enough.
func TestNewShardReadsLive(t *testing.T) {
	tenant := newTenant()
	tenant.UID, tenant.Finalizers = uidIn(t, 0), []string{controller.Finalizer}
	for _, moved := range []bool{true, false} {
		f := newFixture(t, tenant)
		if err := f.tenancy.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("tenants"), "", tenant.Name); err != nil {
			t.Fatal(err)
		}
		gate := consistency.New(consistency.Config{})
		informer := tenantinformers.NewSharedInformerFactory(f.tenancy, 0).Tenancy().V1alpha1().Tenants().Informer() // without an event
		if err := gate.AddInformer(v1alpha1.Resource("tenants"), informer); err != nil {
			t.Fatal(err)
		}
		work := t.Context()
		if moved {
			work = calls.WithSince(work, "9")
		}
		f.Own(t, work, gate)
		err := f.Reconcile(gate.Begin(t.Context(), types.NamespacedName{Name: tenant.Name}), tenant.Name)
		opened := f.billing.Counts() != (billing.Counts{})
		if opened == moved || moved && !apierrors.IsNotFound(err) {
			t.Errorf("moved %t: the account is opened: %t, %v", moved, opened, err)
		}
	}
}

// TestObjectsOfShards: a replica counts the tenants of its shards, so that the sum over the replicas is the number of tenants.
func TestObjectsOfShards(t *testing.T) {
	tenant := newTenant()
	for i := range 2 {
		tenant.UID = uidIn(t, i)
		f := newFixture(t, tenant)
		f.Own(t, t.Context(), nil)
		if got := f.Objects(); got != int64(1-i) {
			t.Errorf("the tenant is in shard %d: %d objects, want %d", i, got, 1-i)
		}
	}
}

// TestFailuresMoveWithTheShard: a tenant that fails without a retry counts as failing in the replica that has its shard, and not
// in each that ever had it. A shard that comes back has it again.
func TestFailuresMoveWithTheShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenant := newTenant()
		tenant.UID, tenant.Spec.Members = uidIn(t, 0), []string{"group:"}
		f := newFixture(t, tenant)
		registry := prometheus.NewRegistry()
		m, err := metrics.New(registry)
		if err != nil {
			t.Fatal(err)
		}
		loop, work := f.Loop(t, m)
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var parts sync.WaitGroup
		parts.Go(func() {
			if err := loop.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		failing := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			text := fmt.Sprintf("controller_failing_keys{controller=%q,result=\"terminal\"} %d\n", "tenant-controller", want)
			w := httptest.NewRecorder()
			promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s: the metrics lack %s", when, text)
			}
		}
		for turn := range 2 {
			owned, lose := context.WithCancel(ctx)
			parts.Go(func() {
				if err := work(owned, shard.Shard{Index: 0}); err != nil {
					t.Error(err)
				}
			})
			failing(fmt.Sprint("the shard is here, ", turn), 1)
			f.Sync(t)
			f.writes()
			lose()
			failing(fmt.Sprint("the shard has moved, ", turn), 0)
			if got := f.writes(); len(got) > 0 {
				t.Errorf("the replica without the shard wrote: %q", got)
			}
		}
		stop()
		parts.Wait()
	})
}

// uidIn returns the UID of an object of a shard.
func uidIn(t *testing.T, index int) types.UID {
	t.Helper()
	for i := range 100 {
		uid := types.UID(fmt.Sprint(i, "-0000-0000")) // the first bytes change the hash most
		if of, err := (shard.Ranges{N: 2}).Of(&metav1.ObjectMeta{UID: uid}); err == nil && of == index {
			return uid
		}
	}
	t.Fatal("no UID")
	return ""
}
