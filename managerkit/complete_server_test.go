package managerkit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// newManager returns a manager whose cache has one namespace.
func newManager(t *testing.T, namespaces ...string) manager.Manager {
	t.Helper()
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{}}}
	for _, ns := range namespaces {
		options.Cache.DefaultNamespaces[ns] = cache.Config{}
	}
	mgr, err := ctrl.NewManager(testserver.Config(t), options)
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// startManager runs the manager in the background. stop ends it and returns its error.
func startManager(t *testing.T, mgr manager.Manager) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("the manager does not stop")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Start() = %v", err)
		}
	})
	return stop
}

func createConfigMap(t *testing.T, namespace, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("no %s after a minute", what)
	}
	return v
}

// complete adds a controller of ConfigMaps with the loop.
func complete(t *testing.T, mgr manager.Manager, name string, loop *reconcile.Controller[ctrl.Request], f crreconcile.Func) {
	t.Helper()
	loop.Name = name
	if err := managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}), f, loop, controller.Options{}); err != nil {
		t.Fatal(err)
	}
}

// TestServerComplete: the builder's sources fill the loop's queue, owned objects lead to their
// owner, errors have their class and TerminalError its own, and the loop's fields count.
//
// Proves MK3.
func TestServerComplete(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	results := make(chan string, 100)
	loop := &reconcile.Controller[ctrl.Request]{
		Name: "mk-complete", Workers: 2, Timeout: time.Minute,
		Hook: func(ctx context.Context, key ctrl.Request) (context.Context, func(string, error)) {
			triggers := reconcile.Triggers(ctx)
			return ctx, func(result string, err error) {
				results <- fmt.Sprintf("%s %s %v %v", key.Name, result, triggers, err)
			}
		},
	}
	var made, asked atomic.Bool
	err := managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a", "b", "c", "d"))).Owns(&corev1.Secret{}), crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute {
			t.Errorf("the call's deadline is %v, want the loop's Timeout", deadline)
		}
		switch {
		case req.Name == "a" && !made.Swap(true):
			var owner corev1.ConfigMap
			if err := mgr.GetClient().Get(ctx, req.NamespacedName, &owner); err != nil {
				return ctrl.Result{}, err
			}
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of-a", Namespace: namespace}}
			if err := ctrl.SetControllerReference(&owner, secret, mgr.GetScheme()); err != nil {
				return ctrl.Result{}, err
			}
			return ctrl.Result{}, mgr.GetClient().Create(ctx, secret)
		case req.Name == "b":
			return ctrl.Result{}, crreconcile.TerminalError(errors.New("no cure"))
		case req.Name == "c" && !asked.Swap(true):
			//lint:ignore SA1019 reconcilers still use it
			return ctrl.Result{Requeue: true}, nil //nolint:staticcheck // reconcilers still use it
		case req.Name == "d" && !asked.Swap(true):
			panic("oh")
		}
		return ctrl.Result{}, nil
	}), loop, controller.Options{})
	if err != nil {
		t.Fatal(err)
	}
	createConfigMap(t, namespace, "a")
	startManager(t, mgr)
	for _, tt := range []struct {
		create string
		want   []string
	}{
		{want: []string{"a success [watch unchanged] <nil>", "a success [watch event] <nil>"}}, // from the first list, then from its Secret
		{create: "other"},
		{create: "b", want: []string{"b terminal [watch event] terminal error: no cure"}},
		{create: "c", want: []string{"c requeue [watch event] <nil>", "c success [requeue] <nil>"}},
	} {
		if tt.create != "" {
			createConfigMap(t, namespace, tt.create)
		}
		for _, want := range tt.want {
			if got := receive(t, results, want); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
	asked.Store(false)
	createConfigMap(t, namespace, "d")
	if got := receive(t, results, "a panic"); !strings.HasPrefix(got, "d panic") {
		t.Errorf("got %q, want a panic", got)
	}
	if got := receive(t, results, "a retry"); got != "d success [retry] <nil>" {
		t.Errorf("got %q, want a retry", got)
	}
}

// TestServerCompleteBesideHandle: a handler of Handle beside those of the builder costs no object of their first list.
func TestServerCompleteBesideHandle(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	createConfigMap(t, namespace, "a")
	mgr := newManager(t, namespace)
	const raw = 10000 // keys of a source that is no informer
	called := make(chan string, 2*raw)
	loop := &reconcile.Controller[ctrl.Request]{Name: "mk-beside"}
	b := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a"))).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
			for i := range raw {
				q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint("raw-", i)}})
			}
			return nil
		}))
	err := managerkit.Complete(b, crreconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
		called <- req.Name
		return ctrl.Result{}, nil
	}), loop, controller.Options{})
	if err != nil {
		t.Fatal(err)
	}
	secrets := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(testserver.Config(t)), 0, informers.WithNamespace(namespace)).Core().V1().Secrets().Informer()
	if _, err := loop.Handle(secrets, enqueue.Handler(loop.Source("secrets"), func(s *corev1.Secret) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}}
	})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() { defer close(ended); secrets.RunWithContext(testlog.New().Context(ctx)) }()
	startManager(t, mgr)
	seen := map[string]bool{}
	for len(seen) < raw+1 {
		seen[receive(t, called, "call")] = true
	}
	if !seen["a"] {
		t.Error("the object of the first list had no call")
	}
}

func named(names ...string) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(obj client.Object) bool { return slices.Contains(names, obj.GetName()) })
}

// An event handler of the controller's own can name its source and event, as with reconcile.
func TestServerTriggers(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	triggers := make(chan []string, 10)
	loop := &reconcile.Controller[ctrl.Request]{}
	settings := loop.Source("settings")
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-triggers").Watches(&corev1.ConfigMap{}, handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			if e.Object.GetName() == "a" {
				settings.AddEvent(controllerkit.Event{Kind: "create"}, controllerkit.AddOptions{}, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
			}
		},
	})
	f := crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		triggers <- reconcile.Triggers(ctx)
		return ctrl.Result{}, nil
	})
	if err := managerkit.Complete(b, f, loop, controller.Options{}); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	createConfigMap(t, namespace, "a")
	if got, want := receive(t, triggers, "call"), []string{"settings create"}; !slices.Equal(got, want) {
		t.Errorf("triggers %q, want %q", got, want)
	}
}

// TestServerReconcileID: each call has an ID of its own, in its context and in its log lines, which
// have the values of LogConstructor for the request, and no key twice.
// The manager was started before, so the controller starts at once.
//
// Proves MK3.
func TestServerReconcileID(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	startManager(t, mgr)
	<-mgr.Elected()
	logs, calls, reconciled := testlog.New(), make(chan string, 10), make(chan string, 10)
	logs.Hook = func(message string) {
		if message == "Reconciled" {
			reconciled <- message
		}
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-id").For(&corev1.ConfigMap{}, builder.WithPredicates(named("a", "b")))
	f := crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		klog.FromContext(ctx).Info("Called " + req.Name)
		calls <- string(controller.ReconcileIDFromContext(ctx))
		return ctrl.Result{}, nil
	})
	logger := klog.FromContext(logs.Context(t.Context()))
	options := controller.Options{LogConstructor: func(req *ctrl.Request) logr.Logger {
		logger := logger.WithValues("controller", "mk-id")
		if req != nil {
			logger = logger.WithValues("configMap", klog.KRef(req.Namespace, req.Name))
		}
		return logger
	}}
	if err := managerkit.Complete(b, f, &reconcile.Controller[ctrl.Request]{}, options); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"": true}
	for _, name := range []string{"a", "b"} {
		createConfigMap(t, namespace, name)
		id := receive(t, calls, "call")
		if seen[id] {
			t.Errorf("the call of %s has the ID %q, want one of its own", name, id)
		}
		seen[id] = true
		receive(t, reconciled, "line of the loop")
		found := 0
		for _, line := range append(logs.Find("Called "+name), logs.Find("Reconciled")...) {
			if v := line.Values; v["configMap"] == klog.KRef(namespace, name) && fmt.Sprint(v["reconcileID"], v["controller"], v["key"]) == id+"mk-id"+namespace+"/"+name {
				found++
			}
		}
		if found != 2 {
			t.Errorf("%d lines about the call of %s have its values, want that of the call and that of the loop: %v", found, name, logs.All())
		}
	}
	for _, line := range logs.Find("Starting controller") {
		if line.Values["controller"] != "mk-id" {
			t.Errorf("the line %v does not name the controller", line)
		}
	}
}

// TestServerTwoClusters: the manager runs a second cluster, and a controller whose requests name
// the cluster gets the events of both.
//
// Proves MK3.
func TestServerTwoClusters(t *testing.T) {
	t.Parallel()
	type request struct {
		Cluster string
		types.NamespacedName
	}
	near, far := testserver.Namespace(t), testserver.Namespace(t)
	mgr := newManager(t, near)
	other, err := cluster.New(testserver.Config(t), func(o *cluster.Options) {
		o.Cache.DefaultNamespaces = map[string]cache.Config{far: {}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.Add(other); err != nil {
		t.Fatal(err)
	}
	from := func(name string, c cluster.Cluster) source.TypedSource[request] {
		return source.TypedKind(c.GetCache(), &corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, cm *corev1.ConfigMap) []request {
			return []request{{name, client.ObjectKeyFromObject(cm)}}
		}))
	}
	keys := make(chan request, 100)
	b := builder.TypedControllerManagedBy[request](mgr).Named("mk-clusters").WatchesRawSource(from("near", mgr)).WatchesRawSource(from("far", other))
	f := crreconcile.TypedFunc[request](func(_ context.Context, key request) (ctrl.Result, error) {
		if key.Name == "a" {
			keys <- key
		}
		return ctrl.Result{}, nil
	})
	if err := managerkit.Complete(b, f, &reconcile.Controller[request]{}, controller.TypedOptions[request]{}); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	for name, namespace := range map[string]string{"near": near, "far": far} {
		createConfigMap(t, namespace, "a")
		want := request{name, types.NamespacedName{Namespace: namespace, Name: "a"}}
		if got := receive(t, keys, "key of "+name); got != want {
			t.Errorf("got the key %v, want %v", got, want)
		}
	}
}

// The other form, which Complete replaces: the loop is a Runnable over the manager's cache. It
// needs nothing of this package, but a handler and a checker for each resource by hand, and
// has none of the builder's predicates and sources.
func TestServerRunnable(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	keys := make(chan string, 100)
	loop := &reconcile.Controller[types.NamespacedName]{
		Name:  "mk-runnable",
		Queue: queue.New(queue.Config[types.NamespacedName]{}),
		Reconcile: func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			keys <- key.Name
			return reconcile.Result{}, nil
		},
	}
	for obj, keysOf := range map[client.Object]func(metav1.Object) []types.NamespacedName{
		&corev1.ConfigMap{}: enqueue.KeyOf[metav1.Object],
		&corev1.Secret{}:    enqueue.ControllerOf[metav1.Object](corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind()),
	} {
		informer, err := mgr.GetCache().GetInformer(t.Context(), obj, cache.BlockUntilSynced(false))
		if err != nil {
			t.Fatal(err)
		}
		registration, err := informer.AddEventHandler(enqueue.Handler(loop.Source(fmt.Sprintf("%T", obj)), keysOf))
		if err != nil {
			t.Fatal(err)
		}
		loop.HasSynced = append(loop.HasSynced, registration.HasSyncedChecker())
	}
	if err := mgr.Add(manager.RunnableFunc(loop.Run)); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	for _, name := range []string{"a", "b"} {
		createConfigMap(t, namespace, name)
		for got := ""; got != name; {
			got = receive(t, keys, "key of "+name) // after the ConfigMaps that each namespace has
		}
	}
}

// TestServerDrain: when the manager stops, a running call ends undisturbed and its context is
// not done, and Start returns after it. Controller-runtime's workers cancel it at once.
//
// Proves MK5.
func TestServerDrain(t *testing.T) {
	t.Parallel()
	for _, kit := range []bool{true, false} {
		name := map[bool]string{true: "kit", false: "controller-runtime"}[kit]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := testserver.Namespace(t)
			mgr := newManager(t, namespace)
			begun, asked := make(chan struct{}), make(chan struct{})
			var cancelled, ended atomic.Bool
			f := crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
				if req.Name != "a" {
					return ctrl.Result{}, nil
				}
				close(begun)
				<-asked
				var enough <-chan time.Time
				if kit {
					enough = time.After(time.Second)
				}
				select {
				case <-ctx.Done():
					cancelled.Store(true)
				case <-enough:
				}
				ended.Store(true)
				return ctrl.Result{}, nil
			})
			if kit {
				complete(t, mgr, "mk-drain", &reconcile.Controller[ctrl.Request]{}, f)
			} else if err := ctrl.NewControllerManagedBy(mgr).Named("mk-drain-plain").For(&corev1.ConfigMap{}).Complete(f); err != nil {
				t.Fatal(err)
			}
			createConfigMap(t, namespace, "a")
			stop := startManager(t, mgr)
			receive(t, begun, "call")
			close(asked)
			if err := stop(); err != nil {
				t.Fatalf("Start() = %v", err)
			}
			if !ended.Load() {
				t.Error("Start returned before the call")
			}
			if cancelled.Load() == kit {
				t.Errorf("the call was cancelled: %v, want %v", cancelled.Load(), !kit)
			}
		})
	}
}

// TestCompleteErrors: bad input gets one error that names the field and the cure.
func TestServerCompleteErrors(t *testing.T) {
	t.Parallel()
	mgr := newManager(t, testserver.Namespace(t))
	b := func() *ctrl.Builder { return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}) }
	ok := crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
	used := &reconcile.Controller[ctrl.Request]{Name: "mk-used"}
	if err := managerkit.Complete(b(), ok, used, controller.Options{}); err != nil {
		t.Fatal(err)
	}
	fresh := func() *reconcile.Controller[ctrl.Request] { return &reconcile.Controller[ctrl.Request]{} }
	for _, tt := range []struct {
		name    string
		b       *ctrl.Builder
		r       crreconcile.Reconciler
		loop    *reconcile.Controller[ctrl.Request]
		options controller.Options
		want    string
	}{
		{name: "no builder", r: ok, loop: fresh(), want: "nil builder"},
		{name: "no reconciler", b: b(), loop: fresh(), want: "nil reconciler"},
		{name: "nil func", b: b(), r: crreconcile.Func(nil), loop: fresh(), want: "nil reconciler"},
		{name: "no loop", b: b(), r: ok, want: "nil loop"},
		{name: "used loop", b: b(), r: ok, loop: used, want: "one loop for each controller"},
		{name: "bad field", b: b(), r: ok, loop: &reconcile.Controller[ctrl.Request]{Timeout: -1}, want: "Timeout"},
		{name: "workers", b: b(), r: ok, loop: fresh(), options: controller.Options{MaxConcurrentReconciles: 2}, want: "MaxConcurrentReconciles: set Workers"},
		{name: "queue", b: b(), r: ok, loop: fresh(), options: controller.Options{UsePriorityQueue: new(true)}, want: "UsePriorityQueue"},
		{name: "timeout", b: b(), r: ok, loop: fresh(), options: controller.Options{ReconciliationTimeout: 1}, want: "set Timeout of the loop"},
		{name: "panics", b: b(), r: ok, loop: fresh(), options: controller.Options{RecoverPanic: new(false)}, want: "RecoverPanic"},
		{name: "reconciler twice", b: b(), r: ok, loop: fresh(), options: controller.Options{Reconciler: ok}, want: "Reconciler"},
		{name: "WithOptions", b: b().WithOptions(controller.Options{MaxConcurrentReconciles: 2}), r: ok, loop: fresh(), want: "WithOptions: pass it to Complete"},
		{name: "one name twice", b: b(), r: ok, loop: &reconcile.Controller[ctrl.Request]{Name: "mk-used"}, want: "already exists"},
		{name: "no watch", b: ctrl.NewControllerManagedBy(mgr).Named("mk-none"), r: ok, loop: fresh(), want: "no watches"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := managerkit.Complete(tt.b, tt.r, tt.loop, tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Complete() = %v, want an error with %q", err, tt.want)
			}
			if tt.loop != nil && tt.loop != used && tt.loop.Reconcile != nil {
				t.Error("the loop cannot be given to Complete again")
			}
		})
	}
}
