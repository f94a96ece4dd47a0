package rows

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// The code below is common to the rows about reconcile: an informer's store, its event
// handler, and controllers whose only worker reads the object of each key from the
// store. The rows write the store and call the handler directly. They leave out
// client-go's reflector and its buffers, which are the same for all contenders and would
// only bring the ratios closer to 1.
//
// The controllers of the library and of controller-runtime and the loop by hand have
// metrics and a timeout for each call. The two controllers also recover panics and give
// each call a logger with its key.

const (
	byHand   = "client-go by hand"
	bareLoop = "client-go bare"
)

// reconcilers is the number of workers of every controller.
const reconcilers = 1

// callTimeout is the timeout of a call. No call takes that long.
const callTimeout = time.Minute

// The delays of a queue after failures. The rows have no failures.
const (
	retryBase  = 5 * time.Millisecond
	retryLimit = 5 * time.Minute
)

// staged is the number of objects. They are so many that each changes some ten times in a
// measurement. The library delays a key that runs more than 100 times at once.
const staged = 20_000

// stage is an informer's store. Each object has two versions, and each event replaces
// one by the other.
type stage struct {
	store   cache.Indexer
	objects [2][]*corev1.ConfigMap // by version, then by index
	events  int
}

func newStage() *stage {
	s := &stage{store: cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	for i := range staged {
		key := stageKey(i)
		for version := range s.objects {
			s.objects[version] = append(s.objects[version], &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: key.Namespace, Name: key.Name, ResourceVersion: fmt.Sprint(i + 1 + version*staged),
			}})
		}
		if err := s.store.Add(s.objects[0][i]); err != nil {
			panic(err) // the object has a name
		}
	}
	return s
}

// stageKey returns the key of the i-th event.
func stageKey(i int) types.NamespacedName {
	i %= staged
	return types.NamespacedName{Namespace: fmt.Sprint("namespace-", i%groups), Name: fmt.Sprint("name-", i)}
}

// event changes the next object in turn, as an informer would.
func (s *stage) event(h cache.ResourceEventHandler) {
	i, version := s.events%staged, s.events/staged%2
	s.events++
	if err := s.store.Update(s.objects[1-version][i]); err != nil {
		panic(err) // the object has a name
	}
	h.OnUpdate(s.objects[version][i], s.objects[1-version][i])
}

// noOp is the work of every reconcile: it reads the object and counts down. At 0 it
// sends to done.
type noOp struct {
	lister corev1listers.ConfigMapLister
	store  cache.Indexer // that lister reads
	given  bool          // the function gets the object, so it does not read it
	left   atomic.Int64
	done   chan struct{}

	look func(ctx context.Context, key types.NamespacedName) // for tests; may be nil
}

func (w *noOp) reconcile(ctx context.Context, key types.NamespacedName) error {
	if !w.given {
		if _, err := w.lister.ConfigMaps(key.Namespace).Get(key.Name); err != nil {
			return err
		}
	}
	if w.look != nil {
		w.look(ctx, key)
	}
	if w.left.Add(-1) == 0 {
		w.done <- struct{}{}
	}
	return nil
}

// running is a running controller.
type running struct {
	handler cache.ResourceEventHandler
	stop    func() error        // stops the controller and waits
	metrics prometheus.Gatherer // nil without metrics
}

// loop starts a controller that calls w.
type loop func(ctx context.Context, w *noOp) (*running, error)

// loops returns the contenders by name.
func loops() map[string]loop {
	return map[string]loop{
		"controllerkit":   runOurs,
		controllerRuntime: runControllerRuntime,
		byHand:            runByHand,
		bareLoop:          runBare,
	}
}

func runOurs(ctx context.Context, w *noOp) (*running, error) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		return nil, err
	}
	q := queue.New(queue.Config[types.NamespacedName]{
		Name:            queueName,
		MetricsProvider: m,
		RateLimiter:     queue.Exponential[types.NamespacedName](retryBase, retryLimit),
	})
	c := &reconcile.Controller[types.NamespacedName]{
		Name:    queueName,
		Queue:   q,
		Metrics: m,
		Workers: reconcilers,
		Timeout: callTimeout,
		Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			return reconcile.Result{}, w.reconcile(ctx, key)
		},
	}
	stop := start(ctx, c.Run)
	return &running{handler: enqueue.Handler(q, enqueue.KeyOf[*corev1.ConfigMap]), metrics: reg, stop: func() error {
		err := stop()
		q.ShutDown()
		return err
	}}, nil
}

func runControllerRuntime(ctx context.Context, w *noOp) (*running, error) {
	c, err := controller.NewUnmanaged(queueName, controller.Options{
		SkipNameValidation:      new(true), // each run creates the controller again
		Logger:                  logr.FromContextOrDiscard(ctx),
		MaxConcurrentReconciles: reconcilers,
		ReconciliationTimeout:   callTimeout,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[crreconcile.Request](retryBase, retryLimit),
		Reconciler: crreconcile.Func(func(ctx context.Context, req crreconcile.Request) (crreconcile.Result, error) {
			return crreconcile.Result{}, w.reconcile(ctx, req.NamespacedName)
		}),
	})
	if err != nil {
		return nil, err
	}
	informer := &handlerCatcher{caught: make(chan cache.ResourceEventHandler, 1)}
	if err := c.Watch(&source.TypedInformer[client.Object, crreconcile.Request]{
		Informer: informer,
		Handler:  &handler.EnqueueRequestForObject{},
	}); err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	stop := start(ctx, func(ctx context.Context) error {
		err := c.Start(ctx)
		failed <- err
		return err
	})
	select {
	case h := <-informer.caught:
		return &running{handler: h, stop: stop, metrics: crmetrics.Registry}, nil
	case err := <-failed:
		return nil, errors.Join(fmt.Errorf("controller-runtime's controller ended: %w", err), stop())
	}
}

// handlerCatcher is an informer that only passes on the added handler.
type handlerCatcher struct {
	cache.SharedIndexInformer
	caught chan cache.ResourceEventHandler
}

func (c *handlerCatcher) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	c.caught <- h
	return nil, nil
}

func runByHand(ctx context.Context, w *noOp) (*running, error) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		return nil, err
	}
	m.ReconcileWorkers(queueName, reconcilers)
	return runLoop(ctx, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: queueName, MetricsProvider: m}, reg,
		func(ctx context.Context, q workqueue.TypedRateLimitingInterface[types.NamespacedName], key types.NamespacedName) {
			defer q.Done(key)
			m.ReconcileStarted(queueName)
			start := time.Now()
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			if err := w.reconcile(ctx, key); err != nil {
				m.ReconcileFinished(ctx, queueName, "error", time.Since(start), -1)
				logr.FromContextOrDiscard(ctx).Error(err, "Reconcile failed", "key", key)
				q.AddRateLimited(key)
				return
			}
			m.ReconcileFinished(ctx, queueName, "success", time.Since(start), -1)
			q.Forget(key)
		})
}

func runBare(ctx context.Context, w *noOp) (*running, error) {
	return runLoop(ctx, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{}, nil,
		func(ctx context.Context, q workqueue.TypedRateLimitingInterface[types.NamespacedName], key types.NamespacedName) {
			defer q.Done(key)
			if err := w.reconcile(ctx, key); err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "Reconcile failed", "key", key)
				q.AddRateLimited(key)
				return
			}
			q.Forget(key)
		})
}

// runLoop runs a loop on client-go's queue.
func runLoop(
	ctx context.Context, config workqueue.TypedRateLimitingQueueConfig[types.NamespacedName], gatherer prometheus.Gatherer,
	process func(ctx context.Context, q workqueue.TypedRateLimitingInterface[types.NamespacedName], key types.NamespacedName),
) (*running, error) {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryBase, retryLimit), config,
	)
	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			q.Add(types.NamespacedName(key))
		}
	}
	stop := start(ctx, func(ctx context.Context) error {
		for {
			key, shutdown := q.Get()
			if shutdown {
				return nil
			}
			process(ctx, q, key)
		}
	})
	return &running{
		metrics: gatherer,
		handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    add,
			UpdateFunc: func(_, obj any) { add(obj) },
			DeleteFunc: add,
		},
		stop: func() error {
			q.ShutDown()
			return stop()
		},
	}, nil
}

// start runs f. stop cancels its context and waits for its end.
func start(ctx context.Context, f func(ctx context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// quiet is a logger like klog's without -v: it keeps values and is disabled above
// verbosity 0. It does not write the few lines about start and stop either.
type quiet struct{ values []any }

func (quiet) Init(logr.RuntimeInfo)           {}
func (quiet) Enabled(level int) bool          { return level <= 0 }
func (quiet) Info(int, string, ...any)        {}
func (quiet) Error(error, string, ...any)     {}
func (q *quiet) WithName(string) logr.LogSink { return &quiet{values: q.values} }
func (q *quiet) WithValues(kv ...any) logr.LogSink {
	values := make([]any, 0, len(q.values)+len(kv))
	return &quiet{values: append(append(values, q.values...), kv...)}
}

// dispatchCase describes the arrival of events.
type dispatchCase struct {
	name  string
	burst int // events of a burst; the next burst starts after their reconciles
	n     int // measured events
}

func dispatchCases() []dispatchCase {
	return []dispatchCase{
		{name: "bursts", burst: rotating, n: 200_000},
		{name: "one at a time", burst: 1, n: 100_000},
	}
}

func init() {
	bench.Register(bench.Row{
		Name: "reconcile/dispatch",
		About: "The path from a changed object to the end of a reconcile that only reads the object: the informer's store and event handler, the queue, one worker and " +
			"metrics. 20,000 objects change in turn, either in bursts of 2,000 or each after the previous one is reconciled. All contenders except the bare loop " +
			"have metrics and a timeout for each call. The library and controller-runtime also recover panics and give each call a logger with its key. That logger " +
			"keeps values and writes no lines.",
		Op: "key",
		Goals: []bench.Goal{
			{Figure: bench.Time, Rival: controllerRuntime, AtMost: 0.35},
			{Figure: bench.Allocs, Rival: controllerRuntime, AtMost: 0.3},
			{Figure: bench.Time, Rival: byHand, AtMost: 1.15},
			{Figure: bench.Time, Rival: bareLoop, AtMost: 3},
		},
		Pairs: func(context.Context) (pairs []bench.Pair, _ func(), _ error) {
			all := loops()
			contender := func(name, module string, c dispatchCase) bench.Contender {
				return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
					return dispatch(ctx, m, all[name], c, nil)
				}}
			}
			for _, c := range dispatchCases() {
				for _, rival := range []string{controllerRuntime, byHand, bareLoop} {
					module := "k8s.io/client-go"
					if rival == controllerRuntime {
						module = "sigs.k8s.io/controller-runtime"
					}
					pairs = append(pairs, bench.Pair{Case: c.name, Ours: contender("controllerkit", "", c), Theirs: contender(rival, module, c)})
				}
			}
			return pairs, nil, nil
		},
	})
}

// dispatch measures a controller. Before that, it reconciles all objects once, which
// also waits for the start of the controller.
func dispatch(
	ctx context.Context, m *bench.Meter, open loop, c dispatchCase, look func(ctx context.Context, key types.NamespacedName),
) (ops int, err error) {
	s := newStage()
	w := &noOp{lister: corev1listers.NewConfigMapLister(s.store), store: s.store, done: make(chan struct{}, 1), look: look}
	r, err := open(logr.NewContext(ctx, logr.New(&quiet{})), w)
	if err != nil {
		return 0, err
	}
	bursts := func(n, size int) {
		for range n {
			w.left.Store(int64(size))
			for range size {
				s.event(r.handler)
			}
			<-w.done
		}
	}
	bursts(staged/rotating, rotating)
	n := max(m.N(c.n)/c.burst, 1)
	m.Measure(func() { bursts(n, c.burst) })
	return n * c.burst, r.stop()
}
