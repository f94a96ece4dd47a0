package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/prometheus/client_golang/prometheus"
	promcollectors "github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/watcher"
)

// The controller of this page.
type controller struct {
	client   kubernetes.Interface
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error { return nil }
func (c *controller) runWorker(ctx context.Context) {
	for {
		key, stopped := c.queue.Get()
		if stopped {
			return
		}
		func() {
			defer c.queue.Done(key)
			if err := c.sync(ctx, key); err != nil {
				c.queue.AddRateLimited(key)
				return
			}
			c.queue.Forget(key)
		}()
	}
}
func (c *controller) loop() *reconcile.Controller[types.NamespacedName] {
	return &reconcile.Controller[types.NamespacedName]{
		Name:  "widgets",
		Queue: c.queue,
		Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			return reconcile.Result{}, c.sync(ctx, key)
		},
		Workers:   4,
		Timeout:   15 * time.Second, // below GracePeriod, 20s, so that a stop cancels no call
		HasSynced: []cache.DoneChecker{c.informer.HasSyncedChecker()},
	}
}
func events(client kubernetes.Interface) *recorder.Recorder {
	return &recorder.Recorder{
		Controller: "example.com/settings",
		Client:     func(namespace string) recorder.Client { return client.EventsV1().Events(namespace) },
	}
}
func newQueue(m *metrics.Metrics) workqueue.TypedRateLimitingInterface[types.NamespacedName] {
	return queue.New(queue.Config[types.NamespacedName]{
		Name:            "widgets",
		MetricsProvider: m,
		// No namespace can hold up the others.
		Group: func(key types.NamespacedName) string { return key.Namespace },
	})
}
func (c *controller) watchPods(q *queue.Queue[types.NamespacedName]) error {
	_, err := c.informer.AddEventHandler(enqueue.Handler(q, enqueue.KeyOf[*corev1.Pod]))
	return err
}
func (c *controller) feed(loop *reconcile.Controller[types.NamespacedName]) error {
	_, err := loop.Handle(c.informer, enqueue.Handler(loop.Source("pods"), enqueue.KeyOf[*corev1.Pod]))
	return err
}
func startInformers(ctx context.Context, cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(informer.ConsistentLists)
	cfg.Wrap(informer.EndSilentWatches(0))
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.Trim))
	set := &informer.Set{Timeout: 20 * time.Second}
	set.Add("pods", factory.Core().V1().Pods().Informer())
	set.Add("deployments.apps", factory.Apps().V1().Deployments().Informer())
	return set.Run(ctx) // blocks until ctx is done
}
func elect(ctx context.Context, config *rest.Config, c *reconcile.Controller[types.NamespacedName]) error {
	leases, err := leader.NewClient(config, "widgets-system")
	if err != nil {
		return err
	}
	elector := &leader.Elector{
		Leases:    leases,
		Namespace: "widgets-system",
		Name:      "widgets-controller",
	}
	return elector.Run(ctx, c.Run)
}
func guarded(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(leader.Guard) // a write needs the context of lead, and leadership that is not over
	return config
}
func (c *controller) ensureVolume(ctx context.Context, cm *corev1.ConfigMap) error {
	held, live, err := finalizer.Ensure(ctx, c.client.CoreV1().ConfigMaps(cm.Namespace), cm, "example.com/volume", deleteVolume)
	if err != nil || !live {
		return err // on its way out: cleaned up, or to be tried again
	}
	return createVolume(ctx, held)
}

func createVolume(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
	_ = held.Object().UID // the name of the volume, for example
	return nil
}

func deleteVolume(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error { return nil }
func (c *controller) report(ctx context.Context, d *appsv1.Deployment, cause error) error {
	_, err := status.Update(ctx, c.client.AppsV1().Deployments(d.Namespace), d, func(d *appsv1.Deployment) error {
		d.Status.ObservedGeneration = d.Generation
		return nil
	})
	return err
}

func conditions(list *[]metav1.Condition, generation int64, cause error) error {
	if cause != nil {
		return status.Set(list, generation, status.False("Ready", "Failed", cause.Error()))
	}
	return status.Set(list, generation, status.True("Ready", "Reconciled", "all is as the spec asks"))
}
func (c *controller) ensureConfig(ctx context.Context, live *corev1.ConfigMap, owner types.UID) error {
	config := applycorev1.ConfigMap("settings", "default").WithData(map[string]string{"mode": "fast"})
	_, applied, err := ssa.ApplyChanged(ctx, "widgets-controller", c.client.CoreV1().ConfigMaps("default").Apply,
		config, live, applycorev1.ExtractConfigMap)
	if err == nil && applied {
		fmt.Println("settings were not as they should be")
	}
	return err
}
func readYourWrites(cfg *rest.Config, q workqueue.TypedRateLimitingInterface[types.NamespacedName]) (*controller, *reconcile.Controller[types.NamespacedName], error) {
	writes := consistency.New(consistency.Config{})
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(writes.Wrap)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
	if err := writes.AddInformer(corev1.Resource("pods"), pods); err != nil {
		return nil, nil, err
	}
	c := &controller{client: client, informer: pods, queue: q}
	loop := c.loop()
	loop.Gate = writes
	return c, loop, nil
}
func follow(ctx context.Context, client kubernetes.Interface) error {
	w := &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("default"))}
	for event, err := range w.Events(ctx) {
		if err != nil {
			return err
		}
		if event.Type == watch.Deleted {
			fmt.Println("deleted", event.Object.Name)
		}
	}
	return nil
}
func runAll(m http.Handler, set *informer.Set, elector *leader.Elector, c *reconcile.Controller[types.NamespacedName]) error {
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	group := &shutdown.Group{}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m)
	mux.Handle("/readyz", group.Ready())
	mux.Handle("/livez", group.Live())
	group.AddReady("informers", set.Ready)
	group.AddLive("informers", set.Check)
	group.AddLive("controller", func() error { return c.Check(nil) })
	group.AddLive("leader", func() error { return elector.Check(nil) })
	group.Add("http", shutdown.Server(&http.Server{Addr: ":8080", Handler: mux}))
	group.Add("informers", set.Run)
	group.Add("controller", func(ctx context.Context) error {
		select {
		case <-set.HasSyncedChecker().Done():
			return elector.Run(ctx, c.Run)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Run(ctx) // stops the controller first, the server last
}
func collectors(cfg *rest.Config, registry *prometheus.Registry) (*metrics.Metrics, error) {
	m, err := metrics.New(registry)
	if err != nil {
		return nil, err
	}
	process := promcollectors.NewProcessCollector(promcollectors.ProcessCollectorOpts{})
	if err := registry.Register(process); err != nil { // the alert about restarts needs it
		return nil, err
	}
	cfg.Wrap(m.Transport) // rest_client_requests_total and its durations
	return m, nil         // for queue.Config, reconcile.Controller and leader.Elector
}
func (c *controller) get(ctx context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
	cm, err := c.client.CoreV1().ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("read %s", key))
	}
	return cm, nil
}
