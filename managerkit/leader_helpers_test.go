package managerkit_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
)

const (
	electionName = "election"
	// electionPatience bounds waits for what takes milliseconds on an idle machine.
	electionPatience = time.Minute
)

// quiet are options without servers and logs.
func quiet() manager.Options {
	return manager.Options{
		Logger:     logr.Discard(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
}

func leasesOf(t *testing.T, cfg *rest.Config, ns string) coordinationv1client.LeaseInterface {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return clients.CoordinationV1().Leases(ns)
}

// byWatch is an Elector whose next poll is minutes away: it owes to the watch what it does
// before.
func byWatch(t *testing.T, ns string) *leader.Elector {
	return &leader.Elector{
		Leases: leasesOf(t, testserver.Config(t), ns), Namespace: ns, Name: electionName,
		LeaseDuration: 10 * time.Minute, RenewDeadline: 8 * time.Minute, RetryPeriod: 4 * time.Minute,
	}
}

// A started is a running function.
type started struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func begin(t *testing.T, run func(context.Context) error) *started {
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-s.done })
	return s
}

func (s *started) wait(t *testing.T) error {
	t.Helper()
	await(t, s.done, "the end of Start")
	return s.err
}

func (s *started) stop(t *testing.T) error {
	t.Helper()
	s.cancel()
	return s.wait(t)
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(electionPatience):
		t.Fatalf("no %s within %v", what, electionPatience)
		panic("unreachable")
	}
}

// startReplica starts a manager with the options and one Runnable that needs election.
func startReplica(t *testing.T, cfg *rest.Config, options manager.Options, work func(context.Context) error) *started {
	t.Helper()
	mgr, err := manager.New(cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.Add(manager.RunnableFunc(work)); err != nil {
		t.Fatal(err)
	}
	return begin(t, mgr.Start)
}

func elected(t *testing.T, e *leader.Elector) manager.Options {
	t.Helper()
	options := quiet()
	if err := managerkit.Elect(&options, e); err != nil {
		t.Fatal(err)
	}
	return options
}

// plain are the options of a manager with its own election.
func plain(ns string) manager.Options {
	options := quiet()
	options.LeaderElection = true
	options.LeaderElectionReleaseOnCancel = true
	options.LeaderElectionID = electionName
	options.LeaderElectionNamespace = ns
	return options
}

func holderOf(t *testing.T, leases coordinationv1client.LeaseInterface) string {
	t.Helper()
	lease, err := leases.Get(t.Context(), electionName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

// take writes another holder into the Lease, as an edit does. An empty one makes it free.
func take(t *testing.T, leases coordinationv1client.LeaseInterface, holder string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"holderIdentity":%q,"leaseDurationSeconds":1}}`, holder)
	if _, err := leases.Patch(t.Context(), electionName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// followLease returns the events of the Lease.
func followLease(t *testing.T, ns string) <-chan *coordinationv1.Lease {
	t.Helper()
	w, err := leasesOf(t, testserver.Config(t), ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	events := make(chan *coordinationv1.Lease, 1000)
	go func() {
		for event := range w.ResultChan() {
			if lease, ok := event.Object.(*coordinationv1.Lease); ok {
				events <- lease
			}
		}
	}()
	return events
}

// always is a Runnable that runs on standbys too.
type always func(context.Context) error

func (f always) Start(ctx context.Context) error { return f(ctx) }

func (always) NeedLeaderElection() bool { return false }

// blocked is a Reconciler that reports its contexts and blocks until they end.
type blocked chan context.Context

func (b blocked) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	b <- ctx
	<-ctx.Done()
	return reconcile.Result{}, nil
}

// settingsController adds a controller of the namespace's ConfigMaps to the manager.
func settingsController(mgr manager.Manager, r reconcile.Reconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("settings").For(&corev1.ConfigMap{}).Complete(r)
}

// settings creates a ConfigMap and returns the options of a cache of its namespace.
func settings(t *testing.T, ns string) cache.Options {
	t.Helper()
	clients, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	byObject := cache.ByObject{Namespaces: map[string]cache.Config{ns: {FieldSelector: fields.OneTermEqualSelector("metadata.name", "settings")}}}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: byObject}}
}

type leaseTransport func(*http.Request) (*http.Response, error)

func (f leaseTransport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
