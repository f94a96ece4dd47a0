package managerkit_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
)

// silence sets in the options what quiet sets.
func silence(options manager.Options) manager.Options {
	q := quiet()
	options.Logger, options.Metrics = q.Logger, q.Metrics
	return options
}

// TestRunSurvivesLoss: a loss ends the contexts of the reconciles with a cause that is
// LeadershipLost, and the next term has a new manager.
//
// Proves MK9.
func TestRunSurvivesLoss(t *testing.T) {
	ns := testserver.Namespace(t)
	reconciles := make(blocked, 1)
	cached := settings(t, ns)
	s := begin(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, byWatch(t, ns), func(options manager.Options) (manager.Manager, error) {
			options = silence(options)
			options.Cache = cached
			mgr, err := manager.New(testserver.Config(t), options)
			if err != nil {
				return nil, err
			}
			return mgr, settingsController(mgr, reconciles)
		})
	})
	leases := leasesOf(t, testserver.Config(t), ns)
	ctx := await(t, reconciles, "reconcile of the first term")
	first, ok := leader.TermFrom(ctx)
	if !ok || first.Check(ctx) != nil {
		t.Errorf("term of a reconcile: %v, %v", first, ok)
	}
	take(t, leases, "")
	await(t, ctx.Done(), "end of the reconcile's context")
	if !isLost(ctx) {
		t.Errorf("cause = %v, want one that is LeadershipLost", context.Cause(ctx))
	}

	ctx = await(t, reconciles, "reconcile of the second term")
	if second, _ := leader.TermFrom(ctx); second.Number <= first.Number {
		t.Errorf("term %v after %v", second, first)
	}
	if err := s.stop(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if isLost(ctx) {
		t.Errorf("cause = %v after a stop", context.Cause(ctx))
	}
	if got := holderOf(t, leases); got != "" {
		t.Errorf("the Lease is held by %q after Run has returned", got)
	}
}

// TestRunLossIsTheCause: the Runnables see the loss as the cause, although the manager stops
// too and cancels them without one. Without an order, about one loss of fifty had no cause.
//
// Proves MK9.
func TestRunLossIsTheCause(t *testing.T) {
	const losses = 150
	ns := testserver.Namespace(t)
	contexts := make(chan context.Context)
	s := begin(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, byWatch(t, ns), func(options manager.Options) (manager.Manager, error) {
			mgr, err := manager.New(testserver.Config(t), silence(options))
			if err != nil {
				return nil, err
			}
			return mgr, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				contexts <- ctx
				<-ctx.Done()
				return nil
			}))
		})
	})
	leases := leasesOf(t, testserver.Config(t), ns)
	for range losses {
		ctx := await(t, contexts, "term")
		take(t, leases, "")
		await(t, ctx.Done(), "end of the Runnable's context")
		if !isLost(ctx) {
			t.Fatalf("cause = %v, want one that is LeadershipLost", context.Cause(ctx))
		}
	}
	await(t, contexts, "last term")
	if err := s.stop(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestRunDrains: the Lease is held until the work of the manager has ended, without a
// GracefulShutdownTimeout.
//
// Proves MK7.
func TestRunDrains(t *testing.T) {
	ns := testserver.Namespace(t)
	e := byWatch(t, ns)
	e.RetryPeriod = 100 * time.Millisecond
	contexts, finish := make(chan context.Context), make(chan struct{})
	s := begin(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, e, func(options manager.Options) (manager.Manager, error) {
			if timeout := options.GracefulShutdownTimeout; timeout == nil || *timeout >= 0 {
				t.Errorf("GracefulShutdownTimeout = %v, want none", timeout)
			}
			mgr, err := manager.New(testserver.Config(t), silence(options))
			if err != nil {
				return nil, err
			}
			return mgr, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				contexts <- ctx
				<-ctx.Done()
				<-finish
				return nil
			}))
		})
	})
	ctx := await(t, contexts, "leader")
	events := followLease(t, ns)
	s.cancel()
	await(t, ctx.Done(), "end of the work's context")
	for range 5 {
		if got := *await(t, events, "renewal").Spec.HolderIdentity; got == "" {
			t.Fatal("the Lease is free while the work runs")
		}
	}
	term, _ := leader.TermFrom(ctx)
	if err := term.Check(ctx); err != nil {
		t.Errorf("Check() = %v while the work drains, want nil", err)
	}
	close(finish)
	if err := s.wait(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestRunFlat: goroutines, metric series, event handlers and requests do not grow with the
// number of terms.
//
// Proves MK10.
func TestRunFlat(t *testing.T) {
	ns := testserver.Namespace(t)
	var reads atomic.Int64 // of ConfigMaps
	cfg := testserver.Config(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return leaseTransport(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") {
				reads.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	cached := settings(t, ns)
	shared, err := cluster.New(cfg, func(o *cluster.Options) { o.Cache, o.Logger = cached, quiet().Logger })
	if err != nil {
		t.Fatal(err)
	}
	begin(t, shared.Start)

	var mgr manager.Manager
	reconciles := make(chan manager.Manager, 1)
	s := begin(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, byWatch(t, ns), func(options manager.Options) (manager.Manager, error) {
			if err := managerkit.Share(&options, shared); err != nil {
				return nil, err
			}
			var err error
			if mgr, err = manager.New(cfg, silence(options)); err != nil {
				return nil, err
			}
			mgr := mgr
			return mgr, settingsController(mgr, reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
				var settings corev1.ConfigMap
				if err := mgr.GetClient().Get(ctx, r.NamespacedName, &settings); err != nil {
					t.Errorf("Get of the shared client: %v", err)
				}
				reconciles <- mgr
				return reconcile.Result{}, nil
			}))
		})
	})

	leases := leasesOf(t, testserver.Config(t), ns)
	var last manager.Manager
	terms := func(n int) {
		for range n {
			if got := await(t, reconciles, "reconcile"); got == last {
				t.Fatal("a manager reconciled twice")
			} else {
				last = got
			}
			take(t, leases, "") // the Elector loses the Lease and acquires it again
		}
	}
	const some = 5
	// measure measures after some terms.
	measure := func() (goroutines, series int, heap uint64) {
		heap = math.MaxUint64
		for range some { // the least, because a term that begins or ends has some of its own
			terms(1)
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap = min(heap, m.HeapAlloc)
		}
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "rest_client_") { // the first request with another result adds series
				series += len(f.Metric)
			}
		}
		return runtime.NumGoroutine(), series, heap
	}
	goroutines, series, heap := measure()
	read := reads.Load()
	terms(100 - some)
	goroutinesAfter, seriesAfter, heapAfter := measure()
	t.Logf("after 5 and 105 terms: %d and %d goroutines, %d and %d series, %d and %d KiB", goroutines, goroutinesAfter, series, seriesAfter, heap>>10, heapAfter>>10)
	// A term that begins or ends has some goroutines of its own.
	if goroutinesAfter > goroutines+50 {
		t.Errorf("%d goroutines after 5 terms, %d after 105", goroutines, goroutinesAfter)
	}
	if seriesAfter != series {
		t.Errorf("%d metric series after 5 terms, %d after 105", series, seriesAfter)
	}
	if heapAfter > heap+2<<20 {
		t.Errorf("%d KiB after 5 terms, %d KiB after 105", heap>>10, heapAfter>>10)
	}
	if got := reads.Load(); got != read {
		t.Errorf("%d lists and watches after 5 terms, %d after 105", read, got)
	}
	await(t, reconciles, "last reconcile")
	if err := s.stop(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestRunStopsBeforeSync: a manager whose cache never fills stops.

func TestRunStopsBeforeSync(t *testing.T) {
	for _, test := range []struct {
		name       string
		lose, wrap bool
	}{{"stop", false, false}, {"loss", true, false}, {"loss, wrapped cache", true, true}} {
		t.Run(test.name, func(t *testing.T) {
			ns := testserver.Namespace(t)
			shared, err := cluster.New(testserver.Config(t)) // not started
			if err != nil {
				t.Fatal(err)
			}
			built := make(chan struct{}, 10)
			s := begin(t, func(ctx context.Context) error {
				return managerkit.Run(ctx, byWatch(t, ns), func(options manager.Options) (manager.Manager, error) {
					if err := managerkit.Share(&options, shared); err != nil {
						return nil, err
					}
					if inner := options.NewCache; test.wrap { // as package bridge does
						options.NewCache = func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
							c, err := inner(config, opts)
							return struct{ cache.Cache }{c}, err
						}
					}
					mgr, err := manager.New(testserver.Config(t), silence(options))
					if err != nil {
						return nil, err
					}
					built <- struct{}{}
					return mgr, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
						if ctx.Err() == nil {
							t.Error("a Runnable works before the cache is filled")
						}
						return nil
					}))
				})
			})
			await(t, built, "manager")
			if test.lose {
				take(t, leasesOf(t, testserver.Config(t), ns), "")
				await(t, built, "manager of the next term")
			}
			if err := s.stop(t); err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		})
	}
}

// TestRunRefuses: what newManager must not return ends Run with one error, and the Lease is
// released.
func TestRunRefuses(t *testing.T) {
	build := func(options manager.Options) (manager.Manager, error) {
		return manager.New(testserver.Config(t), silence(options))
	}
	running, err := manager.New(testserver.Config(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	begin(t, running.Start)
	await(t, running.Elected(), "start of a manager")
	type wrapped struct{ manager.Manager }
	for _, test := range []struct {
		name       string
		newManager func(manager.Options) (manager.Manager, error)
		want       string
	}{
		{"error", func(manager.Options) (manager.Manager, error) { return nil, errors.New("no scheme") }, "managerkit: newManager: no scheme"},
		{"nothing", func(manager.Options) (manager.Manager, error) { return nil, nil }, "managerkit: newManager returned no manager and no error"},
		{"typed nil", func(manager.Options) (manager.Manager, error) { return (*wrapped)(nil), nil }, "managerkit: newManager returned no manager and no error"},
		{"started", func(manager.Options) (manager.Manager, error) { return running, nil }, "managerkit: newManager returned a manager that was started already"},
		{"election", func(options manager.Options) (manager.Manager, error) {
			options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "own", "default"
			return build(options)
		}, "managerkit: LeaderElection of the manager is on"},
		{"other options", func(manager.Options) (manager.Manager, error) { return build(manager.Options{}) }, "managerkit: BaseContext of the manager has no term"},
		{"runnable", func(options manager.Options) (manager.Manager, error) {
			mgr, err := build(options)
			if err != nil {
				return nil, err
			}
			return mgr, mgr.Add(manager.RunnableFunc(func(context.Context) error { return errors.New("no disk") }))
		}, "no disk"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ns := testserver.Namespace(t)
			s := begin(t, func(ctx context.Context) error { return managerkit.Run(ctx, byWatch(t, ns), test.newManager) })
			if err := s.wait(t); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Run() = %v, want an error that begins with %q", err, test.want)
			}
			if got := holderOf(t, leasesOf(t, testserver.Config(t), ns)); got != "" {
				t.Errorf("the Lease is held by %q after Run has returned", got)
			}
		})
	}
}
