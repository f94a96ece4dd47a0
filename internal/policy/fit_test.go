package policy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/watcher"
)

// The packages work together through these interfaces.
var (
	_ controllerkit.EventAdder[string]                 = (*reconcile.Source[string])(nil)
	_ controllerkit.Adder[string]                      = workqueue.TypedRateLimitingInterface[string](nil)
	_ workqueue.TypedRateLimitingInterface[string]     = (*queue.Queue[string])(nil)
	_ controllerkit.OptionAdder[string]                = (*queue.Queue[string])(nil)
	_ controllerkit.ContextGetter[string]              = (*queue.Queue[string])(nil)
	_ controllerkit.PriorityGetter[string]             = (*queue.Queue[string])(nil)
	_ controllerkit.PendingLister[string]              = (*queue.Queue[string])(nil)
	_ controllerkit.Clearer[string]                    = (*queue.Queue[string])(nil)
	_ controllerkit.Gate[types.NamespacedName]         = (*consistency.Store)(nil)
	_ controllerkit.ReadyEnsurer[types.NamespacedName] = (*consistency.Store)(nil)
	_ reconcile.Metrics                                = (*metrics.Metrics)(nil)
	_ leader.Metrics                                   = (*metrics.Metrics)(nil)
	_ shard.Metrics                                    = (*metrics.Metrics)(nil)
	_ consistency.Metrics                              = (*metrics.Metrics)(nil)
	_ finalizer.Metrics                                = (*metrics.Metrics)(nil)
	_ watcher.Metrics                                  = (*metrics.Metrics)(nil)
	_ migrate.Metrics                                  = (*metrics.Metrics)(nil)
	_ workqueue.MetricsProvider                        = (*metrics.Metrics)(nil)
	_                                                  = debug.Controller{Queue: (*queue.Queue[types.NamespacedName])(nil), Loop: (*reconcile.Controller[types.NamespacedName])(nil)}
	_ cache.DoneChecker                                = new(informer.Set).HasSyncedChecker()

	// All Run methods have the same signature.
	_ func(context.Context) error = (*reconcile.Controller[string])(nil).Run
	_ func(context.Context) error = (*informer.Set)(nil).Run
	_ func(context.Context) error = (*shutdown.Group)(nil).Run
)

// TestErrorMethods checks the three methods by which packages classify each other's
// errors.
func TestErrorMethods(t *testing.T) {
	root(t)
	store := consistency.New(consistency.Config{})
	key := types.NamespacedName{Name: "a"}
	if err := store.AddInformer(coordinationv1.Resource("leases"), cache.NewSharedIndexInformer(&cache.ListWatch{}, &coordinationv1.Lease{}, 0, nil)); err != nil {
		t.Fatal(err)
	}
	store.WroteAt(key, "", coordinationv1.Resource("leases"), "7")
	var stale controllerkit.StaleError
	if err := store.EnsureReady(key); !errors.As(err, &stale) || !stale.Stale() {
		t.Errorf("EnsureReady: %v, want an error with Stale() true", err)
	}
	var lost controllerkit.LostError
	if !errors.As(leader.ErrLost, &lost) || !lost.LeadershipLost() {
		t.Errorf("leader.ErrLost has no LeadershipLost() that is true")
	}

	// A write that a Guard has refused is no write with an unknown outcome.
	for name, guard := range map[string]func(http.RoundTripper) http.RoundTripper{"leader": leader.Guard, "shard": shard.Guard} {
		ctx := store.Begin(t.Context(), types.NamespacedName{Name: name})
		req := httptest.NewRequest(http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", strings.NewReader("{}")).WithContext(ctx)
		if resp, err := store.Wrap(guard(http.DefaultTransport)).RoundTrip(req); err == nil {
			resp.Body.Close()
			t.Errorf("%s.Guard sent a write", name)
		}
		if got := store.Ambiguous(types.NamespacedName{Name: name}); got != nil {
			t.Errorf("Ambiguous = %v after %s.Guard refused a write, want none", got, name)
		}
	}
}

// results also sends each result of a reconcile to seen.
type results struct {
	*metrics.Metrics
	seen chan string
}

func (r results) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	r.Metrics.ReconcileFinished(ctx, controller, result, took, latency)
	r.seen <- result
}

// TestResultsHaveSeries checks that metrics initializes exactly one series for each
// result of reconcile's table.
func TestResultsHaveSeries(t *testing.T) {
	root(t)
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.ReconcileWorkers("c", 1)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() != "controller_reconcile_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "result" {
					got = append(got, label.GetValue())
				}
			}
		}
	}
	results := controllerkit.Results()
	want := slices.Sorted(slices.Values(results[:]))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("results with a series:\ngot  %v\nwant %v", got, want)
	}
}

// TestLostLeaseCancelsReconcile checks the most important contract between leader and
// reconcile. If the Lease is lost, a running call is cancelled at once, even during a
// graceful stop. The next term continues with the same queue.
func TestLostLeaseCancelsReconcile(t *testing.T) {
	root(t)
	for _, tt := range []struct {
		name     string
		stopping bool // a graceful stop begins before the loss
	}{
		{name: "while leading"},
		{name: "while draining", stopping: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				var cut atomic.Bool // the API server is unreachable
				client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					if cut.Load() {
						return true, nil, apierrors.NewTimeoutError("cut", 0)
					}
					return false, nil, nil
				})
				elector := &leader.Elector{
					Leases: client.CoordinationV1().Leases("ns"), Namespace: "ns", Name: "lease",
					LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
					DrainTimeout: time.Minute,
				}
				q := queue.New(queue.Config[string]{})
				defer q.ShutDown()
				q.Add("a")
				started := make(chan struct{}, 8)
				cancelled := make(chan error, 8)
				c := &reconcile.Controller[string]{
					Name: "c", Queue: q, GracePeriod: time.Minute,
					Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
						started <- struct{}{}
						<-ctx.Done() // until cancelled
						cancelled <- context.Cause(ctx)
						return reconcile.Result{}, ctx.Err()
					},
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ran := make(chan error, 1)
				go func() { ran <- elector.Run(ctx, c.Run) }()
				<-started

				cut.Store(true)
				begin := time.Now()
				if tt.stopping {
					stop()
				}
				cause := <-cancelled
				var lost controllerkit.LostError
				if !errors.As(cause, &lost) {
					t.Errorf("the cause of the cancellation is %v, want the loss of leadership", cause)
				}
				if took := time.Since(begin); took > elector.RenewDeadline {
					t.Errorf("the call was cancelled %v after the last possible renewal, want at most %v", took, elector.RenewDeadline)
				}
				if !tt.stopping {
					cut.Store(false)
					<-started // the next term, the same key, the same queue
					stop()
				}
				<-ran
				if !tt.stopping {
					<-cancelled
				}
			})
		})
	}
}

// TestSharedMetrics checks that the packages share one registry.
func TestSharedMetrics(t *testing.T) {
	root(t)
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, err := metrics.New(registry)
		if err != nil {
			t.Fatal(err)
		}
		q := queue.New(queue.Config[string]{Name: "c", MetricsProvider: m})
		seen := make(chan string, 1)
		c := &reconcile.Controller[string]{
			Name: "c", Queue: q, Metrics: results{m, seen},
			Reconcile: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil },
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- c.Run(ctx) }()
		q.Add("a")
		if got := <-seen; got != "success" {
			t.Errorf("result = %q, want success", got)
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		q.ShutDown()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range families {
			names = append(names, f.GetName())
		}
		for _, want := range []string{"workqueue_adds_total", "controller_reconcile_total"} {
			if !slices.Contains(names, want) {
				t.Errorf("no %s in %s", want, strings.Join(names, " "))
			}
		}
	})
}
