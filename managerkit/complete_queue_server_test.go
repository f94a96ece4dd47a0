package managerkit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerPriorities: a key of the first list waits behind a stream of events only for the
// queue's MaxWait, and namespaces take turns.
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
			old, enough, over := make(chan string, 100), make(chan struct{}), make(chan struct{})
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
				if hot == 3000 {
					close(over)
				} else { // the next event comes before this call has ended
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
				select {
				case <-old:
				case <-over:
					t.Error("the keys of the first list waited for the end of the stream")
				case <-time.After(time.Minute):
					t.Fatal("no key of the first list after a minute")
				}
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
