package managerkit_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/internal/standby"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// gaugesSource adds five keys. Its sync fails at the end of the context, unless it is synced.
type gaugesSource struct {
	added  chan struct{}
	synced bool
}

func (s gaugesSource) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
	if standby.Is(q) {
		return nil
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		q.Add(key)
	}
	close(s.added)
	return nil
}

func (s gaugesSource) WaitForSync(ctx context.Context) error {
	if !s.synced {
		<-ctx.Done()
	}
	return ctx.Err()
}

// A Lease has its counters from the start. If the first transition creates one, its increase is not seen, and a
// restarted container begins again.
func TestLeaderStatus(t *testing.T) {
	m, err := managerkit.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	m.LeaderStatus("ns/status", false)
	for _, family := range []string{"controller_leader_transitions_total", "controller_leader_slow_renewals_total", "leader_election_master_status"} {
		if v, ok := gather(t, "ns/status")[family]; !ok || v != 0 {
			t.Errorf("%s is %v, present: %t, want 0", family, v, ok)
		}
	}
	m.LeaderStatus("ns/status", true)
	if all := gather(t, "ns/status"); all["leader_election_master_status"] != 1 {
		t.Errorf("the series of a leader are %v", all)
	}
}

// warmSource is a gaugesSource that a standby can start too.
type warmSource struct{ gaugesSource }

func (warmSource) Standby() {}

// TestDepthAfterEnd: after the end of a manager, workqueue_depth does not keep the keys that no
// call had taken, also if one was added again while it ran, or if the sources were not synced.
func TestDepthAfterEnd(t *testing.T) {
	for _, tt := range []struct {
		name          string
		workers, idle bool // of controller-runtime; no call begins
	}{
		{name: "depth-loop"},
		{name: "depth-workers", workers: true},
		{name: "depth-idle", idle: true},
		{name: "depth-workers-idle", workers: true, idle: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, quiet())
			if err != nil {
				t.Fatal(err)
			}
			src := gaugesSource{make(chan struct{}), !tt.idle}
			b := builder.TypedControllerManagedBy[string](mgr).Named(tt.name).WatchesRawSource(src)
			var in workqueue.TypedRateLimitingInterface[string]
			b = b.WatchesRawSource(source.TypedFunc[string](func(_ context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
				in = q
				return nil
			}))
			calls := make(chan string, 1)
			var called atomic.Bool
			f := crreconcile.TypedFunc[string](func(ctx context.Context, key string) (crreconcile.Result, error) {
				if !called.Swap(true) { // the workers of controller-runtime can begin calls after the end
					in.Add(key)
					calls <- key
				}
				<-ctx.Done()
				return crreconcile.Result{}, nil
			})
			if tt.workers {
				err = b.WithOptions(controller.TypedOptions[string]{NewQueue: managerkit.NewQueue(queue.Config[string]{})}).Complete(f)
			} else {
				err = managerkit.Complete(b, f, &reconcile.Controller[string]{GracePeriod: time.Millisecond}, controller.TypedOptions[string]{})
			}
			if err != nil {
				t.Fatal(err)
			}
			s := begin(t, mgr.Start)
			await(t, src.added, "key")
			if !tt.idle {
				await(t, calls, "call")
			}
			const depth = "workqueue_depth{priority=}"
			if gather(t, tt.name)[depth] < 4 {
				t.Errorf("the depth is %v, want 4 at least", gather(t, tt.name)[depth])
			}
			if err := s.stop(t); err != nil {
				t.Errorf("Start() = %v", err)
			}
			// controller-runtime does not wait for the ShutDown of the queue.
			for end := time.Now().Add(electionPatience); gather(t, tt.name)[depth] != 0; {
				if time.Now().After(end) {
					t.Fatalf("after the end the depth is %v, want 0", gather(t, tt.name)[depth])
				}
			}
			m, err := managerkit.NewMetrics()
			if err != nil {
				t.Fatal(err)
			}
			m.ForgetQueue(tt.name)
			if v, ok := gather(t, tt.name)[depth]; ok {
				t.Errorf("after ForgetQueue the depth is %v, want no series", v)
			}
		})
	}
}

// TestStopDuringStart: if the manager stops while the controller starts its sources, the loop never begins, and Start
// returns nil.
func TestStopDuringStart(t *testing.T) {
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	loop := &reconcile.Controller[string]{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	options := controller.TypedOptions[string]{LogConstructor: func(*string) logr.Logger {
		if loop.Queue != nil { // controller-runtime has made it, and begins to start the sources
			cancel()
			for end := time.Now().Add(electionPatience); !loop.Queue.ShuttingDown() && time.Now().Before(end); {
				runtime.Gosched()
			}
		}
		return logr.Discard()
	}}
	b := builder.TypedControllerManagedBy[string](mgr).Named("stop-during-start").
		WatchesRawSource(source.TypedFunc[string](func(context.Context, workqueue.TypedRateLimitingInterface[string]) error { return nil }))
	err = managerkit.Complete(b, crreconcile.TypedFunc[string](func(context.Context, string) (crreconcile.Result, error) {
		t.Error("a call has begun")
		return crreconcile.Result{}, nil
	}), loop, options)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Start() = %v", err)
		}
	case <-time.After(electionPatience):
		t.Fatal("Start does not return")
	}
	if !loop.Queue.ShuttingDown() {
		t.Error("the queue was not shut down before the sources were started, so the test proves nothing")
	}
}

// slowSecond is a manager that adds its second controller after a call of the first has begun, or a while.
type slowSecond struct {
	manager.Manager
	added  *atomic.Int64
	called chan struct{}
}

func (s slowSecond) Add(r manager.Runnable) error {
	if s.added.Add(1) == 2 {
		select {
		case <-s.called:
		case <-time.After(500 * time.Millisecond):
		}
	}
	return s.Manager.Add(r)
}

// TestCompleteRunning: if Complete adds a controller to a manager that runs, the second controller of that name
// does not reset the gauges of the loop.
func TestCompleteRunning(t *testing.T) {
	const name = "gauges-running"
	inner, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	mgr := slowSecond{inner, new(atomic.Int64), make(chan struct{})}
	s := begin(t, mgr.Start)
	await(t, inner.Elected(), "start")
	began, done := make(chan string, 5), make(chan struct{})
	f := crreconcile.TypedFunc[string](func(_ context.Context, key string) (crreconcile.Result, error) {
		if key == "a" {
			close(mgr.called)
		}
		began <- key
		<-done
		return crreconcile.Result{}, nil
	})
	b := builder.TypedControllerManagedBy[string](mgr).Named(name).WatchesRawSource(warmSource{gaugesSource{make(chan struct{}), true}})
	if err := managerkit.Complete(b, f, &reconcile.Controller[string]{Workers: 5}, controller.TypedOptions[string]{}); err != nil {
		t.Fatal(err)
	}
	if n := mgr.added.Load(); n != 2 {
		t.Errorf("Complete added %d controllers, want that of the standby too", n)
	}
	for range 5 {
		await(t, began, "call")
	}
	got := gather(t, name)
	if active, most := got["controller_runtime_active_workers"], got["controller_runtime_max_concurrent_reconciles"]; active != 5 || most != 5 {
		t.Errorf("%v of %v workers are active, want 5 of 5", active, most)
	}
	close(done)
	if err := s.stop(t); err != nil {
		t.Errorf("Start() = %v", err)
	}
}

// TestElectOneSeries: an election by Elect has one series of leader_election_master_status, though the manager
// and the Elector both set it.
func TestElectOneSeries(t *testing.T) {
	m, err := managerkit.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	e := &leader.Elector{Leases: fake.NewClientset().CoordinationV1().Leases("ns"), Namespace: "ns", Name: "one-series", RetryPeriod: time.Second, Metrics: m}
	options := quiet()
	if err := managerkit.Elect(&options, e); err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, options)
	if err != nil {
		t.Fatal(err)
	}
	s := begin(t, mgr.Start)
	await(t, mgr.Elected(), "leader")
	if got := statuses(t, e.Name); len(got) != 1 || got["ns/one-series"] != 1 {
		t.Errorf("the series are %v, want one, ns/one-series, with the value 1", got)
	}
	if err := s.stop(t); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Start() = %v", err)
	}
	if got := statuses(t, e.Name); len(got) != 1 || got["ns/one-series"] != 0 {
		t.Errorf("after the end the series are %v, want one with the value 0", got)
	}
}

// statuses returns the values of leader_election_master_status whose names contain name.
func statuses(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "leader_election_master_status" && strings.Contains(l[0].GetValue(), name) {
				got[l[0].GetValue()] = value(m)
			}
		}
	}
	return got
}
