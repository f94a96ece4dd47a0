package controllertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestUndeclared: an operator that sends an undeclared request is found, also if only a fault
// leads to the request, and once, although each process of the run sends it.
func TestUndeclared(t *testing.T) {
	t.Parallel()
	var failed sync.Map // the namespaces of the runs whose patch failed, for all their processes
	const plan = "403@patch configmaps a metadata.annotations#1"
	s := controllertest.Scenario{
		Name:   "undeclared",
		Script: []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: func(s *controllertest.State) error {
			if a := s.Get("configmaps", "a"); a != nil && a.GetAnnotations()["noted"] == "" {
				return errors.New("not noted")
			}
			return nil
		},
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, err := operator.New(cfg, operator.Options{Name: "undeclared"})
			if err != nil {
				return err
			}
			kube := kubernetes.NewForConfigOrDie(op.Config)
			factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
			running, restart := context.WithCancel(ctx)
			defer restart()
			c := op.Controller("undeclared", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
				if key.Name != "a" {
					return reconcile.Result{}, nil
				}
				if _, ok := failed.Load(key.Namespace); ok {
					if _, err := kube.CoreV1().ServiceAccounts(key.Namespace).Get(ctx, "default", metav1.GetOptions{}); ignoreNotFound(err) != nil {
						return reconcile.Result{}, err
					}
				}
				_, err := kube.CoreV1().ConfigMaps(key.Namespace).Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"noted":"yes"}}}`), metav1.PatchOptions{})
				if apierrors.IsForbidden(err) {
					failed.Store(key.Namespace, true)
					restart()
				}
				return reconcile.Result{}, ignoreNotFound(err)
			})
			operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
			op.Writes(corev1.Resource("configmaps"), "patch")
			return op.Run(running)
		},
	}
	report := run(t, s, quick(t, plan))
	if len(report.Failures) != 1 || report.Failures[0].Plan != plan {
		t.Fatalf("the failures are %v, want one under %s", report.Failures, plan)
	}
	findings := report.Failures[0].Findings
	found := slices.IndexFunc(findings, func(f controllertest.Finding) bool {
		return f.Oracle == controllertest.Health && strings.Contains(f.Text, "a request that is not declared, get serviceaccounts, so the Role of Rules does not allow it: call Writes")
	})
	if found < 0 || len(findings) != 1 {
		t.Errorf("found %v, want the undeclared request once", findings)
	}
}
