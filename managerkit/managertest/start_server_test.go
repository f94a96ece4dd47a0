package managertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
	"github.com/controllerkit/controllerkit/reconcile"
)

// startProcess runs a process in the background. stop ends it and returns its error.
func startProcess(t *testing.T, start func(context.Context, *rest.Config, *controllertest.Env) error, namespace string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	done := make(chan error, 1)
	config := testserver.Config(t)
	go func() { done <- start(ctx, config, &controllertest.Env{Namespace: namespace}) }()
	return sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("Start does not return")
		}
	})
}

// TestServerStart: the options of a program become those of a process of a test: without
// listeners, with the namespace of the run, and with a scheme and names of its own. The
// given options are not changed.
func TestServerStart(t *testing.T) {
	t.Parallel()
	// Each of these addresses would make NewManager fail.
	options := ctrl.Options{
		Metrics:                metricsserver.Options{BindAddress: "not an address"},
		HealthProbeBindAddress: "not an address",
		PprofBindAddress:       "not an address",
		LeaderElection:         true, LeaderElectionID: "mk-start", LeaderElectionNamespace: "absent",
		LeaderElectionConfig: &rest.Config{Host: "http://127.0.0.1:1"},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{"absent": {}},
			ByObject:          map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: map[string]cache.Config{"absent": {}}}},
		},
		BaseContext: func() context.Context { return context.WithValue(context.Background(), baseKey{}, "base") },
	}
	var schemes sync.Map
	seen := make(chan string, 100)
	start := managertest.Start(options, func(mgr manager.Manager, env *controllertest.Env) error {
		if _, again := schemes.LoadOrStore(mgr.GetScheme(), true); again {
			return errors.New("two processes have one scheme")
		}
		// Several processes do this at once.
		builder := runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
			s.AddKnownTypeWithName(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Own"}, &corev1.ConfigMap{})
			return nil
		})
		if err := builder.AddToScheme(mgr.GetScheme()); err != nil {
			return err
		}
		mgr.GetWebhookServer().Register("/hook", nil)
		return ctrl.NewControllerManagedBy(mgr).Named("one-name").For(&corev1.Secret{}).Complete(crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			seen <- fmt.Sprint(env.Namespace, " ", req, " ", ctx.Value(baseKey{}))
			return ctrl.Result{}, nil
		}))
	})
	kube := kubernetes.NewForConfigOrDie(testserver.Config(t))
	const processes = 4
	want := map[string]bool{}
	for range processes {
		namespace := testserver.Namespace(t)
		if _, err := kube.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		stop := startProcess(t, start, namespace)
		t.Cleanup(func() {
			if err := stop(); err != nil {
				t.Errorf("Start() = %v", err)
			}
			leases, err := kube.CoordinationV1().Leases(namespace).List(context.WithoutCancel(t.Context()), metav1.ListOptions{})
			if err != nil || !slices.ContainsFunc(leases.Items, func(l coordinationv1.Lease) bool { return l.Name == "mk-start" }) {
				t.Errorf("the Leases of %s are %v, %v, want mk-start", namespace, leases.Items, err)
			}
		})
		want[fmt.Sprintf("%s %s/a base", namespace, namespace)] = true
	}
	for range processes {
		got := receive(t, seen, "reconcile of each process")
		if !want[got] {
			t.Errorf("reconcile %q, want one of %v", got, slices.Sorted(maps.Keys(want)))
		}
		delete(want, got)
	}
	if by := options.Cache.ByObject; options.Scheme != nil || options.LeaderElectionNamespace != "absent" || len(by) != 1 || options.Cache.DefaultNamespaces["absent"].LabelSelector != nil {
		t.Errorf("Start changed the options to %+v", options)
	}
	for _, by := range options.Cache.ByObject {
		if len(by.Namespaces) != 1 {
			t.Errorf("Start changed ByObject to %+v", by)
		}
	}
}

type baseKey struct{}

// TestServerStartErrors: the errors of setup and of the manager are those of Start.
func TestServerStartErrors(t *testing.T) {
	t.Parallel()
	errSetup := errors.New("no controller")
	namespace := testserver.Namespace(t)
	for _, tt := range []struct {
		name    string
		options ctrl.Options
		setup   func(manager.Manager, *controllertest.Env) error
		want    string
	}{
		{"no setup", ctrl.Options{}, nil, "managertest: Start got a nil setup: pass"},
		{"setup fails", ctrl.Options{}, func(manager.Manager, *controllertest.Env) error { return errSetup }, "no controller"},
		{"no name of the Lease", ctrl.Options{LeaderElection: true}, func(manager.Manager, *controllertest.Env) error { return nil }, "LeaderElectionID must be configured"},
		{"a Runnable fails", ctrl.Options{}, func(mgr manager.Manager, _ *controllertest.Env) error {
			return mgr.Add(manager.RunnableFunc(func(context.Context) error { return errSetup }))
		}, "no controller"},
	} {
		err := managertest.Start(tt.options, tt.setup)(t.Context(), testserver.Config(t), &controllertest.Env{Namespace: namespace})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Start() = %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestServerStartStops: Start returns after the running call, however long that is, and
// leaves no goroutine of the manager. It runs alone, because it looks at all goroutines.
//
// Proves MT1.
func TestServerStartStops(t *testing.T) {
	namespace := testserver.Namespace(t)
	before := goleak.IgnoreCurrent()
	begun, stopping, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{})
	stop := startProcess(t, managertest.Start(ctrl.Options{LeaderElection: true, LeaderElectionID: "mk-stops", GracefulShutdownTimeout: new(time.Duration)}, func(mgr manager.Manager, _ *controllertest.Env) error {
		events := mgr.GetEventRecorder("stops")
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a"))).Complete(crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			var cm corev1.ConfigMap
			if err := mgr.GetClient().Get(ctx, req.NamespacedName, &cm); err != nil {
				return ctrl.Result{}, err
			}
			events.Eventf(&cm, nil, corev1.EventTypeNormal, "Seen", "See", "seen")
			close(begun)
			<-ctx.Done()
			close(stopping)
			<-goOn
			return ctrl.Result{}, nil
		}))
	}), namespace)
	createConfigMap(t, namespace, "a")
	receive(t, begun, "reconcile")
	result := make(chan error, 1)
	go func() { result <- stop() }()
	receive(t, stopping, "stop of the call")
	select {
	case err := <-result:
		t.Errorf("Start returned before the call: %v", err)
		result <- err
	case <-time.After(200 * time.Millisecond): // nothing else shows that it waits
	}
	close(goOn)
	if err := receive(t, result, "end of Start"); err != nil {
		t.Errorf("Start() = %v", err)
	}
	connections := []goleak.Option{before}
	for _, f := range []string{"golang.org/x/net/http2.(*ClientConn).readLoop", "net/http.(*http2ClientConn).readLoop", "net/http.(*persistConn).readLoop", "net/http.(*persistConn).writeLoop"} {
		connections = append(connections, goleak.IgnoreAnyFunction(f))
	}
	if err := testserver.Leak(connections...); err != nil {
		t.Error(err)
	}
}

// account is the life of a ConfigMap with an account in an external service.
func account(start func(context.Context, *rest.Config, *controllertest.Env) error) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "account",
		Cloud: cloud.Options{ChosenIDs: true},
		Start: start,
		Script: []controllertest.Step{{Name: "create", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		}}},
		Converged: func(s *controllertest.State) error {
			a, accounts := s.Get("configmaps", "a"), s.Cloud()
			switch {
			case a == nil && len(accounts) > 0:
				return fmt.Errorf("a is gone, but there are the accounts %v", accounts)
			case a != nil && (len(accounts) != 1 || accounts[0].ID != string(a.GetUID()) || len(a.GetFinalizers()) != 1):
				return fmt.Errorf("the accounts are %v and the finalizers %v, want one each", accounts, a.GetFinalizers())
			}
			return nil
		},
	}
}

const guard = "example.com/account"

// late makes the account first and stores the finalizer second.
type late struct {
	client.Client
	cloud *cloud.Cloud
}

func (r late) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var a corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &a); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case a.DeletionTimestamp != nil && controllerutil.RemoveFinalizer(&a, guard):
		if err := r.cloud.Delete(ctx, string(a.UID)); err != nil && !errors.Is(err, cloud.ErrNotFound) {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, &a))
	case a.DeletionTimestamp == nil && controllerutil.AddFinalizer(&a, guard):
		if _, err := r.cloud.Create(ctx, cloud.Resource{Name: string(a.UID)}); err != nil && !errors.Is(err, cloud.ErrExists) {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, r.Update(ctx, &a)
	}
	return ctrl.Result{}, nil
}

// held is late with finalizer.Ensure.
type held struct {
	late
	configMaps *managerkit.Client[*corev1.ConfigMap]
}

func (r held) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var a corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &a); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	_, live, err := finalizer.Ensure(ctx, r.configMaps.Namespace(a.Namespace), &a, guard, func(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
		if err := r.cloud.Delete(ctx, string(held.Object().UID)); !errors.Is(err, cloud.ErrNotFound) {
			return err
		}
		return nil
	})
	if err != nil || !live {
		return ctrl.Result{}, err
	}
	_, err = r.cloud.Create(ctx, cloud.Resource{Name: string(a.UID)})
	if errors.Is(err, cloud.ErrExists) {
		err = nil
	}
	return ctrl.Result{}, err
}

// TestServerStartExplore: an exploration finds the bug of a controller with the workers of
// controller-runtime, and none in the one with Client, finalizer.Ensure, Writes and Complete.
func TestServerStartExplore(t *testing.T) {
	t.Parallel()
	options := controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second, Parallel: 8,
		Faults: []controllertest.Kind{controllertest.UserDelete, controllertest.CrashAfter, controllertest.LostResponse, controllertest.Conflict},
	}
	run := func(start func(context.Context, *rest.Config, *controllertest.Env) error) *controllertest.Report {
		report, err := controllertest.Run(t.Context(), account(start), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(report)
		return report
	}
	named := builder.WithPredicates(named("a"))
	report := run(managertest.Start(ctrl.Options{}, func(mgr manager.Manager, env *controllertest.Env) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, named).Complete(late{mgr.GetClient(), env.Cloud})
	}))
	if len(report.Failures) == 0 {
		t.Error("the controller without a finalizer before the account has no finding")
	}
	for _, f := range report.Failures {
		if !strings.HasPrefix(f.Plan, "user-delete(configmaps/a)@") {
			t.Errorf("a finding of another kind: %s", f)
		}
	}
	report = run(func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		writes, options := managerkit.NewWrites(consistency.Config{}), ctrl.Options{}
		if err := writes.Install(cfg, &options); err != nil {
			return err
		}
		return managertest.Start(options, func(mgr manager.Manager, env *controllertest.Env) error {
			configMaps, err := managerkit.NewClient[*corev1.ConfigMap](mgr.GetClient(), mgr.GetAPIReader())
			if err != nil {
				return err
			}
			b := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, named)
			loop := &reconcile.Controller[ctrl.Request]{Workers: 2, Gate: writes.Gate()}
			return managerkit.Complete(b, held{late{mgr.GetClient(), env.Cloud}, configMaps}, loop, controller.Options{})
		})(ctx, cfg, env)
	})
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid == 0 {
		t.Errorf("no plan was valid: %v", report.Invalid)
	}
}

// TestServerStartQueue: the explorer knows the queue of a loop that Complete made: a key that
// waits at rest is a finding.
//
// Proves MT2.
func TestServerStartQueue(t *testing.T) {
	t.Parallel()
	var begun atomic.Bool
	s := account(managertest.Start(ctrl.Options{}, func(mgr manager.Manager, env *controllertest.Env) error {
		block := crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			begun.Store(true)
			<-ctx.Done()
			return ctrl.Result{}, nil
		})
		loop := &reconcile.Controller[ctrl.Request]{Workers: 1, GracePeriod: time.Millisecond}
		return managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a", "b"))), block, loop, controller.Options{})
	}))
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		var errs []error
		for _, name := range []string{"a", "b"} {
			_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	s.Converged = func(*controllertest.State) error {
		if !begun.Load() {
			return errors.New("no call yet")
		}
		return nil
	}
	report, err := controllertest.Run(t.Context(), s, controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Failures) != 1 || !strings.Contains(report.Failures[0].String(), "quiescence: not converged 20s after the last fault or step: a queue is not empty at rest: Len() is 1") {
		t.Errorf("the failures are %v, want a queue that is not empty", report.Failures)
	}
}

// TestServerStartElect: the options of Elect are those of one process, and its Runnables have
// the term.
func TestServerStartElect(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	term := make(chan bool, 1)
	stop := startProcess(t, func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		leases, err := leader.NewClient(cfg, env.Namespace)
		if err != nil {
			return err
		}
		var options ctrl.Options
		if err := managerkit.Elect(&options, &leader.Elector{Leases: leases, Namespace: env.Namespace, Name: "mk-start-elect"}); err != nil {
			return err
		}
		return managertest.Start(options, func(mgr manager.Manager, _ *controllertest.Env) error {
			return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				_, ok := leader.TermFrom(ctx)
				term <- ok
				<-ctx.Done()
				return nil
			}))
		})(ctx, cfg, env)
	}, namespace)
	if !receive(t, term, "term") {
		t.Error("the context of the Runnable has no term")
	}
	if err := stop(); err != nil {
		t.Errorf("Start() = %v", err)
	}
	lease, err := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(namespace).Get(t.Context(), "mk-start-elect", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("the Lease is %+v, %v, want it released", lease.Spec, err)
	}
}
