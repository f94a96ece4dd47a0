package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// limit bounds each wait. It is generous, because it only determines how long a
// failing test runs.
const limit = 3 * time.Minute

var program struct {
	dir, bin string
	once     sync.Once
	err      error
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tenant-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program.dir = dir
	program.bin = filepath.Join(dir, "tenant")
	code := func() int {
		defer os.RemoveAll(dir)
		return testserver.Run(m)
	}()
	os.Exit(code)
}

// tenantProgram builds the program.
func tenantProgram(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		program.err = testprocess.Build(context.Background(), program.bin, "..")
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.bin
}

// world is an API server with the example installed, an observer, the billing
// service, and the proxies that record the requests of controllers.
type world struct {
	*observer.Observer
	*lab.Wire
	t          *testing.T
	admin      *rest.Config
	billing    *billing.Server
	billingURL string
	dir        string
}

// newWorld starts a world with its own API server, so that tests can run in parallel
// although tenants are cluster-scoped.
func newWorld(t *testing.T) *world {
	t.Helper()
	server := testserver.Own(t)
	w := &world{Wire: lab.NewWire(t), t: t, admin: server.Config(), billing: new(billing.Server), dir: t.TempDir()}
	if err := lab.Install(t.Context(), w.admin, config.Files, "crd.yaml", "rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	var err error
	// The observer must outlive t.Context, which ends before Cleanup.
	if w.Observer, err = observer.Start(context.WithoutCancel(t.Context()), w.admin, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	web, err := lab.Serve(lab.Intercept(w.billing, w.Before, w.After))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.billing.SetMode(billing.OK, 0) // a hanging request would block Close
		web.Close()
	})
	w.billingURL = web.URL
	return w
}

// replica is a controller process that uses its own proxy.
type replica struct {
	*lab.Process
	kubeconfig string
	args       []string
}

// replica prepares a replica; start starts it.
func (w *world) replica(args ...string) *replica {
	w.t.Helper()
	return w.observed(w.After, args...)
}

// observed is replica with another function after of its proxy.
func (w *world) observed(after func(lab.Op) bool, args ...string) *replica {
	w.t.Helper()
	proxy, err := lab.Proxy(w.admin, w.Before, after)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(proxy.Close)
	kubeconfig, err := lab.LimitedKubeconfig(w.t.Context(), w.admin, observer.SystemNamespace, observer.ServiceAccount, w.dir, proxy)
	if err != nil {
		w.t.Fatal(err)
	}
	return &replica{
		kubeconfig: kubeconfig,
		args:       append([]string{"-kubeconfig", kubeconfig, "-billing-url", w.billingURL, "-listen", "127.0.0.1:0"}, args...),
	}
}

func (w *world) start(r *replica) {
	w.t.Helper()
	var err error
	if r.Process, err = lab.StartProcess(tenantProgram(w.t), r.args...); err != nil {
		w.t.Fatal(err)
	}
	p := r.Process
	w.t.Cleanup(func() {
		w.AllowRefusals()
		if w.t.Failed() {
			w.t.Logf("the controller's last lines:\n%s", p.Tail(25))
		}
		p.Kill()
		if strings.Contains(p.Output(), "DATA RACE") {
			w.t.Errorf("the race detector found a race:\n%s", p.Output())
		}
	})
}

// run starts a replica without leader election.
func (w *world) run() *replica {
	w.t.Helper()
	r := w.replica()
	w.start(r)
	return r
}

func (w *world) await(cond func() error) {
	w.t.Helper()
	if err := w.Await(w.t.Context(), limit, cond); err != nil {
		w.t.Fatal(err)
	}
}

func tenant(name string) *v1alpha1.Tenant {
	return &v1alpha1.Tenant{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.TenantSpec{
			Members: []string{"alice", "group:devs", "system:serviceaccount:default:robot"},
			Quota: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("4000m"), // stored as 4
				corev1.ResourceMemory: resource.MustParse("8Gi"),
				corev1.ResourcePods:   resource.MustParse("10"),
			},
			NetworkIsolation: true,
			Account:          v1alpha1.AccountSpec{Plan: v1alpha1.PlanStandard},
		},
	}
}

func (w *world) create(t *v1alpha1.Tenant) *v1alpha1.Tenant {
	w.t.Helper()
	t, err := w.Tenants.TenancyV1alpha1().Tenants().Create(w.t.Context(), t, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// stored returns nil if the observer has seen this generation of the tenant and all
// its conditions are True for it.
func (w *world) stored(t *v1alpha1.Tenant) error {
	got, err := w.TenantLister.Get(t.Name)
	if err != nil {
		return err
	}
	if got.UID != t.UID || got.Generation < t.Generation {
		return fmt.Errorf("the observer has generation %d of tenant %s, want %d", got.Generation, t.Name, t.Generation)
	}
	return w.Ready(t.Name)
}

func (w *world) gone(name string) error {
	if _, err := w.TenantLister.Get(name); !apierrors.IsNotFound(err) {
		return errors.Join(err, fmt.Errorf("tenant %s still exists", name))
	}
	return nil
}

// delete deletes a tenant and waits until it no longer exists.
func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.Tenants.TenancyV1alpha1().Tenants().Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.await(func() error { return w.gone(name) })
}

// accounts returns the number of open accounts of a tenant.
func (w *world) accounts(t *v1alpha1.Tenant) int {
	n := 0
	for _, a := range w.billing.Accounts() {
		if a.Key == string(t.UID) {
			n++
		}
	}
	return n
}
