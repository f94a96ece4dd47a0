package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestHeldKeyIsLogged tests that the gate of an assembled controller explains to the loop
// what a key waits for: after 10s one log line names the awaited resource and version.
func TestHeldKeyIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		calls := make(chan types.NamespacedName, 1)
		c := op.Controller("c", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			calls <- key
			return reconcile.Result{}, nil
		})
		f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		For(c, corev1.Resource("pods"), f.Core().V1().Pods())
		c.prepare()
		c.Loop.HasSynced = nil
		key := types.NamespacedName{Namespace: "a", Name: "b"}
		c.writes.WroteAt(key, "", corev1.Resource("pods"), "9") // the cache of pods has no version
		c.Loop.Queue.Add(key)
		logs := testlog.New()
		ctx, stop := context.WithCancel(logs.Context(t.Context()))
		ended := make(chan error, 2)
		go func() { f.Core().V1().Pods().Informer().RunWithContext(ctx); ended <- nil }()
		go func() { ended <- op.reconcile(ctx) }()
		time.Sleep(time.Minute)
		if len(calls) > 0 {
			t.Error("the key ran")
		}
		got := logs.Having("after")
		if len(got) != 1 {
			t.Fatalf("%d lines, want 1: %v", len(got), got)
		}
		if got[0].Values["key"] != key || got[0].Values["controller"] != "c" {
			t.Errorf("the line names %v", got[0].Values)
		}
		if err := got[0].Err; err == nil || !strings.Contains(err.Error(), "pods") || !strings.Contains(err.Error(), "9") {
			t.Errorf("the line has the error %v, want the resource and the version", err)
		}
		c.writes.Clear(key, "")
		if got := <-calls; got != key {
			t.Errorf("called with %v", got)
		}
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Errorf("reconcile() = %v", err)
		}
		c.Loop.Queue.ShutDown()
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
	if c.Loop.Queue == q || c.Loop.Metrics == m || c.Loop.Gate == g || c.writes == nil || len(op.errs) > 0 {
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
		op.sources[0].Handlers[1] = second
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

// TestHandlersPanic: a function that panics for an object does not end the process, and
// other objects get their keys.
func TestHandlersPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		logs := testlog.New()
		ctx, stop := context.WithCancel(logs.Context(t.Context()))
		op.logger = klog.FromContext(ctx)
		f := informers.NewSharedInformerFactory(fake.NewClientset(
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "bad"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "good"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "refused"}},
		), 0)
		calls := make(chan string, 10)
		c := op.Controller("c", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			calls <- key.Name
			return reconcile.Result{}, nil
		})
		Watches(c, corev1.Resource("pods"), f.Core().V1().Pods(), func(p *corev1.Pod) []types.NamespacedName {
			if p.Name == "bad" {
				panic("no keys")
			}
			return []types.NamespacedName{{Name: p.Name}}
		}, func(e enqueue.Event[*corev1.Pod]) bool {
			if e.New.Name == "refused" {
				panic("no predicate")
			}
			return true
		})
		c.prepare()
		op.register()
		ended := make(chan error, 2)
		go func() { ended <- op.reconcile(ctx) }()
		go func() { ended <- op.Informers.Run(ctx) }()
		<-op.Informers.HasSyncedChecker().Done()
		synctest.Wait()
		if n := len(calls); n != 1 || <-calls != "good" {
			t.Errorf("%d calls, want the one of the good Pod", n)
		}
		lines := logs.Having("stack")
		if len(lines) == 0 {
			t.Fatal("no panic was logged")
		}
		if got := lines[0]; got.Values["controller"] != "c" || fmt.Sprint(got.Values["resource"]) != "pods" || !strings.Contains(got.Err.Error(), "panic: no ") {
			t.Errorf("the line has %v and %v", got.Values, got.Err)
		}
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		c.Loop.Queue.ShutDown()
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
