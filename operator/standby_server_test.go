package operator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A replica is one operator of TestServerStandby. It has the calls and latencies of its
// controller, and the deletions that its informer has reported.
type replica struct {
	op      *operator.Operator
	queue   *queue.Queue[types.NamespacedName]
	called  chan string
	deleted chan string
	block   chan struct{} // not nil: the call of "slow" waits until it is closed

	*metrics.Metrics
	mu   sync.Mutex
	late time.Duration // the largest latency
}

func (r *replica) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	r.Metrics.ReconcileFinished(ctx, controller, result, took, latency)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = max(r.late, latency)
}

func newReplica(t *testing.T, namespace string, cached caches) *replica {
	t.Helper()
	r := &replica{called: make(chan string, 1000), deleted: make(chan string, 1000), queue: queue.New(queue.Config[types.NamespacedName]{})}
	var err error
	if r.Metrics, err = metrics.New(nil); err != nil {
		t.Fatal(err)
	}
	r.op, err = operator.New(testserver.Config(t), operator.Options{Name: "standby", LeaseNamespace: namespace, Metrics: r.Metrics})
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(r.op.Config)
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	cached(t, factory, kube, namespace)
	maps := factory.Core().V1().ConfigMaps()
	c := r.op.Controller("maps", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
		r.called <- key.Name
		if key.Name == "slow" && r.block != nil {
			<-r.block
		}
		return reconcile.Result{}, nil
	})
	c.Loop.Queue, c.Loop.Metrics = r.queue, r
	operator.For(c, corev1.Resource("configmaps"), maps)
	_, err = maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			r.deleted <- cm.Name
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// await receives from c until it gets the name.
func await(t *testing.T, c <-chan string, name string) {
	t.Helper()
	for receive(t, c) != name {
	}
}

// TestServerStandby: the queue of a replica that does not lead stays empty. When it leads, it runs
// the keys of all objects, and of one whose deletion the former leader saw during its stop and
// did not act on. No latency counts the time before the stop.
//
// Proves OP6.
func TestServerStandby(t *testing.T) {
	t.Parallel()
	eachCache(t, testServerStandby)
}

func testServerStandby(t *testing.T, cached caches) {
	namespace := testserver.Namespace(t)
	maps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	remove := func(name string) {
		t.Helper()
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		create(t, testserver.Config(t), namespace, fmt.Sprint("map", i))
	}
	create(t, testserver.Config(t), namespace, "late")
	first, second := newReplica(t, namespace, cached), newReplica(t, namespace, cached)
	first.block = make(chan struct{})
	stop := start(t, first.op, testlog.New())
	await(t, first.called, "late")
	start(t, second.op, testlog.New())
	receive(t, second.op.Informers.HasSyncedChecker().Done())
	for i := range 30 {
		create(t, testserver.Config(t), namespace, fmt.Sprint("short", i))
		remove(fmt.Sprint("short", i))
	}
	await(t, second.deleted, "short29")
	await(t, first.deleted, "short29")
	create(t, testserver.Config(t), namespace, "slow")
	await(t, first.called, "slow") // and runs
	if got := second.queue.Pending(); len(got) > 0 {
		t.Errorf("the queue of the standby has %v", got)
	}

	stopped := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	remove("late") // most likely after the stop of the first: no call of it starts then
	await(t, second.deleted, "late")
	close(first.block)
	if err := receive(t, ended); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	want := map[string]bool{"late": true, "slow": true}
	for i := range 20 {
		want[fmt.Sprint("map", i)] = true
	}
	for len(want) > 0 {
		delete(want, receive(t, second.called))
	}
	second.mu.Lock()
	defer second.mu.Unlock()
	if limit := time.Since(stopped); second.late > limit {
		t.Errorf("the largest latency of the new leader is %v, want at most the %v since the stop began", second.late, limit)
	}
}
