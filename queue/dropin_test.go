package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue"
)

// copyController is a typical controller on a queue of client-go. It keeps a Secret for each
// ConfigMap, reconciles again after an hour, and gives up after maxRetries failures.
type copyController struct {
	client     kubernetes.Interface
	configMaps corev1listers.ConfigMapLister
	synced     cache.InformerSynced
	workqueue  workqueue.TypedRateLimitingInterface[cache.ObjectName]

	mu      sync.Mutex // guards what the test looks at
	syncs   map[string]int
	dropped []string
}

const maxRetries = 3

func newCopyController(t *testing.T, client kubernetes.Interface, factory informers.SharedInformerFactory, q workqueue.TypedRateLimitingInterface[cache.ObjectName]) *copyController {
	configMaps := factory.Core().V1().ConfigMaps()
	c := &copyController{
		client:     client,
		configMaps: configMaps.Lister(),
		synced:     configMaps.Informer().HasSynced,
		workqueue:  q,
		syncs:      map[string]int{},
	}
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, obj any) { c.enqueue(obj) },
		DeleteFunc: c.enqueue,
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *copyController) enqueue(obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		panic(err)
	}
	c.workqueue.Add(name)
}

func (c *copyController) run(ctx context.Context, workers int) {
	defer c.workqueue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced) {
		return
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { c.runWorker(ctx) })
	}
	<-ctx.Done()
	c.workqueue.ShutDown()
	wg.Wait()
}

func (c *copyController) runWorker(ctx context.Context) {
	for c.processNextWorkItem(ctx) {
	}
}

func (c *copyController) processNextWorkItem(ctx context.Context) bool {
	name, shutdown := c.workqueue.Get()
	if shutdown {
		return false
	}
	defer c.workqueue.Done(name)
	c.handleErr(c.sync(ctx, name), name)
	return true
}

func (c *copyController) handleErr(err error, name cache.ObjectName) {
	switch {
	case err == nil:
		c.workqueue.Forget(name)
		c.workqueue.AddAfter(name, time.Hour)
	case c.workqueue.NumRequeues(name) < maxRetries:
		c.workqueue.AddRateLimited(name)
	default:
		c.workqueue.Forget(name)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dropped = append(c.dropped, name.String())
	}
}

func (c *copyController) sync(ctx context.Context, name cache.ObjectName) error {
	c.mu.Lock()
	c.syncs[name.String()]++
	c.mu.Unlock()
	secrets := c.client.CoreV1().Secrets(name.Namespace)
	configMap, err := c.configMaps.ConfigMaps(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		if err := secrets.Delete(ctx, name.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	} else if err != nil {
		return err
	}
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		StringData: configMap.Data,
	}
	if _, err := secrets.Update(ctx, want, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
	return err
}

// outcome is the observable result of a controller's life.
type outcome struct {
	Secrets  map[string]string // and the value that each holds
	Syncs    map[string]int    // of the keys for which it is no chance
	Dropped  []string
	Requeues map[string]int
	Len      int
}

// life runs a controller for six and a half hours. Keys fail for a while or for good, and
// are changed, deleted and created again.
func life(t *testing.T, q workqueue.TypedRateLimitingInterface[cache.ObjectName]) outcome {
	ctx, cancel := context.WithCancel(t.Context())
	configMap := func(name, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"value": value}}
	}
	client := fake.NewClientset(configMap("steady", "1"), configMap("flaky", "1"), configMap("broken", "1"))
	flaky := 2 // how often it still fails
	var mu sync.Mutex
	client.PrependReactor("update", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		name := action.(clienttesting.UpdateAction).GetObject().(*corev1.Secret).Name
		switch {
		case name == "broken":
			return true, nil, errors.New("never")
		case name == "flaky" && flaky > 0:
			flaky--
			return true, nil, errors.New("not now")
		}
		return false, nil, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	c := newCopyController(t, client, factory, q)
	factory.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() { c.run(ctx, 2) })

	configMaps := client.CoreV1().ConfigMaps("default")
	write := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
	}
	create := func(cm *corev1.ConfigMap) error {
		_, err := configMaps.Create(ctx, cm, metav1.CreateOptions{})
		return err
	}
	update := func(cm *corev1.ConfigMap) error {
		_, err := configMaps.Update(ctx, cm, metav1.UpdateOptions{})
		return err
	}
	time.Sleep(30 * time.Minute) // the retries have ended
	for range 2 {
		write(create(configMap("late", "1")))
		write(configMaps.Delete(ctx, "late", metav1.DeleteOptions{}))
	}
	write(create(configMap("late", "2")))
	for i := range 5 { // faster than the worker
		if err := update(configMap("steady", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	write(update(configMap("broken", "2"))) // a new chance, and new retries
	time.Sleep(3 * time.Hour)

	cancel()
	wg.Wait()
	factory.Shutdown()
	got := outcome{
		Secrets:  map[string]string{},
		Syncs:    map[string]int{"broken": c.syncs["default/broken"], "flaky": c.syncs["default/flaky"]},
		Dropped:  c.dropped,
		Requeues: map[string]int{},
		Len:      q.Len(),
	}
	secrets, err := client.CoreV1().Secrets("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets.Items {
		got.Secrets[s.Name] = s.StringData["value"]
	}
	for name := range c.syncs {
		namespace, key, err := cache.SplitMetaNamespaceKey(name)
		if err != nil {
			t.Fatal(err)
		}
		got.Requeues[name] = q.NumRequeues(cache.ObjectName{Namespace: namespace, Name: key})
	}
	return got
}

// One controller, either queue, the same outcome: only the line that makes the
// queue differs.
//
// It proves Q10.
func TestDropIn(t *testing.T) {
	for name, newQueue := range map[string]func() workqueue.TypedRateLimitingInterface[cache.ObjectName]{
		"client-go": func() workqueue.TypedRateLimitingInterface[cache.ObjectName] {
			return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
		},
		"queue": func() workqueue.TypedRateLimitingInterface[cache.ObjectName] {
			return queue.New(queue.Config[cache.ObjectName]{})
		},
		"queue with client-go's limiter and metrics": func() workqueue.TypedRateLimitingInterface[cache.ObjectName] {
			return queue.New(queue.Config[cache.ObjectName]{
				Name:            "copies",
				MetricsProvider: newProvider(),
				RateLimiter:     workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName](),
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := life(t, newQueue())
				want := outcome{
					Secrets: map[string]string{"flaky": "1", "late": "2", "steady": "4"},
					// broken: twice a first time and maxRetries more; flaky: two
					// failures, a success, and one each hour.
					Syncs:    map[string]int{"broken": 8, "flaky": 9},
					Dropped:  []string{"default/broken", "default/broken"},
					Requeues: map[string]int{"default/broken": 0, "default/flaky": 0, "default/late": 0, "default/steady": 0},
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("outcome (-want +got):\n%s", diff)
				}
			})
		})
	}
}
