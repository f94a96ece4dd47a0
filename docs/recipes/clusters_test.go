package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	informersv1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
)

// An object is a key of the queue.
type object struct {
	Cluster string
	types.NamespacedName
}

type cluster struct {
	kube  kubernetes.Interface
	watch *ondemand.Watch

	mu      sync.Mutex
	running int                 // the calls; guarded by mu
	waiting map[object]struct{} // for the end of one; guarded by mu
}

// begin reports whether the call may run. A cluster that does not respond must not hold all workers, so two calls
// of a cluster run at once.
func (c *cluster) begin(key object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == 2 {
		c.waiting[key] = struct{}{}
		return false
	}
	c.running++
	delete(c.waiting, key)
	return true
}

// end ends a call, and adds a key that waits.
func (c *cluster) end(add func(object)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	for key := range c.waiting {
		delete(c.waiting, key)
		add(key)
		return
	}
}

// A fleet reconciles the ConfigMaps of clusters, which are added and removed while it runs.
type fleet struct {
	work      func(ctx context.Context, kube kubernetes.Interface, cm *corev1.ConfigMap) error
	loop      *reconcile.Controller[object]
	informers ondemand.Informers[*cluster]

	mu       sync.Mutex
	clusters map[string]*cluster // guarded by mu
}

func newFleet(work func(context.Context, kubernetes.Interface, *corev1.ConfigMap) error) *fleet {
	f := &fleet{work: work, clusters: map[string]*cluster{}}
	f.informers.New = func(c *cluster) (cache.SharedIndexInformer, error) {
		return informersv1.NewConfigMapInformer(c.kube, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}), nil
	}
	f.loop = &reconcile.Controller[object]{
		Name:      "fleet",
		Queue:     queue.New(queue.Config[object]{Name: "fleet", Group: func(key object) string { return key.Cluster }}),
		Reconcile: f.reconcile,
		Workers:   8,
		Timeout:   15 * time.Second,
	}
	return f
}

func (f *fleet) Run(ctx context.Context) error {
	group := &shutdown.Group{}
	group.Add("informers", f.informers.Run)
	group.Add("loop", f.loop.Run)
	return group.Run(ctx)
}

func (f *fleet) add(ctx context.Context, name string, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.QPS = -1                           // the API server limits its clients itself
	config.Wrap(informer.EndSilentWatches(0)) // a dead connection ends, and so does Close
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	c := &cluster{kube: kube, waiting: map[object]struct{}{}}
	if c.watch, err = f.informers.Open(c); err != nil {
		return err
	}
	f.mu.Lock()
	f.clusters[name] = c
	f.mu.Unlock()
	_, err = c.watch.AddEventHandler(enqueue.Handler(f.loop.Source("configmaps"), func(cm *corev1.ConfigMap) []object {
		return []object{{Cluster: name, NamespacedName: types.NamespacedName{Namespace: cm.Namespace, Name: cm.Name}}}
	}))
	if err != nil {
		return errors.Join(err, f.remove(ctx, name))
	}
	return nil
}

// remove returns nil when no event of the cluster can come any more. After an error it can be called again.
func (f *fleet) remove(ctx context.Context, name string) error {
	f.mu.Lock()
	c := f.clusters[name]
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := c.watch.Close(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.clusters, name)
	return nil
}

func (f *fleet) reconcile(ctx context.Context, key object) (reconcile.Result, error) {
	f.mu.Lock()
	c := f.clusters[key.Cluster]
	f.mu.Unlock()
	if c == nil {
		return reconcile.Result{}, nil // removed
	}
	if !c.begin(key) {
		return reconcile.Result{RequeueAfter: time.Hour}, nil // earlier: end adds it
	}
	defer c.end(f.loop.Queue.Add)
	cm, err := corelisters.NewConfigMapLister(c.watch.GetIndexer()).ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, f.work(ctx, c.kube, cm)
}

// TestServerClusters: objects of two API servers are reconciled in their own clusters, although a third one is not
// reachable, and a removed cluster has no calls.
func TestServerClusters(t *testing.T) {
	t.Parallel()
	configs := map[string]*rest.Config{"one": testserver.Config(t), "two": testserver.Own(t).Config()}
	namespaces := map[string]string{"one": testserver.Namespace(t), "two": "default"}
	type call struct {
		cluster kubernetes.Interface
		name    string
	}
	called := make(chan call, 1000)
	f := newFleet(func(_ context.Context, kube kubernetes.Interface, cm *corev1.ConfigMap) error {
		if cm.Labels["fleet"] != "" {
			called <- call{kube, cm.Name}
		}
		return nil
	})
	stop := run(t, t.Context(), f.Run, func() {})
	if err := f.add(t.Context(), "gone", &rest.Config{Host: "https://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	create := func(cluster, name string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"fleet": "yes"}}}
		if _, err := kubernetes.NewForConfigOrDie(configs[cluster]).CoreV1().ConfigMaps(namespaces[cluster]).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kube := map[string]kubernetes.Interface{}
	for name, config := range configs {
		if err := f.add(t.Context(), name, config); err != nil {
			t.Fatal(err)
		}
		kube[name] = f.clusters[name].kube
		create(name, "of-"+name)
		if got := receive(t, called); got != (call{kube[name], "of-" + name}) {
			t.Errorf("a call for %s with the client of cluster one: %v", got.name, got.cluster == kube["one"])
		}
	}
	for _, name := range []string{"two", "gone"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := f.remove(ctx, name); err != nil {
			t.Error(err)
		}
		cancel()
	}
	create("two", "late")
	create("one", "next")
	if got := receive(t, called); got != (call{kube["one"], "next"}) {
		t.Errorf("after the removal of cluster two there was a call for %s", got.name)
	}
	stop()
}

// TestClusterThatHangs: while the calls to a cluster get no response, those to another one go on, two at once.
func TestClusterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects = 100
		hangs, responds := fake.NewClientset(), fake.NewClientset()
		done := make(chan string, objects)
		f := newFleet(func(ctx context.Context, kube kubernetes.Interface, cm *corev1.ConfigMap) error {
			if kube == hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(50 * time.Millisecond)
			done <- cm.Name
			return nil
		})
		stop := run(t, t.Context(), f.Run, func() {})
		for name, kube := range map[string]*fake.Clientset{"hangs": hangs, "responds": responds} {
			for i := range objects {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i)}}
				if err := kube.Tracker().Add(cm); err != nil {
					t.Fatal(err)
				}
			}
			c := &cluster{kube: kube, waiting: map[object]struct{}{}}
			var err error
			if c.watch, err = f.informers.Open(c); err != nil {
				t.Fatal(err)
			}
			f.clusters[name] = c
		}
		synctest.Wait()
		for name := range f.clusters {
			for i := range objects {
				f.loop.Queue.Add(object{name, types.NamespacedName{Namespace: "default", Name: fmt.Sprint(i)}})
			}
		}
		time.Sleep(objects * 50 * time.Millisecond / 2)
		synctest.Wait()
		if len(done) != objects {
			t.Errorf("%d of %d objects of the other cluster were reconciled", len(done), objects)
		}
		stop()
	})
}
