package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A whole controller on client-go's informer and queue. It prints the ConfigMaps
// that it is called with.
func ExampleController() {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	factory := informers.NewSharedInformerFactory(client, 0)
	configMaps := factory.Core().V1().ConfigMaps()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, 5*time.Minute))
	add := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			queue.Add(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
		}
	}
	registration, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	c := &reconcile.Controller[types.NamespacedName]{
		Name:  "configmaps",
		Queue: queue,
		Reconcile: func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			cm, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
			if apierrors.IsNotFound(err) {
				return reconcile.Result{}, nil // deleted: nothing to do
			}
			if err != nil {
				return reconcile.Result{}, err
			}
			fmt.Println("reconciled", cm.Name)
			cancel() // a real one runs until a signal
			return reconcile.Result{}, nil
		},
		Workers:   4,
		Timeout:   time.Minute,
		HasSynced: []cache.DoneChecker{configMaps.Informer().HasSyncedChecker(), registration.HasSyncedChecker()},
	}
	factory.StartWithContext(ctx)
	err = c.Run(ctx)
	factory.Shutdown()
	fmt.Println("stopped:", err)
	// Output:
	// reconciled settings
	// stopped: <nil>
}

// labeller is a controller's own type; what it needs are interfaces.
type labeller struct {
	configMaps corev1listers.ConfigMapLister
	client     kubernetes.Interface
}

func (l *labeller) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	cached, err := l.configMaps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil || cached.Labels["seen"] == "true" {
		return reconcile.Result{}, err
	}
	cm := cached.DeepCopy()
	metav1.SetMetaDataLabel(&cm.ObjectMeta, "seen", "true")
	_, err = l.client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, cm, metav1.UpdateOptions{})
	return reconcile.Result{}, err
}

// A Func is tested by calling it. It needs no server, no queue and no Controller:
// an indexer stands for the informer, client-go's fake for the API server.
func ExampleFunc() {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := indexer.Add(cm); err != nil {
		fmt.Println(err)
	}
	l := &labeller{configMaps: corev1listers.NewConfigMapLister(indexer), client: fake.NewClientset(cm)}

	var fn reconcile.Func[types.NamespacedName] = l.reconcile
	ctx := context.Background()
	for _, name := range []string{"settings", "deleted"} {
		res, err := fn(ctx, types.NamespacedName{Namespace: "default", Name: name})
		fmt.Println(name, res.RequeueAfter, err)
	}
	got, err := l.client.CoreV1().ConfigMaps("default").Get(ctx, "settings", metav1.GetOptions{})
	fmt.Println("seen:", got.Labels["seen"], err)
	// Output:
	// settings 0s <nil>
	// deleted 0s <nil>
	// seen: true <nil>
}

// What no retry can cure is marked, with words of its own or next to the error
// that it comes from.
func ExampleErrTerminal() {
	invalid := fmt.Errorf("spec.size is -1: %w", reconcile.ErrTerminal)
	fmt.Println(errors.Is(invalid, reconcile.ErrTerminal), invalid)

	_, err := time.ParseDuration("soon")
	marked := fmt.Errorf("spec.interval: %w: %w", reconcile.ErrTerminal, err)
	fmt.Println(errors.Is(marked, reconcile.ErrTerminal), marked)
	// Output:
	// true spec.size is -1: reconcile: terminal error
	// true spec.interval: reconcile: terminal error: time: invalid duration "soon"
}

// RequeueAfter asks for another run although nothing failed.
func ExampleClass() {
	fmt.Println(reconcile.Class(nil))
	fmt.Println(reconcile.Class(fmt.Errorf("spec.size: %w", reconcile.ErrTerminal)))
	// Output:
	// success
	// terminal
}

func ExampleResult() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	queue.Add("backup")
	polls := 0
	c := &reconcile.Controller[string]{
		Name:  "backups",
		Queue: queue,
		Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			polls++
			fmt.Println(key, "poll", polls)
			if polls == 3 {
				cancel()
				return reconcile.Result{}, nil
			}
			return reconcile.Result{RequeueAfter: time.Millisecond}, nil
		},
	}
	fmt.Println("stopped:", c.Run(ctx))
	// Output:
	// backup poll 1
	// backup poll 2
	// backup poll 3
	// stopped: <nil>
}

// A controller whose calls know what led to them: event handlers add to its sources.
func ExampleTriggers() {
	ctx, cancel := context.WithCancel(context.Background())
	c := &reconcile.Controller[string]{
		Name:  "widgets",
		Queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
			fmt.Println(key, reconcile.Triggers(ctx))
			cancel()
			return reconcile.Result{}, nil
		},
	}
	// What enqueue.Handler(c.Source("pods"), keys) does at events:
	c.Source("widgets").AddEvent(controllerkit.Event{Kind: "update"}, controllerkit.AddOptions{}, "default/blue")
	c.Source("pods").Add("default/blue")
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: default/blue [widgets update pods]
}

func ExampleAttempt() {
	ctx, cancel := context.WithCancel(context.Background())
	c := &reconcile.Controller[string]{
		Name:  "widgets",
		Queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
			n := reconcile.Attempt(ctx)
			fmt.Println("attempt", n)
			if n < 3 {
				return reconcile.Result{}, errors.New("not yet")
			}
			cancel()
			return reconcile.Result{}, nil
		},
	}
	c.Queue.Add("default/blue")
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// attempt 1
	// attempt 2
	// attempt 3
}

func ExampleController_Snapshot() {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	ctx, stop := context.WithCancel(context.Background())
	c := &reconcile.Controller[string]{Name: "widgets", Queue: q, MaxAttempts: 1}
	c.Reconcile = func(_ context.Context, key string) (reconcile.Result, error) {
		s := c.SnapshotOf(key)
		fmt.Println(s.Busy, "running,", s.Parked, "parked")
		stop()
		return reconcile.Result{}, nil
	}
	q.Add("a")
	fmt.Println(c.Run(ctx), c.Snapshot().Running)
	// Output:
	// 1 running, 0 parked
	// <nil> false
}

// A process that must not be used before it has seen all objects adds Ready to its readiness:
// group.AddReady("first list", c.Ready) with a shutdown.Group.
func ExampleController_Ready() {
	ctx, cancel := context.WithCancel(context.Background())
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	c := &reconcile.Controller[string]{Name: "widgets", Queue: queue, Reconcile: func(context.Context, string) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	}}
	c.Source("widgets").Add("a")
	fmt.Println(c.Ready())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for c.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(c.Ready())
	cancel()
	fmt.Println(<-done)
	// Output:
	// reconcile: controller "widgets" is not running
	// <nil>
	// <nil>
}

// A bucket is compared with its object once in ten minutes. The buckets of a first list spread over
// the last minute of it.
func ExampleEvery() {
	c := &reconcile.Controller[string]{
		Name:  "buckets",
		Queue: queue.New(queue.Config[string]{}),
		Reconcile: func(context.Context, string) (reconcile.Result, error) {
			return reconcile.Every(10 * time.Minute), nil
		},
	}
	result, _ := c.Reconcile(context.Background(), "bucket")
	fmt.Println(result.RequeueAfter > 9*time.Minute-1, result.RequeueAfter <= 10*time.Minute)
	// Output: true true
}
