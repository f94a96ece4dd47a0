package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/bridge"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerKind runs the tests with a Kind.
//
// Proves BR1, BR2, BR3.
func TestServerKind(t *testing.T) {
	t.Parallel()
	installCRD(t)
	t.Run("SameFunction", testSameFunction)
	t.Run("Metrics", testMetrics)
	t.Run("Standby", testStandby)
	t.Run("Readiness", testReadiness)
	t.Run("TwoManagers", testTwoManagers)
	t.Run("CompactCache", testCompactCache)
}

// testSameFunction: one function adds controllers to a program and to a manager. In both an object
// leads to its child and status, and a change of what was read runs the key. The manager has another controller of
// the same kinds, and opens one watch of each.
func testSameFunction(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*testing.T, world, *rest.Config, *app) func(context.Context) error{
		"program": func(t *testing.T, w world, config *rest.Config, a *app) func(context.Context) error {
			op, err := operator.New(config, operator.Options{Name: "caches", Namespace: w.namespace})
			must(t, err)
			must(t, a.setUp(op))
			return op.Run
		},
		"manager": func(t *testing.T, w world, config *rest.Config, a *app) func(context.Context) error {
			mgr := w.manager(t, config, w.options())
			must(t, bridge.Add(mgr, operator.Options{Name: "caches"}, a.setUp))
			other := crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
			must(t, ctrl.NewControllerManagedBy(mgr).Named("other").For(&v1.Memcached{}).Owns(&corev1.ConfigMap{}).Complete(other))
			return mgr.Start
		},
		"manager of namespaces": func(t *testing.T, w world, config *rest.Config, a *app) func(context.Context) error {
			options := w.options()
			options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}, testserver.Namespace(t): {}}}
			options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "caches", w.namespace
			elector, err := managerkit.NewElector(config, options)
			must(t, err)
			must(t, errors.Join(bridge.Prepare(config, &options), managerkit.Elect(&options, elector)))
			mgr := w.manager(t, config, options)
			must(t, bridge.Add(mgr, operator.Options{Name: "caches"}, a.setUp))
			other := crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
			must(t, ctrl.NewControllerManagedBy(mgr).Named("other").For(&v1.Memcached{}).Owns(&corev1.ConfigMap{}).Complete(other))
			return mgr.Start
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, seen := newWorld(t), &watches{open: map[string]int{}, most: map[string]int{}}
			config := rest.CopyConfig(testserver.Config(t))
			config.Wrap(seen.wrap)
			start(t, run(t, w, config, &app{}))
			w.memcached(t, "a")
			await(t, w, &v1.MemcachedList{}, "a", func(obj client.Object) bool {
				m := obj.(*v1.Memcached)
				return m.Status.Ready == 2 && meta.IsStatusConditionTrue(m.Status.Conditions, "Ready")
			})
			child := func(size, secret string) {
				t.Helper()
				await(t, w, &corev1.ConfigMapList{}, "a", func(obj client.Object) bool {
					data := obj.(*corev1.ConfigMap).Data
					return data["size"] == size && data["secret"] == secret
				})
			}
			child("2", "")
			must(t, w.Create(t.Context(), w.secret("a", "first")))
			child("2", "first")
			must(t, w.Update(t.Context(), w.secret("a", "second")))
			child("2", "second")
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"size":3}}`))
			must(t, w.Patch(t.Context(), &v1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}, patch))
			child("3", "second")
			must(t, w.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}))
			child("3", "second")
			seen.mu.Lock()
			defer seen.mu.Unlock()
			for _, resource := range []string{"memcacheds", "configmaps", "secrets"} {
				if n := seen.most[w.namespace+resource]; n != 1 {
					t.Errorf("%d watches of %s at once, want 1", n, resource)
				}
			}
		})
	}
}

// testMetrics: the loop of the operator feeds the metrics of the manager, and is in its health checks.
func testMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mgr := checked{w.manager(t, testserver.Config(t), w.options()), map[string]healthz.Checker{}}
	a := &app{calls: make(chan types.NamespacedName, 100)}
	must(t, bridge.Add(mgr, operator.Options{Name: "counted"}, func(op *operator.Operator) error {
		err := a.setUp(op)
		a.c.Loop.Name = "counted"
		return err
	}))
	stop := start(t, mgr.Start)
	w.memcached(t, "a")
	receive(t, a.calls, "call")
	for _, name := range []string{"counted", "counted-informers"} {
		if check := mgr.checks[name]; len(mgr.checks) != 5 || check == nil || check(nil) != nil {
			t.Errorf("the health checks are %v, want counted and counted-informers, which return nil, and three readiness checks", mgr.checks)
		}
	}
	must(t, stop())
	for _, family := range []string{"controller_runtime_reconcile_total", "controller_reconcile_total", "workqueue_adds_total"} {
		if !hasSeries(t, family, "counted") {
			t.Errorf("%s has no series of the controller", family)
		}
	}
}

// checked is a manager that notes its health checks.
type checked struct {
	ctrl.Manager
	checks map[string]healthz.Checker
}

func (c checked) AddHealthzCheck(name string, check healthz.Checker) error {
	c.checks[name] = check
	return c.Manager.AddHealthzCheck(name, check)
}

func (c checked) AddReadyzCheck(name string, check healthz.Checker) error {
	c.checks["ready "+name] = check
	return c.Manager.AddReadyzCheck(name, check)
}

func hasSeries(t *testing.T, family, controller string) bool {
	t.Helper()
	all, err := crmetrics.Registry.Gather()
	must(t, err)
	for _, f := range all {
		if f.GetName() != family {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == controller && m.GetCounter().GetValue() > 0 {
					return true
				}
			}
		}
	}
	return false
}

// testStandby: the operator of a standby calls nothing until its manager leads. At the stop, the
// running call ends undisturbed before Start returns and the standby begins.
func testStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replica := func(a *app) (mgr ctrl.Manager, stop func() error) {
		options := w.options()
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "caches", w.namespace
		elector, err := managerkit.NewElector(testserver.Config(t), options)
		must(t, err)
		must(t, managerkit.Elect(&options, elector))
		mgr = w.manager(t, testserver.Config(t), options)
		must(t, bridge.Add(mgr, operator.Options{Name: "caches"}, a.setUp))
		return mgr, start(t, mgr.Start)
	}
	begun, release, ended := make(chan types.NamespacedName, 100), make(chan struct{}), make(chan error, 1)
	first := &app{calls: begun, during: func(ctx context.Context) {
		_, led := leader.TermFrom(ctx)
		select {
		case <-release:
			ended <- ctx.Err()
			if !led {
				t.Error("the context of a call has no term")
			}
		default:
			<-release
			ended <- ctx.Err()
		}
	}}
	w.memcached(t, "a")
	mgr, stop := replica(first)
	receive(t, mgr.Elected(), "leadership")
	receive(t, begun, "call")
	second := &app{calls: make(chan types.NamespacedName, 100)}
	standby, _ := replica(second)
	if !standby.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the cache of the standby does not sync")
	}
	for n := range 50 { // meanwhile, an operator that does not wait for the election calls its function
		receive(t, afterEvents(t, w, fmt.Sprint("passed", n)), "event")
	}
	if len(second.calls) > 0 {
		t.Error("the standby calls its function")
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case <-second.calls:
		t.Error("the standby calls its function while the leader's call runs")
	case <-stopped:
		t.Error("Start returned before the call")
	case <-standby.Elected():
		t.Error("the standby leads before the leader's call has ended")
	case <-afterEvents(t, w, "stopping"):
	}
	close(release)
	if err := receive(t, ended, "end of the call"); err != nil {
		t.Errorf("the context of the call is done: %v", err)
	}
	must(t, receive(t, stopped, "end of Start"))
	receive(t, second.calls, "call of the standby")
}

// afterEvents returns a channel that is closed when an event has passed through the API server.
func afterEvents(t *testing.T, w world, name string) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	must(t, w.Create(t.Context(), w.secret(name, "")))
	go func() {
		defer close(done)
		await(t, w, &corev1.SecretList{}, name, func(client.Object) bool { return true })
	}()
	return done
}

// TestServerClientGo: a controller on client-go has informers and listers of the manager's cache.
func TestServerClientGo(t *testing.T) {
	t.Parallel()
	w, seen := newWorld(t), &watches{open: map[string]int{}, most: map[string]int{}}
	config := rest.CopyConfig(testserver.Config(t))
	config.Wrap(seen.wrap)
	mgr := w.manager(t, config, w.options())
	must(t, bridge.Add(mgr, operator.Options{Name: "pairs"}, func(op *operator.Operator) error {
		maps, err := bridge.Informer(mgr, &corev1.ConfigMap{})
		if err != nil {
			return err
		}
		secrets, err := bridge.Informer(mgr, &corev1.Secret{})
		if err != nil {
			return err
		}
		clients := kubernetes.NewForConfigOrDie(op.Config)
		var mapLister corelisters.ConfigMapLister
		var secretLister corelisters.SecretLister
		c := op.Controller("pairs", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			cm, err := mapLister.ConfigMaps(key.Namespace).Get(key.Name)
			if err != nil || key.Name != "make" {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			all, err := secretLister.Secrets(key.Namespace).List(labels.Everything())
			if err != nil || len(all) > 0 {
				return reconcile.Result{}, err
			}
			ref, err := owner.Controller(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
			if err != nil {
				return reconcile.Result{}, err
			}
			_, err = clients.CoreV1().Secrets(key.Namespace).Apply(ctx, applycorev1.Secret("made", key.Namespace).WithOwnerReferences(ref), metav1.ApplyOptions{FieldManager: "pairs"})
			return reconcile.Result{}, err
		})
		mapLister = operator.For(c, corev1.Resource("configmaps"), informer.With(maps, corelisters.NewConfigMapLister))
		secretLister = operator.Owns(c, corev1.Resource("secrets"), informer.With(secrets, corelisters.NewSecretLister))
		op.Writes(corev1.Resource("secrets"), "create", "patch")
		return nil
	}))
	start(t, mgr.Start)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "make"}}
	must(t, w.Create(t.Context(), cm))
	made := func(obj client.Object) bool { return metav1.IsControlledBy(obj, cm) }
	await(t, w, &corev1.SecretList{}, "made", made)
	must(t, w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "made"}}))
	await(t, w, &corev1.SecretList{}, "made", made)
	var cached corev1.Secret
	if err := mgr.GetClient().Get(t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "made"}, &cached); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.most[w.namespace+"configmaps"] != 1 || seen.most[w.namespace+"secrets"] != 1 {
		t.Errorf("the most watches at once are %v, want 1 of each", seen.most)
	}
}

// testTwoManagers: two managers in one process have operators with the same names, and a manager has
// two operators with the same kinds.
func testTwoManagers(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		w := newWorld(t)
		mgr := w.manager(t, testserver.Config(t), w.options())
		a, b := &app{calls: make(chan types.NamespacedName, 100)}, &app{calls: make(chan types.NamespacedName, 100)}
		must(t, errors.Join(
			bridge.Add(mgr, operator.Options{Name: "caches"}, a.setUp),
			bridge.Add(mgr, operator.Options{Name: fmt.Sprint("others", n)}, func(op *operator.Operator) error {
				c := operator.Kind(op, v1.GroupVersion.WithResource("memcacheds"), operator.Reconciler[*v1.Memcached]{ReadOnly: true, Reconcile: func(ctx context.Context, m *v1.Memcached) (reconcile.Result, error) {
					b.calls <- types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
					return reconcile.Result{}, nil
				}})
				c.Loop.Name = "others"
				operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{})
				return nil
			}),
		))
		start(t, mgr.Start)
		w.memcached(t, "a")
		for _, calls := range []chan types.NamespacedName{a.calls, b.calls} {
			if key := receive(t, calls, "call"); key.Namespace != w.namespace {
				t.Errorf("a call of %s, want the namespace %s", key, w.namespace)
			}
		}
	}
}

// testCompactCache: two operators of a manager with compact caches share the kinds of their objects and children.
func testCompactCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	options := w.options()
	options.Cache.NewInformer = compact.NewInformer
	options.Cache.DefaultUnsafeDisableDeepCopy = ptr.To(true)
	mgr := w.manager(t, testserver.Config(t), options)
	a, b := &app{calls: make(chan types.NamespacedName, 100)}, &app{calls: make(chan types.NamespacedName, 100)}
	for name, app := range map[string]*app{"first": a, "second": b} {
		must(t, bridge.Add(mgr, operator.Options{Name: name}, func(op *operator.Operator) error {
			c := operator.Kind(op, v1.GroupVersion.WithResource("memcacheds"), operator.Reconciler[*v1.Memcached]{ReadOnly: true, Reconcile: func(ctx context.Context, m *v1.Memcached) (reconcile.Result, error) {
				app.calls <- types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
				return reconcile.Result{}, nil
			}})
			c.Loop.Name = name
			operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
			return nil
		}))
	}
	start(t, mgr.Start)
	w.memcached(t, "a")
	for _, calls := range []chan types.NamespacedName{a.calls, b.calls} {
		if key := receive(t, calls, "call"); key.Namespace != w.namespace {
			t.Errorf("a call of %s, want the namespace %s", key, w.namespace)
		}
	}
}

// testReadiness: the manager of a standby is ready when its cache is synced, and before that names the kind that it may
// not list. Its own checks succeed, although no controller can start.
func testReadiness(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string]bool{"cluster": false, "namespaces": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			now := metav1.NowMicro()
			must(t, w.Create(t.Context(), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "held"},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("other"), LeaseDurationSeconds: ptr.To[int32](3600), AcquireTime: &now, RenewTime: &now},
			}))
			forbids := forbidsSecrets{on: &atomic.Bool{}, asked: make(chan struct{}, 1000)}
			forbids.on.Store(true)
			config := rest.CopyConfig(testserver.Config(t))
			config.Wrap(forbids.wrap)
			options := w.options()
			options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "held", w.namespace
			if namespaces {
				options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}, testserver.Namespace(t): {}}}
				must(t, bridge.Prepare(config, &options))
			}
			mgr := checked{w.manager(t, config, options), map[string]healthz.Checker{}}
			must(t, bridge.Add(mgr, operator.Options{Name: "caches"}, (&app{}).setUp))
			start(t, mgr.Start)
			receive(t, forbids.asked, "list of secrets")
			for _, obj := range []client.Object{&v1.Memcached{}, &corev1.ConfigMap{}} {
				_, err := mgr.GetCache().GetInformer(t.Context(), obj) // waits until it is synced
				must(t, err)
			}
			const prefix = "ready caches-informers-"
			kinds := map[string]bool{"Memcached.cache.example.com": true, "ConfigMap": true, "Secret": false}
			for kind, want := range kinds {
				check := mgr.checks[prefix+kind]
				if check == nil {
					t.Fatalf("%s has no readiness check: %v", kind, mgr.checks)
				}
				if err := check(nil); want != (err == nil) || err != nil && !strings.Contains(err.Error(), "has not synced "+kind+": ") {
					t.Errorf("while secrets cannot be listed, the check of %s = %v", kind, err)
				}
			}
			forbids.on.Store(false)
			if !mgr.GetCache().WaitForCacheSync(t.Context()) {
				t.Error("the cache does not sync")
			}
			for kind := range kinds {
				if err := mgr.checks[prefix+kind](nil); err != nil {
					t.Errorf("when all is listed: %v", err)
				}
			}
		})
	}
}

// forbidsSecrets is a user without the right to list secrets, while on.
type forbidsSecrets struct {
	http.RoundTripper
	on    *atomic.Bool
	asked chan struct{}
}

func (f forbidsSecrets) wrap(next http.RoundTripper) http.RoundTripper {
	f.RoundTripper = next
	return f
}

func (f forbidsSecrets) RoundTrip(req *http.Request) (*http.Response, error) {
	if !f.on.Load() || !strings.HasSuffix(req.URL.Path, "/secrets") {
		return f.RoundTripper.RoundTrip(req)
	}
	f.asked <- struct{}{}
	status := apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no right")).ErrStatus
	body, err := json.Marshal(status)
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: req}, err
}
