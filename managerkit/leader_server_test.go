package managerkit_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
)

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2].Round(time.Millisecond)
}

// handOvers measures the times from the stop of the leading manager to the start of the
// next one's work, n times.
func handOvers(t *testing.T, n int, ns string, options func() manager.Options) []time.Duration {
	t.Helper()
	type start struct {
		name int
		at   time.Time
	}
	starts := make(chan start, 100)
	var working atomic.Int32
	replica := func(name int) *started {
		standing := make(chan struct{})
		o := options()
		mgr, err := manager.New(testserver.Config(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			starts <- start{name, time.Now()}
			if working.Add(1) > 1 {
				t.Error("two managers work at once")
			}
			<-ctx.Done()
			working.Add(-1)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		if err := mgr.Add(always(func(ctx context.Context) error {
			close(standing)
			<-ctx.Done()
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		s := begin(t, mgr.Start)
		await(t, standing, "start of a standby")
		return s
	}
	leases := leasesOf(t, testserver.Config(t), ns)
	replicas := map[int]*started{0: replica(0)}
	leads := await(t, starts, "first leader").name
	var took []time.Duration
	for i := 1; i <= n; i++ {
		seen := followLease(t, ns)
		replicas[i] = replica(i)
		await(t, seen, "event of the Lease") // the watch of a standby is about as old as this one
		before := holderOf(t, leases)
		stopped := time.Now()
		if err := replicas[leads].stop(t); err != nil {
			t.Errorf("Start() = %v, want nil", err)
		}
		if holder := holderOf(t, leases); holder == before {
			t.Errorf("the Lease is held by %q after its Start has returned", holder)
		}
		next := await(t, starts, "next leader")
		took = append(took, next.at.Sub(stopped))
		leads = next.name
	}
	replicas[leads].cancel()
	return took
}

// TestElectHandOver: a stop hands the Lease over by the watch event, because the next poll
// is minutes away. The plain manager waits for its poll.
//
// Proves MK6.
func TestElectHandOver(t *testing.T) {
	ns := testserver.Namespace(t)
	ours := handOvers(t, 10, ns, func() manager.Options {
		e := byWatch(t, ns)
		return elected(t, e)
	})
	ns = testserver.Namespace(t)
	theirs := handOvers(t, 3, ns, func() manager.Options { return plain(ns) })
	t.Logf("hand-over with Elect: median %v of %v", median(ours), ours)
	t.Logf("hand-over of the plain manager: median %v of %v", median(theirs), theirs)
}

// TestElectDrain: while the work outlasts the stop, the Lease is renewed and no other
// manager works.
//
// Proves MK7.
func TestElectDrain(t *testing.T) {
	ns := testserver.Namespace(t)
	elector := func() *leader.Elector {
		e := byWatch(t, ns)
		e.RetryPeriod = 100 * time.Millisecond
		return e
	}
	works, finish := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	a := startReplica(t, testserver.Config(t), elected(t, elector()), func(ctx context.Context) error {
		close(works)
		<-ctx.Done()
		<-finish
		ended.Store(true)
		return nil
	})
	await(t, works, "leader")
	next := make(chan bool, 1)
	b := startReplica(t, testserver.Config(t), elected(t, elector()), func(ctx context.Context) error {
		next <- ended.Load()
		<-ctx.Done()
		return nil
	})
	events := followLease(t, ns)
	holder := *await(t, events, "event of the Lease").Spec.HolderIdentity
	a.cancel()
	for range 10 {
		if got := *await(t, events, "renewal").Spec.HolderIdentity; got != holder {
			t.Fatalf("the Lease is held by %q while the work of %q runs", got, holder)
		}
	}
	close(finish)
	if err := a.wait(t); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
	if !await(t, next, "next leader") {
		t.Error("the next manager works before the work of the last has ended")
	}
	if err := b.stop(t); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
}

// slowCache is a cache that stops after the end of the test's channel.
type slowCache struct {
	cache.Cache
	stop <-chan struct{}
}

func (c slowCache) Start(ctx context.Context) error {
	err := c.Cache.Start(ctx)
	<-c.stop
	return err
}

// TestElectGraceExceeded: a Lease whose manager gave up waiting for its work is not
// released. The cache stops late, so that the manager cannot look as if it had stopped.
//
// Proves MK7.
func TestElectGraceExceeded(t *testing.T) {
	ns := testserver.Namespace(t)
	works, finish := make(chan struct{}), make(chan struct{})
	options := quiet()
	options.GracefulShutdownTimeout = ptr.To(50 * time.Millisecond)
	options.NewCache = func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		c, err := cache.New(config, opts)
		return slowCache{c, finish}, err
	}
	if err := managerkit.Elect(&options, byWatch(t, ns)); err != nil {
		t.Fatal(err)
	}
	a := startReplica(t, testserver.Config(t), options, func(context.Context) error {
		close(works)
		<-finish
		return nil
	})
	await(t, works, "leader")
	leases := leasesOf(t, testserver.Config(t), ns)
	holder := holderOf(t, leases)
	if err := a.stop(t); err == nil || !strings.Contains(err.Error(), "grace period") {
		t.Errorf("Start() = %v, want the error of the grace period", err)
	}
	if got := holderOf(t, leases); got != holder {
		t.Errorf("the Lease is held by %q while the work of %q runs", got, holder)
	}
	close(finish)
}

// TestElectLoss: another holder in the Lease ends the contexts of the reconciles with a cause
// that is LeadershipLost, and the manager with an error. The contexts have the term.
//
// Proves MK9.
func TestElectLoss(t *testing.T) {
	ns := testserver.Namespace(t)
	options := elected(t, byWatch(t, ns))
	options.Cache = settings(t, ns)
	mgr, err := manager.New(testserver.Config(t), options)
	if err != nil {
		t.Fatal(err)
	}
	reconciles := make(blocked, 1)
	if err := settingsController(mgr, reconciles); err != nil {
		t.Fatal(err)
	}
	a := begin(t, mgr.Start)
	ctx := await(t, reconciles, "reconcile")
	term, ok := leader.TermFrom(ctx)
	if !ok || term.Check(ctx) != nil {
		t.Errorf("term of a reconcile: %v, %v, %v", term, ok, term.Check(ctx))
	}
	if since, _ := calls.Since(ctx); since == "" {
		t.Error("package consistency does not learn which versions show the last leader's writes")
	}
	leases := leasesOf(t, testserver.Config(t), ns)
	take(t, leases, "intruder")
	if err := a.wait(t); err == nil || !strings.Contains(err.Error(), "leader election lost") {
		t.Errorf("Start() = %v, want that the election was lost", err)
	}
	await(t, ctx.Done(), "end of the reconcile's context")
	if !isLost(ctx) {
		t.Errorf("cause = %v, want one that is LeadershipLost", context.Cause(ctx))
	}
	if err := term.Check(ctx); !errors.Is(err, leader.ErrLost) {
		t.Errorf("Check() = %v after the loss, want ErrLost", err)
	}
	if got := holderOf(t, leases); got != "intruder" {
		t.Errorf("the Lease is held by %q, want the other holder", got)
	}
}

// TestElectContexts: the values of the caller's BaseContext stay, the term comes with
// leadership, and nothing else does.
func TestElectContexts(t *testing.T) {
	type key struct{}
	ns := testserver.Namespace(t)
	e := byWatch(t, ns)
	options := quiet()
	options.BaseContext = func() context.Context { return context.WithValue(context.Background(), key{}, "value") }
	if err := managerkit.Elect(&options, e); err != nil {
		t.Fatal(err)
	}
	if options.LeaderElectionID != electionName {
		t.Errorf("LeaderElectionID = %q, want the Elector's Name for the metrics", options.LeaderElectionID)
	}
	contexts := make(chan context.Context, 1)
	a := startReplica(t, testserver.Config(t), options, func(ctx context.Context) error {
		contexts <- ctx
		<-ctx.Done()
		return nil
	})
	ctx := await(t, contexts, "leader")
	if got := ctx.Value(key{}); got != "value" {
		t.Errorf("the value of BaseContext is %v", got)
	}
	if _, err := logr.FromContext(ctx); err == nil {
		t.Error("the context has the logger of the election")
	}
	if _, ok := leader.TermFrom(ctx); !ok {
		t.Error("the context has no term")
	}
	if err := a.stop(t); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
}

// TestElectStandbyStops: Start of a standby returns nil, and its Elector has ended.
func TestElectStandbyStops(t *testing.T) {
	ns := testserver.Namespace(t)
	leads := make(chan struct{}, 2)
	work := func(ctx context.Context) error {
		leads <- struct{}{}
		<-ctx.Done()
		return nil
	}
	a := startReplica(t, testserver.Config(t), elected(t, byWatch(t, ns)), work)
	await(t, leads, "leader")
	holder := holderOf(t, leasesOf(t, testserver.Config(t), ns))

	calls := make(chan string, 100)
	cfg := testserver.Config(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return leaseTransport(func(r *http.Request) (*http.Response, error) {
			calls <- r.Method
			return next.RoundTrip(r)
		})
	})
	e := byWatch(t, ns)
	e.Leases = leasesOf(t, cfg, ns)
	mgr, err := manager.New(testserver.Config(t), elected(t, e))
	if err != nil {
		t.Fatal(err)
	}
	contexts := make(chan context.Context, 1)
	if err := errors.Join(mgr.Add(manager.RunnableFunc(work)), mgr.Add(always(func(ctx context.Context) error {
		contexts <- ctx
		<-ctx.Done()
		return nil
	}))); err != nil {
		t.Fatal(err)
	}
	b := begin(t, mgr.Start)
	await(t, calls, "request of the standby")
	if term, ok := leader.TermFrom(await(t, contexts, "Runnable without election")); ok {
		t.Errorf("the context of a standby has the term %v", term)
	}
	if err := b.stop(t); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
	// A second Run at the same time would be an error.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Run(ctx, func(context.Context) error { return nil }); err != nil {
		t.Errorf("Run() = %v after the standby has stopped, want nil", err)
	}
	if got := holderOf(t, leasesOf(t, testserver.Config(t), ns)); got != holder || len(leads) > 0 {
		t.Errorf("the Lease is held by %q after a standby has stopped, want %q", got, holder)
	}
	if err := a.stop(t); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
}

// TestElectNoRights: the error of the Elector ends the manager.
func TestElectNoRights(t *testing.T) {
	ns := testserver.Namespace(t)
	cfg := testserver.Limited(t, ns, rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}})
	e := byWatch(t, ns)
	e.Leases, e.StartTimeout, e.RetryPeriod = leasesOf(t, cfg, ns), time.Second, 100*time.Millisecond
	a := startReplica(t, testserver.Config(t), elected(t, e), func(context.Context) error {
		t.Error("a manager works without the Lease")
		return nil
	})
	err := a.wait(t)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "managerkit: leader election: leader: no success within StartTimeout (1s): create leases.coordination.k8s.io "+ns+"/"+electionName) {
		t.Errorf("Start() = %v, want the error of the Elector", err)
	}
}

// TestElectBadElector: an Elector that cannot run ends the manager with its error.
func TestElectBadElector(t *testing.T) {
	a := startReplica(t, testserver.Config(t), elected(t, &leader.Elector{Namespace: "default", Name: electionName}), func(context.Context) error { return nil })
	if err := a.wait(t); err == nil || !strings.Contains(err.Error(), "leader: Leases is nil") {
		t.Errorf("Start() = %v, want the error of the Elector", err)
	}
}
