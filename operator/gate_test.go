package operator

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// store is a cache at a version.
type store struct{ version atomic.Value }

func (s *store) LastStoreSyncResourceVersion() string { return s.version.Load().(string) }

// TestHeldKeyIsLogged proves OP6. A key that the caches hold back is logged once, and a
// key that was held back for less is not.
func TestHeldKeyIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &store{}
		pods.version.Store("5")
		g := &gate{held: map[types.NamespacedName]*hold{}, store: consistency.New(consistency.Config{
			MaxWait: -1,
			Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
				corev1.Resource("pods"): pods,
			},
		})}
		logs := testlog.New()
		ctx, stop := context.WithCancel(logs.Context(t.Context()))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.watch(ctx, "c")
		}()
		lines := func() []testlog.Line { return logs.Having("after") }

		slow, quick := types.NamespacedName{Namespace: "a", Name: "slow"}, types.NamespacedName{Namespace: "a", Name: "quick"}
		g.store.WroteAt(slow, "", corev1.Resource("pods"), "9")
		g.store.WroteAt(quick, "", corev1.Resource("pods"), "6")
		woken := make(chan types.NamespacedName, 10)
		for _, key := range []types.NamespacedName{slow, quick} {
			if g.Ready(key, func() { woken <- key }) {
				t.Fatalf("%v is ready", key)
			}
		}
		time.Sleep(9 * time.Second)
		pods.version.Store("6")
		if key := <-woken; key != quick {
			t.Fatalf("%v woke", key)
		}
		if !g.Ready(quick, func() {}) {
			t.Fatal("the quick key is not ready")
		}
		if n := len(lines()); n != 0 {
			t.Errorf("%d lines after 9s", n)
		}
		time.Sleep(time.Minute)
		got := lines()
		if len(got) != 1 {
			t.Fatalf("%d lines, want 1: %v", len(got), got)
		}
		if got[0].Values["key"] != slow || got[0].Values["controller"] != "c" {
			t.Errorf("the line names %v", got[0].Values)
		}
		if err := got[0].Err; err == nil || !strings.Contains(err.Error(), "pods") || !strings.Contains(err.Error(), "9") {
			t.Errorf("the line has the error %v, want the resource and the version", err)
		}

		// The next time that it is held it is logged again.
		pods.version.Store("9")
		<-woken
		if !g.Ready(slow, func() {}) {
			t.Fatal("the slow key is not ready")
		}
		g.store.WroteAt(slow, "", corev1.Resource("pods"), "12")
		if g.Ready(slow, func() { woken <- slow }) {
			t.Fatal("the slow key is ready")
		}
		time.Sleep(12 * time.Second)
		if n := len(lines()); n != 2 {
			t.Errorf("%d lines after the second hold, want 2", n)
		}
		pods.version.Store("12")
		<-woken
		stop()
		<-ended
	})
}

// TestNilPointers tests that a nil pointer in the loop gets the default of a nil.
func TestNilPointers(t *testing.T) {
	op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	c := op.Controller("c", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})
	c.owner = corev1.Resource("pods")
	q, m, g := (*queue.Queue[types.NamespacedName])(nil), (*metrics.Metrics)(nil), (*consistency.Store)(nil)
	c.Loop.Queue, c.Loop.Metrics, c.Loop.Gate = q, m, g
	c.prepare()
	if c.Loop.Queue == q || c.Loop.Metrics == m || c.Loop.Gate == g || c.gate == nil || len(op.errs) > 0 {
		t.Errorf("prepare kept a nil pointer: Queue %v, Metrics %v, Gate %v; errors %v", c.Loop.Queue, c.Loop.Metrics, c.Loop.Gate, op.errs)
	}
}

// registration is a handler's registration, which has the initial list when done is closed.
type registration struct {
	cache.ResourceEventHandlerRegistration
	done chan struct{}
}

func (r registration) HasSyncedChecker() cache.DoneChecker { return r }
func (r registration) Name() string                        { return "handler" }
func (r registration) Done() <-chan struct{}               { return r.done }

// TestInformersWaitForHandlers tests that the informers are ready only after each handler
// has the initial list: no key runs before.
func TestInformersWaitForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		for _, name := range []string{"first", "second"} {
			c := op.Controller(name, func(context.Context, types.NamespacedName) (reconcile.Result, error) {
				return reconcile.Result{}, nil
			})
			For(c, corev1.Resource("pods"), f.Core().V1().Pods())
		}
		second := registration{done: make(chan struct{})}
		op.sources[1].registration = second
		op.register()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- op.Informers.Run(ctx) }()
		synctest.Wait()
		if op.Informers.Ready() == nil {
			t.Error("the informers are ready before a handler has the initial list")
		}
		close(second.done)
		synctest.Wait()
		if err := op.Informers.Ready(); err != nil {
			t.Errorf("the informers are not ready: %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLoopTimes tests the times of a loop: the defaults, and the longest that fit.
func TestLoopTimes(t *testing.T) {
	const second = time.Second
	for _, tc := range []struct {
		name                   string
		grace, timeout         time.Duration
		wantGrace, wantTimeout time.Duration
	}{
		{name: "defaults", wantGrace: 20 * second, wantTimeout: 15 * second},
		{name: "the longest grace period", grace: 21 * second, wantGrace: 21 * second, wantTimeout: 15 * second},
		{name: "a call as long as the grace period", timeout: 20 * second, wantGrace: 20 * second, wantTimeout: 20 * second},
	} {
		op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		c := op.Controller("c", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})
		c.owner = corev1.Resource("pods")
		c.Loop.GracePeriod, c.Loop.Timeout = tc.grace, tc.timeout
		if c.prepare(); len(op.errs) > 0 {
			t.Errorf("%s: %v", tc.name, op.errs)
		}
		if c.Loop.GracePeriod != tc.wantGrace || c.Loop.Timeout != tc.wantTimeout {
			t.Errorf("%s: got GracePeriod %v and Timeout %v, want %v and %v", tc.name, c.Loop.GracePeriod, c.Loop.Timeout, tc.wantGrace, tc.wantTimeout)
		}
	}
}

// BenchmarkGate measures what the assembly adds to a call: its gate around the Store.
func BenchmarkGate(b *testing.B) {
	key := types.NamespacedName{Namespace: "a", Name: "b"}
	s := consistency.New(consistency.Config{})
	for _, bench := range []struct {
		name string
		gate interface {
			Begin(ctx context.Context, key types.NamespacedName) context.Context
			Ready(key types.NamespacedName, wake func()) bool
			End(key types.NamespacedName)
		}
	}{{"store", s}, {"operator", &gate{store: s, held: map[types.NamespacedName]*hold{}}}} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context()
			for b.Loop() {
				bench.gate.Ready(key, nil)
				bench.gate.Begin(ctx, key)
				bench.gate.End(key)
			}
		})
	}
}

// A call through the assembly makes no allocation more than through the Store alone.
func TestGateAllocations(t *testing.T) {
	key := types.NamespacedName{Namespace: "a", Name: "b"}
	s := consistency.New(consistency.Config{})
	g := &gate{store: s, held: map[types.NamespacedName]*hold{}}
	ctx := t.Context()
	alone := testing.AllocsPerRun(100, func() { s.Ready(key, nil); s.Begin(ctx, key); s.End(key) })
	assembled := testing.AllocsPerRun(100, func() { g.Ready(key, nil); g.Begin(ctx, key); g.End(key) })
	if assembled > alone {
		t.Errorf("%v allocations, want %v at most", assembled, alone)
	}
}

// run logs late keys of the operator's gate, and leaves the caller's gate alone.
func TestRunWatchesItsGate(t *testing.T) {
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			pods := &store{}
			pods.version.Store("5")
			s := consistency.New(consistency.Config{
				MaxWait: -1,
				Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{
					corev1.Resource("pods"): pods,
				},
			})
			key := types.NamespacedName{Namespace: "a", Name: "b"}
			s.WroteAt(key, "", corev1.Resource("pods"), "9")
			calls := make(chan types.NamespacedName, 1)
			c := &Controller{gate: &gate{store: s, held: map[types.NamespacedName]*hold{}}}
			c.Loop.Gate = c.gate
			if own {
				c.gate, c.Loop.Gate = nil, s
			}
			c.Loop.Name = "c"
			q := queue.New(queue.Config[types.NamespacedName]{})
			c.Loop.Queue = q
			c.Loop.Reconcile = func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
				calls <- key
				return reconcile.Result{}, nil
			}
			q.Add(key)
			logs := testlog.New()
			ctx, stop := context.WithCancel(logs.Context(t.Context()))
			ended := make(chan error, 1)
			go func() { ended <- c.run(ctx) }()
			time.Sleep(time.Minute)
			if n, want := len(logs.Having("after")), map[bool]int{true: 0, false: 1}[own]; n != want {
				t.Errorf("own gate %v: %d lines about late keys, want %d", own, n, want)
			}
			pods.version.Store("9")
			if got := <-calls; got != key {
				t.Errorf("own gate %v: called with %v", own, got)
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("own gate %v: run() = %v", own, err)
			}
			q.ShutDown()
		})
	}
}
