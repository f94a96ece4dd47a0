package managerkit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// withQueue adds a controller to a new manager, whose loop has the queue, and whose source adds a key. It needs no API server.
func withQueue(t *testing.T, options manager.Options, q *queue.Queue[string], f func(context.Context, string) (crreconcile.Result, error)) (manager.Manager, error) {
	t.Helper()
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, silence(options))
	if err != nil {
		t.Fatal(err)
	}
	b := builder.TypedControllerManagedBy[string](mgr).Named("over").WatchesRawSource(source.TypedFunc[string](func(_ context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
		q.Add("a")
		return nil
	}))
	return mgr, managerkit.Complete(b, crreconcile.TypedFunc[string](f), &reconcile.Controller[string]{Queue: q}, controller.TypedOptions[string]{})
}

func idle(context.Context, string) (crreconcile.Result, error) { return crreconcile.Result{}, nil }

// A queue with GetContext is that of the loops of several managers, one after the other.
func TestCompleteQueueAgain(t *testing.T) {
	q := queue.New(queue.Config[string]{})
	for range 2 {
		calls := make(chan string, 10)
		mgr, err := withQueue(t, quiet(), q, func(_ context.Context, key string) (crreconcile.Result, error) {
			calls <- key
			return crreconcile.Result{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s := begin(t, mgr.Start)
		await(t, calls, "call")
		if err := s.stop(t); err != nil || q.ShuttingDown() {
			t.Errorf("Start() = %v, and the queue is shut down: %t", err, q.ShuttingDown())
		}
	}
	q.ShutDown()
	if _, err := withQueue(t, quiet(), q, idle); err == nil || !strings.Contains(err.Error(), "the Queue of the loop is shut down") {
		t.Errorf("Complete with a queue that is shut down = %v", err)
	}
}

// A manager does not start with a queue that was shut down after Complete.
func TestCompleteQueueShutDown(t *testing.T) {
	q := queue.New(queue.Config[string]{})
	mgr, err := withQueue(t, quiet(), q, idle)
	if err != nil {
		t.Fatal(err)
	}
	q.ShutDown()
	if err := begin(t, mgr.Start).wait(t); err == nil || !strings.Contains(err.Error(), "the Queue of the loop is shut down") {
		t.Errorf("Start() = %v", err)
	}
}

// Run returns the error of a loop that ends while this process leads, in place of leading without the controller.
func TestRunReturnsErrorOfLoop(t *testing.T) {
	q := queue.New(queue.Config[string]{})
	e := &leader.Elector{Leases: fake.NewClientset().CoordinationV1().Leases("ns"), Namespace: "ns", Name: "over", RetryPeriod: time.Second}
	s := begin(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, e, func(options manager.Options) (manager.Manager, error) {
			return withQueue(t, options, q, func(context.Context, string) (crreconcile.Result, error) {
				q.ShutDown()
				return crreconcile.Result{}, errors.New("the last call")
			})
		})
	})
	if err := s.wait(t); err == nil || !strings.Contains(err.Error(), "Queue was shut down before the context was done") {
		t.Errorf("Run() = %v", err)
	}
}

// A manager of Run opens no port for metrics, unless newManager asks for it.
func TestRunOpensNoPort(t *testing.T) {
	elector := &leader.Elector{Leases: fake.NewClientset().CoordinationV1().Leases("a"), Namespace: "a", Name: "b"}
	enough := errors.New("enough")
	err := managerkit.Run(t.Context(), elector, func(options manager.Options) (manager.Manager, error) {
		if got := options.Metrics.BindAddress; got != "0" {
			t.Errorf("Metrics.BindAddress = %q, want 0", got)
		}
		return nil, enough
	})
	if !errors.Is(err, enough) {
		t.Errorf("Run() = %v, want %v", err, enough)
	}
}

// If no source of a controller syncs, its loop never runs. Its series exist all the same, on a standby
// too, for the alert about a process that never works.
func TestCompleteNeverWorks(t *testing.T) {
	other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("other"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &metav1.MicroTime{Time: time.Now()},
	}}
	for name, test := range map[string]struct {
		options manager.Options
		warm    bool
	}{
		"mk-never-leads": {options: elected(t, &leader.Elector{Leases: fake.NewClientset(other).CoordinationV1().Leases("a"), Namespace: "a", Name: "b"}), warm: true},
		"mk-never-syncs": {options: quiet()},
	} {
		mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, test.options)
		if err != nil {
			t.Fatal(err)
		}
		b := ctrl.NewControllerManagedBy(mgr).Named(name).For(&corev1.ConfigMap{})
		err = managerkit.Complete(b, crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil }),
			&reconcile.Controller[ctrl.Request]{}, controller.Options{CacheSyncTimeout: 10 * time.Millisecond, EnableWarmup: &test.warm})
		if err != nil {
			t.Fatal(err)
		}
		if err := mgr.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "sync") {
			t.Errorf("%s: Start() = %v, want an error about the sync", name, err)
		}
		if workers, ok := gather(t, name)["controller_workers"]; !ok || workers != 0 {
			t.Errorf("%s: controller_workers is %v (there: %t), want 0", name, workers, ok)
		}
	}
}
