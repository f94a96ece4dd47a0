package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	eventrecorder "github.com/controllerkit/controllerkit/recorder"
	"github.com/controllerkit/controllerkit/shutdown"
)

// The rows about operator compare the assembly with a program that makes the same pieces
// by hand, as the package's example does. Neither has an election.

const piecesByHand = "pieces by hand"

// startObjects is the number of objects in the cluster of operator/start.
const startObjects = 1000

// A program makes the controller of a row. from returns the informer of its objects.
type program func(config *rest.Config, from func(kubernetes.Interface) coreinformers.ConfigMapInformer, f reconcile.Func[types.NamespacedName]) (run func(context.Context) error, err error)

func assembled(config *rest.Config, from func(kubernetes.Interface) coreinformers.ConfigMapInformer, f reconcile.Func[types.NamespacedName]) (func(context.Context) error, error) {
	op, err := operator.New(config, operator.Options{Name: queueName})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return nil, err
	}
	c := op.Controller(queueName, f)
	c.Loop.Workers = reconcilers
	operator.For(c, corev1.Resource("configmaps"), from(kube))
	return op.Run, nil
}

// byKind gives the function an object and in its context the state of the call.
func byKind(config *rest.Config, from func(kubernetes.Interface) coreinformers.ConfigMapInformer, f reconcile.Func[types.NamespacedName]) (func(context.Context) error, error) {
	op, err := operator.New(config, operator.Options{Name: queueName})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return nil, err
	}
	source := from(kube)
	configMaps := source.Informer()
	if caught, ok := source.(caughtConfigMaps); ok {
		configMaps = storedConfigMaps{configMaps, caught.store}
	}
	op.Inform(corev1.Resource("configmaps"), configMaps)
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: func(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
			return f(ctx, types.NamespacedName{Namespace: cm.Namespace, Name: cm.Name})
		},
	})
	c.Loop.Workers = reconcilers
	return op.Run, nil
}

func byPieces(config *rest.Config, from func(kubernetes.Interface) coreinformers.ConfigMapInformer, f reconcile.Func[types.NamespacedName]) (func(context.Context) error, error) {
	m, err := metrics.New(nil)
	if err != nil {
		return nil, err
	}
	config = rest.AddUserAgent(rest.CopyConfig(config), queueName)
	config.QPS = -1
	writes := consistency.New(consistency.Config{Metrics: m})
	config.Wrap(m.Transport)
	config.Wrap(informer.ConsistentLists)
	config.Wrap(informer.EndSilentWatches(0))
	config.Wrap(writes.Wrap)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	events := &eventrecorder.Recorder{
		Controller: queueName,
		Client:     func(namespace string) eventrecorder.Client { return kube.EventsV1().Events(namespace) },
	}
	set, configMaps := &informer.Set{}, from(kube).Informer()
	loop := &reconcile.Controller[types.NamespacedName]{
		Name:      queueName,
		Queue:     queue.New(queue.Config[types.NamespacedName]{Name: queueName, MetricsProvider: m}),
		Reconcile: f,
		Workers:   reconcilers,
		Timeout:   15 * time.Second,
		HasSynced: []cache.DoneChecker{set.HasSyncedChecker()},
		Gate:      writes,
		Metrics:   m,
	}
	registration, err := configMaps.AddEventHandler(enqueue.Handler(loop.Source("configmaps"), enqueue.KeyOf[*corev1.ConfigMap]))
	if err != nil {
		return nil, err
	}
	if err := writes.AddInformer(corev1.Resource("configmaps"), configMaps); err != nil {
		return nil, err
	}
	set.Add("configmaps", configMaps, registration)
	group := &shutdown.Group{}
	group.Add("informers", set.Run)
	group.Add("events", events.Run)
	group.Add("controllers", loop.Run)
	return group.Run, nil
}

func operatorPairs(run func(p program) func(context.Context, *bench.Meter) (int, error), cases ...string) (pairs []bench.Pair) {
	for _, c := range cases {
		pairs = append(pairs, bench.Pair{
			Case:   c,
			Ours:   bench.Contender{Name: "operator", Run: run(assembled)},
			Theirs: bench.Contender{Name: piecesByHand, Run: run(byPieces)},
		})
	}
	return pairs
}

func init() {
	goals := []bench.Goal{{Figure: bench.Time, Rival: piecesByHand, AtMost: 1.03}}
	bench.Register(bench.Row{
		Name: "operator/dispatch",
		About: "The work of reconcile/dispatch by a controller that package operator assembles, and by one that a program makes from the same pieces: queue, loop, " +
			"consistency, metrics, informers, Events and the stop. Neither has an election. The API server serves only its discovery.",
		Op:    "key",
		Goals: append(goals, bench.Goal{Figure: bench.Allocs, Rival: piecesByHand, AtMost: 1.03}),
		Pairs: func(context.Context) (pairs []bench.Pair, _ func(), _ error) {
			for _, c := range dispatchCases() {
				pairs = append(pairs, operatorPairs(func(p program) func(context.Context, *bench.Meter) (int, error) {
					return func(ctx context.Context, m *bench.Meter) (int, error) {
						return dispatch(ctx, m, p.loop, c, nil)
					}
				}, c.name)...)
			}
			return pairs, nil, nil
		},
	})
	bench.Register(bench.Row{
		Name: "operator/kind",
		About: "The work of operator/dispatch, by a function of a key that reads the object from the cache, and by a function of operator.Kind, which gets a copy of the " +
			"object. The pieces are those of operator/dispatch.",
		Op:    "key",
		Goals: []bench.Goal{{Figure: bench.Time, Rival: piecesByHand, AtMost: 1.15}},
		Pairs: func(context.Context) (pairs []bench.Pair, _ func(), _ error) {
			for _, c := range dispatchCases() {
				run := func(p program, given bool) func(context.Context, *bench.Meter) (int, error) {
					open := func(ctx context.Context, w *noOp) (*running, error) {
						w.given = given
						return p.loop(ctx, w)
					}
					return func(ctx context.Context, m *bench.Meter) (int, error) { return dispatch(ctx, m, open, c, nil) }
				}
				pairs = append(pairs, bench.Pair{
					Case:   c.name,
					Ours:   bench.Contender{Name: "operator.Kind", Run: run(byKind, true)},
					Theirs: bench.Contender{Name: piecesByHand, Run: run(byPieces, false)},
				})
			}
			return pairs, nil, nil
		},
	})
	bench.Register(bench.Row{
		Name: "operator/start",
		About: fmt.Sprintf("The cold start of a controller on a real API server: from the first line of the program to the end of the first reconcile of each of %d "+
			"ConfigMaps, which only counts. The contenders are those of operator/dispatch. The assembly also asks the API server which resources it serves.", startObjects),
		Op:    "start",
		Goals: goals,
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			a, err := openArena(ctx)
			if err != nil {
				return nil, nil, err
			}
			if err := a.fill(ctx); err != nil {
				a.stop()
				return nil, nil, err
			}
			return operatorPairs(func(p program) func(context.Context, *bench.Meter) (int, error) {
				return func(ctx context.Context, m *bench.Meter) (int, error) { return p.starts(ctx, m, a) }
			}, ""), a.stop, nil
		},
	})
}

// fill creates the objects of operator/start.
func (a *arena) fill(ctx context.Context) error {
	config := rest.CopyConfig(a.config)
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var next atomic.Int64
	return together(ctx, 8, func(ctx context.Context, _ int) error {
		for i := next.Add(1); i <= startObjects; i = next.Add(1) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("start-", i)}, Data: map[string]string{"key": "value"}}
			if _, err := kube.CoreV1().ConfigMaps(a.namespace).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// starts measures cold starts.
func (p program) starts(ctx context.Context, m *bench.Meter, a *arena) (ops int, err error) {
	ctx = logr.NewContext(ctx, logr.New(&quiet{}))
	ops = m.N(30)
	for range ops {
		all := make(chan struct{})
		var left atomic.Int64
		left.Store(startObjects)
		var stop func() error
		ended := make(chan error, 1)
		m.Measure(func() {
			var run func(context.Context) error
			run, err = p(a.config, func(kube kubernetes.Interface) coreinformers.ConfigMapInformer {
				factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(a.namespace))
				return factory.Core().V1().ConfigMaps()
			}, func(context.Context, types.NamespacedName) (reconcile.Result, error) {
				if left.Add(-1) == 0 {
					close(all)
				}
				return reconcile.Result{}, nil
			})
			if err != nil {
				return
			}
			stop = start(ctx, func(ctx context.Context) error {
				err := run(ctx)
				ended <- err
				return err
			})
			select {
			case <-all:
			case err = <-ended:
				err = errors.Join(errors.New("the controller ended"), err)
			}
		})
		if stop != nil {
			err = errors.Join(err, stop())
		}
		if err != nil {
			return 0, err
		}
	}
	return ops, nil
}

// loop runs p with an informer whose events the row makes.
func (p program) loop(ctx context.Context, w *noOp) (*running, error) {
	server := httptest.NewServer(http.HandlerFunc(serveDiscovery))
	events := &handlersCatcher{SharedIndexInformer: informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().ConfigMaps().Informer()}
	run, err := p(&rest.Config{Host: server.URL}, func(kubernetes.Interface) coreinformers.ConfigMapInformer {
		return caughtConfigMaps{informer: events, lister: w.lister, store: w.store}
	}, func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, w.reconcile(ctx, key)
	})
	if err != nil {
		server.Close()
		return nil, err
	}
	ended := make(chan error, 1)
	stop := start(ctx, func(ctx context.Context) error {
		err := run(ctx)
		ended <- err
		return err
	})
	r := &running{handler: events, stop: func() error {
		defer server.Close()
		return stop()
	}}
	select {
	case <-events.HasSyncedChecker().Done(): // since then no handler is added
		return r, nil
	case err := <-ended:
		return nil, errors.Join(fmt.Errorf("the controller ended: %w", err), r.stop())
	}
}

// serveDiscovery is an API server with ConfigMaps that serves no objects.
func serveDiscovery(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","watch"]}]}`)
	default:
		http.NotFound(w, r)
	}
}

// caughtConfigMaps are the informer and the lister of a row.
type caughtConfigMaps struct {
	informer *handlersCatcher
	lister   corev1listers.ConfigMapLister
	store    cache.Indexer // that lister reads
}

func (c caughtConfigMaps) Informer() cache.SharedIndexInformer   { return c.informer }
func (c caughtConfigMaps) Lister() corev1listers.ConfigMapLister { return c.lister }

// storedConfigMaps is an informer whose objects are in another store.
type storedConfigMaps struct {
	cache.SharedIndexInformer
	store cache.Indexer
}

func (i storedConfigMaps) GetIndexer() cache.Indexer { return i.store }

// handlersCatcher is an informer without objects that keeps the handlers. It calls them
// with the events of the row.
type handlersCatcher struct {
	cache.SharedIndexInformer
	cache.ResourceEventHandlerFuncs // of which the row uses OnUpdate only
	handlers                        []cache.ResourceEventHandler
}

func (c *handlersCatcher) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	c.handlers = append(c.handlers, h)
	return c.SharedIndexInformer.AddEventHandler(h)
}

func (c *handlersCatcher) OnUpdate(before, after any) {
	for _, h := range c.handlers {
		h.OnUpdate(before, after)
	}
}
