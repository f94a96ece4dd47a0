package managerkit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// latencies is a Metrics that sends the latencies of a loop.
type latencies struct {
	*managerkit.Metrics
	seen chan time.Duration
}

func (l latencies) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	l.Metrics.ReconcileFinished(ctx, controller, result, took, latency)
	l.seen <- latency
}

// TestServerCompleteStandby: while a manager waits to lead, the informers of Complete run, and the
// queue stays empty. When it leads, its loop gets the keys of all objects, and of one that was
// deleted while the former leader stopped. No latency counts the time before the stop. Handlers
// of the leader get each deletion once.
//
// Proves MK4.
func TestServerCompleteStandby(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	maps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(ns)
	remove := func(name string) {
		t.Helper()
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	type replica struct {
		*started
		queue   *queue.Queue[ctrl.Request]
		called  chan string
		deleted chan string
		counted chan string // deletions that a handler of the builder got
		late    chan time.Duration
	}
	block := make(chan struct{})
	early := make(chan string, 1000) // lines about keys in a queue
	logger := funcr.New(func(_, line string) {
		if strings.Contains(line, "Keys were in the queue") {
			early <- line
		}
	}, funcr.Options{})
	newReplica := func(name string) replica {
		options := elected(t, byWatch(t, ns))
		options.Logger = logger
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{ns: {}}}
		mgr, err := manager.New(testserver.Config(t), options)
		if err != nil {
			t.Fatal(err)
		}
		m, err := managerkit.NewMetrics()
		if err != nil {
			t.Fatal(err)
		}
		r := replica{queue: queue.New(queue.Config[ctrl.Request]{}), called: make(chan string, 1000), deleted: make(chan string, 1000), counted: make(chan string, 1000), late: make(chan time.Duration, 1000)}
		loop := &reconcile.Controller[ctrl.Request]{Name: name, Workers: 4, Queue: r.queue, Metrics: latencies{m, r.late}}
		counted := handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
			r.counted <- e.Object.GetName()
		}}
		err = managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Watches(&corev1.ConfigMap{}, counted), crreconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
			r.called <- req.Name
			if req.Name == "slow" {
				<-block
			}
			return ctrl.Result{}, nil
		}), loop, controller.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r.started = begin(t, mgr.Start)
		informer, err := mgr.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			if cm, ok := obj.(*corev1.ConfigMap); ok {
				r.deleted <- cm.Name
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	until := func(c <-chan string, name string) {
		t.Helper()
		for await(t, c, name) != name {
		}
	}

	want := map[string]bool{"late": true, "slow": true}
	for i := range 10 {
		want[fmt.Sprint("map", i)] = true
		createConfigMap(t, ns, fmt.Sprint("map", i))
	}
	createConfigMap(t, ns, "late")
	first := newReplica("mk-standby-a")
	until(first.called, "late")
	second := newReplica("mk-standby-b")
	for i := range 30 {
		createConfigMap(t, ns, fmt.Sprint("short", i))
		remove(fmt.Sprint("short", i))
	}
	until(second.deleted, "short29")
	createConfigMap(t, ns, "slow")
	until(first.called, "slow") // and runs
	if got := second.queue.Pending(); len(got) > 0 {
		t.Errorf("the queue of the standby has %v", got)
	}

	stopped := time.Now()
	first.cancel()
	remove("late") // most likely after the stop of the first: no call of it starts then
	until(second.deleted, "late")
	close(block)
	if err := first.wait(t); err != nil {
		t.Fatalf("Start() = %v", err)
	}
	for len(want) > 0 {
		delete(want, await(t, second.called, "call"))
	}
	for i := range 10 {
		remove(fmt.Sprint("map", i))
	}
	until(second.deleted, "map9")
	counts := map[string]int{}
	for counts["map9"] == 0 {
		counts[await(t, second.counted, "deletion")]++
	}
	if err := second.stop(t); err != nil {
		t.Fatalf("Start() = %v", err)
	}
	close(second.counted)
	for name := range second.counted {
		counts[name]++
	}
	for i := range 10 {
		if name := fmt.Sprint("map", i); counts[name] != 1 {
			t.Errorf("the handler of the leader got the deletion of %s %d times", name, counts[name])
		}
	}
	close(early)
	for line := range early { // the sources of the manager fill the queue before the loop runs
		t.Errorf("log: %s", line)
	}
	close(second.late)
	for late := range second.late {
		if limit := time.Since(stopped); late > limit {
			t.Errorf("a latency of the new leader is %v, want at most the %v since the stop began", late, limit)
		}
	}
}
