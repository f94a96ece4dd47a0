package controllertest_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	var writes atomic.Int64
	s := controllertest.Scenario{
		Name:      "loop",
		Script:    []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: func(*controllertest.State) error { return nil },
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
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
	// Without the bound there would be thousands.
	if n := writes.Load(); n < 100 || n > 500 {
		t.Errorf("%d writes: the loop was not slowed down: %s", n, f)
	}
}
