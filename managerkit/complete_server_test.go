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

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/enqueue"
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
// Proves MK12.
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
				settings.AddEvent("create", addOptions{}, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
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

type addOptions = struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}

// TestServerTwoClusters: the manager runs a second cluster, and a controller whose requests name
// the cluster gets the events of both.
//
// Proves MK12.
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
// Proves MK13.
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
				select {
				case <-ctx.Done():
					cancelled.Store(true)
				case <-time.After(time.Second):
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

// TestServerPriorities: a key of the first list waits behind a stream of events only for the
// queue's MaxWait, and namespaces take turns.
//
// Proves MK14.
func TestServerPriorities(t *testing.T) {
	t.Parallel()
	busy, quiet := testserver.Namespace(t), testserver.Namespace(t)
	mgr := newManager(t, busy, quiet)
	order := make(chan string, 1000)
	gate := make(chan struct{})
	for i := range 30 {
		createConfigMap(t, busy, fmt.Sprintf("old-%02d", i))
	}
	createConfigMap(t, quiet, "old")
	added := make(chan struct{})
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-priorities").Watches(&corev1.ConfigMap{}, handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			q.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
			if e.Object.GetName() == "new" {
				close(added)
			}
		},
	})
	f := crreconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
		if req.Name != "kube-root-ca.crt" {
			order <- req.Name
			<-gate
		}
		return ctrl.Result{}, nil
	})
	if err := managerkit.Complete(b, f, &reconcile.Controller[ctrl.Request]{}, controller.Options{}); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	first := receive(t, order, "call") // of the only worker, which waits at the gate
	createConfigMap(t, busy, "new")
	receive(t, added, "event")
	close(gate)
	seen := []string{first}
	for len(seen) < 32 {
		seen = append(seen, receive(t, order, "call"))
	}
	if seen[1] != "new" {
		t.Errorf("after the first call came %q, want the event: %v", seen[1], seen)
	}
	if turn := slices.Index(seen, "old"); turn < 0 || turn > 4 {
		t.Errorf("the only key of its namespace came as number %d, want its turn: %v", turn, seen)
	}
}

// TestServerStarvation: events that never pause do not starve the keys of the first list, with
// controller-runtime's workers and with the loop. With controller-runtime's queue they wait for
// the end of the stream.
//
// Proves MK14.
func TestServerStarvation(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"controller-runtime", "queue", "loop"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			namespace := testserver.Namespace(t)
			for i := range 5 {
				createConfigMap(t, namespace, fmt.Sprintf("old-%d", i))
			}
			mgr := newManager(t, namespace)
			started := make(chan workqueue.TypedRateLimitingInterface[ctrl.Request], 1)
			old, enough := make(chan string, 100), make(chan struct{})
			var in workqueue.TypedRateLimitingInterface[ctrl.Request]
			var hot int
			f := crreconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
				if strings.HasPrefix(req.Name, "old") {
					old <- req.Name
				}
				if !strings.HasPrefix(req.Name, "hot") {
					return ctrl.Result{}, nil
				}
				if hot++; hot == 300 {
					close(enough)
				}
				if hot < 3000 { // the next event comes before this call has ended
					in.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("hot-%d", hot)}})
				}
				time.Sleep(10 * time.Millisecond) // the work of a call
				return ctrl.Result{}, nil
			})
			// The stream begins before the first list arrives.
			stream := source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
				in = q
				q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "hot-0"}})
				started <- q
				return nil
			})
			b := ctrl.NewControllerManagedBy(mgr).Named("mk-starve-" + kind).For(&corev1.ConfigMap{}).WatchesRawSource(stream)
			cfg := queue.Config[ctrl.Request]{MaxWait: 200 * time.Millisecond}
			var err error
			switch kind {
			case "controller-runtime":
				err = b.Complete(f)
			case "queue":
				err = b.WithOptions(controller.Options{NewQueue: managerkit.NewQueue(cfg)}).Complete(f)
			case "loop":
				err = managerkit.Complete(b, f, &reconcile.Controller[ctrl.Request]{Queue: queue.New(cfg)}, controller.Options{})
			}
			if err != nil {
				t.Fatal(err)
			}
			startManager(t, mgr)
			receive(t, started, "queue")
			if kind != "controller-runtime" {
				receive(t, old, "key of the first list")
				return
			}
			receive(t, enough, "end of 300 events")
			select {
			case name := <-old:
				t.Errorf("controller-runtime's queue ran %s between the events: it starves no more, so mend the guide", name)
			default:
			}
		})
	}
}

// TestServerHotLoop: a reconcile that changes its own object at each call runs ten times a
// second, after the first hundred.
//
// Proves MK15.
func TestServerHotLoop(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	const n = 130
	var calls atomic.Int64
	var began time.Time
	took := make(chan time.Duration, 1)
	complete(t, mgr, "mk-hot", &reconcile.Controller[ctrl.Request]{}, func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		if req.Name != "a" {
			return ctrl.Result{}, nil
		}
		call := calls.Add(1)
		switch call {
		case 1:
			began = time.Now()
		case n:
			took <- time.Since(began)
		}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
		return ctrl.Result{}, mgr.GetClient().Patch(ctx, cm, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, call)))
	})
	createConfigMap(t, namespace, "a")
	startManager(t, mgr)
	if got, least := receive(t, took, "hot loop"), (n-102)*100*time.Millisecond; got < least {
		t.Errorf("%d calls took %v, want at least %v", n, got, least)
	}
}

// TestServerMetrics: the families of controller-runtime have the values of the loop, the queue
// and the Elector, and those of package metrics stand beside them.
//
// Proves MK16.
func TestServerMetrics(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	done := make(chan string, 100)
	loop := &reconcile.Controller[ctrl.Request]{Workers: 3, Hook: func(ctx context.Context, key ctrl.Request) (context.Context, func(string, error)) {
		return ctx, func(string, error) { done <- key.Name }
	}}
	var once atomic.Bool
	complete(t, mgr, "mk-metrics", loop, func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
		switch req.Name {
		case "error":
			if !once.Swap(true) {
				return ctrl.Result{}, errors.New("oh")
			}
		case "terminal":
			return ctrl.Result{}, crreconcile.TerminalError(errors.New("oh"))
		case "later":
			return ctrl.Result{RequeueAfter: time.Hour}, nil
		}
		return ctrl.Result{}, nil
	})
	for _, name := range []string{"error", "terminal", "later"} {
		createConfigMap(t, namespace, name)
	}
	stop := startManager(t, mgr)
	for got := (map[string]int{}); got["error"] < 2 || got["terminal"] < 1 || got["later"] < 1; {
		got[receive(t, done, "call")]++
	}
	// The first Metrics of a process and a later one feed the same series.
	m, err := managerkit.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	m.LeaderStatus("mk-metrics", true)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got := gather(t, "mk-metrics")
	for series, want := range map[string]float64{
		`controller_runtime_reconcile_total{result=error}`:         2,
		`controller_runtime_reconcile_total{result=requeue_after}`: 1,
		`controller_runtime_reconcile_errors_total`:                2,
		`controller_runtime_terminal_reconcile_errors_total`:       1,
		`controller_runtime_reconcile_panics_total`:                0,
		`controller_runtime_active_workers`:                        0,
		`controller_reconcile_total{result=terminal}`:              1,
		`leader_election_master_status`:                            1,
		`workqueue_depth{priority=}`:                               0,
		`workqueue_retries_total`:                                  1,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", series, v, ok, want)
		}
	}
	for _, series := range []string{`controller_runtime_reconcile_time_seconds`, `workqueue_queue_duration_seconds`, `workqueue_work_duration_seconds`, `workqueue_adds_total`} {
		if got[series] < 4 {
			t.Errorf("%s = %v, want 4 or more", series, got[series])
		}
	}
	m.LeaderStatus("mk-metrics", false)
	if t.Failed() {
		t.Log(got)
	}
}

// gather returns the values, and the counts of histograms, of the series of a controller.
func gather(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			mine, rest := false, ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "name" || l.GetName() == "controller" {
					mine = mine || l.GetValue() == name
				} else {
					rest = "{" + l.GetName() + "=" + l.GetValue() + "}"
				}
			}
			if mine {
				all[f.GetName()+rest] = value(m)
			}
		}
	}
	return all
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return float64(m.GetHistogram().GetSampleCount())
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
		})
	}
}
