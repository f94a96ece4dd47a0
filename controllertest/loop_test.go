package controllertest_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestSlowedLoop: a controller that makes itself run is found although the loop of
// package reconcile slows it down to 10 calls a second.
func TestSlowedLoop(t *testing.T) {
	t.Parallel()
	var starts, writes atomic.Int64
	begin := time.Now()
	s := controllertest.Scenario{
		Name:      "loop",
		Script:    []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: func(*controllertest.State) error { return nil },
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			starts.Add(1)
			kube, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			work := queue.New(queue.Config[types.NamespacedName]{})
			env.Queue(work)
			factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
			registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(enqueue.Handler(work, func(o metav1.Object) []types.NamespacedName {
				if o.GetName() != "a" {
					return nil
				}
				return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: o.GetName()}}
			}))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer factory.Shutdown()
			defer cancel()
			factory.StartWithContext(ctx)
			c := &reconcile.Controller[types.NamespacedName]{
				Name: "loop", Queue: work, HasSynced: []cache.DoneChecker{registration.HasSyncedChecker()},
				Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
					n := writes.Add(1)
					_, err := kube.CoreV1().ConfigMaps(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n), metav1.PatchOptions{})
					return reconcile.Result{}, ignoreNotFound(err)
				},
			}
			return c.Run(ctx)
		},
	}
	o := quick(t)
	o.ConvergeTimeout = 10 * time.Second
	report := run(t, s, o)
	if len(report.Failures) != 1 || report.Failures[0].Plan != "" {
		t.Fatalf("%d failures: %v", len(report.Failures), report)
	}
	f := report.Failures[0]
	if text := f.String(); f.Findings[0].Oracle != controllertest.Quiescence || !strings.Contains(text, "the last writes: patch configmaps a metadata.annotations#") || !regexp.MustCompile(`configmaps/\S+/a \.metadata\.annotations\.n was "\d+", then "\d+", then "\d+"`).MatchString(text) {
		t.Errorf("found %s", text)
	}
	// At most 100 calls at once, and then 10 a second.
	if n, most := writes.Load(), 101*starts.Load()+10*int64(time.Since(begin).Seconds()+1); n > most {
		t.Errorf("%d writes, want at most %d: the loop was not slowed down: %s", n, most, f)
	}
}

// TestGatedKey: a cluster is not at rest while a key waits for the gate of a loop. Here the
// gate opens 1.5s after a conflict, and Converged does not check the annotation that the key
// then writes.
//
// Proves X1.
func TestGatedKey(t *testing.T) {
	t.Parallel()
	s := controllertest.Scenario{
		Name:      "gated",
		Script:    []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: copiedToB,
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			kube, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			work := queue.New(queue.Config[types.NamespacedName]{})
			env.Queue(work)
			factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
			configMaps := factory.Core().V1().ConfigMaps()
			registration, err := configMaps.Informer().AddEventHandler(enqueue.Handler(work, func(o metav1.Object) []types.NamespacedName {
				if o.GetName() != "a" {
					return nil
				}
				return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: o.GetName()}}
			}))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer factory.Shutdown()
			defer cancel()
			factory.StartWithContext(ctx)
			gate := &slowGate{}
			c := &reconcile.Controller[types.NamespacedName]{
				Name: "gated", Queue: work, Gate: gate, HasSynced: []cache.DoneChecker{registration.HasSyncedChecker()},
				Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
					a, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
					if err == nil {
						err = copyAndNote(ctx, &following{kube: kube, env: env, namespace: env.Namespace}, a.DeepCopy())
					}
					gate.slow.Store(apierrors.IsConflict(err))
					return reconcile.Result{}, ignoreNotFound(err)
				},
			}
			return c.Run(ctx)
		},
	}
	o := quick(t, "409@update configmaps a metadata.annotations#1", "crash-after@update configmaps a metadata.annotations#1")
	o.ConvergeTimeout = time.Minute
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 2 || len(report.TooEarly) > 0 {
		t.Errorf("%d plans are valid, invalid %q; too early: %q", report.Valid, report.Invalid, report.TooEarly)
	}
}

// A slowGate opens 1.5s after a call that made it slow.
type slowGate struct{ slow atomic.Bool }

func (g *slowGate) Begin(ctx context.Context, _ types.NamespacedName) context.Context { return ctx }

func (g *slowGate) Ready(_ types.NamespacedName, wake func()) bool {
	if !g.slow.Swap(false) {
		return true
	}
	time.AfterFunc(1500*time.Millisecond, wake)
	return false
}

func (g *slowGate) End(types.NamespacedName) {}
