package controllertest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestNextStep: the user begins the next step before the controller has finished, which
// holds nothing against a correct controller. A step that needs the outcome of the step
// before is left out.
//
// Proves X1.
func TestNextStep(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		needs bool // the second step fails if the first one is not finished
	}{
		{name: "a step that begins at any time"},
		{name: "a step that needs the one before", needs: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var early atomic.Int64
			f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
				b := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: a.UID}}}}
				switch _, err := f.kube.CoreV1().ConfigMaps(f.namespace).Create(ctx, b, metav1.CreateOptions{}); {
				case err == nil:
					select {
					case <-time.After(4 * time.Second): // longer than the user needs for a request
					case <-ctx.Done():
					}
				case !apierrors.IsAlreadyExists(err):
					return err
				}
				return f.annotate(ctx, a, "noted", "yes"+a.Annotations["size"])
			}}
			s := f.scenario()
			s.Script = append(s.Script, controllertest.Step{Name: "size 1", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				kube, err := kubernetes.NewForConfig(cfg)
				if err != nil {
					return err
				}
				configMaps := kube.CoreV1().ConfigMaps(env.Namespace)
				a, err := configMaps.Get(ctx, "a", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if a.Annotations["noted"] == "" {
					early.Add(1)
					if test.needs {
						return errors.New("a is not noted")
					}
				}
				_, err = configMaps.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"size":"1"}}}`), metav1.PatchOptions{})
				return err
			}})
			s.Converged = func(s *controllertest.State) error {
				if err := copiedToB(s); err != nil {
					return err
				}
				if a := s.Get("configmaps", "a"); a != nil && a.GetAnnotations()["noted"] != "yes"+a.GetAnnotations()["size"] {
					return errors.New("a is not noted")
				}
				return nil
			}
			o := quick(t)
			o.Faults = []controllertest.Kind{controllertest.NextStep, controllertest.Conflict}
			report := run(t, s, o)
			for _, f := range report.Failures {
				t.Error(f)
			}
			if early.Load() == 0 {
				t.Error("the step never began early")
			}
			if n := report.Kinds[controllertest.NextStep].Plans; (n > 0) == test.needs || report.Valid != report.Plans {
				t.Errorf("%d of %d plans are valid, %d with an early step: %q", report.Valid, report.Plans, n, report.Invalid)
			}
		})
	}
}
