package controllertest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
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
		kind  controllertest.Kind
		needs bool // the second step fails if the first one is not finished
	}{
		{name: "a step that begins at any time", kind: controllertest.NextStep},
		{name: "a step that needs the one before", kind: controllertest.NextStep, needs: true},
		{name: "a step before a write", kind: controllertest.StepBefore},
		{name: "a step before a write that needs the one before", kind: controllertest.StepBefore, needs: true},
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
			o.Faults = []controllertest.Kind{test.kind, controllertest.Conflict}
			report := run(t, s, o)
			for _, f := range report.Failures {
				t.Error(f)
			}
			if early.Load() == 0 {
				t.Error("the step never began early")
			}
			if n := report.Kinds[test.kind].Plans; (n > 0) == test.needs || report.Valid != report.Plans {
				t.Errorf("%d of %d plans are valid, %d with an early step: %q", report.Valid, report.Plans, n, report.Invalid)
			}
		})
	}
}

// TestStepBefore: the user finishes the next steps before the operation is sent, and the process
// that sends it is behind its own write then.
func TestStepBefore(t *testing.T) {
	t.Parallel()
	for _, plan := range []string{"step-before@create configmaps b#1", "two-steps@create configmaps b#1"} {
		t.Run(plan, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			seen := map[string]string{} // by namespace: the size of a after the creation of b
			f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
				configMaps := f.kube.CoreV1().ConfigMaps(f.namespace)
				b := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: a.UID}}}}
				if _, err := configMaps.Create(ctx, b, metav1.CreateOptions{}); err != nil {
					return ignoreExists(err)
				}
				live, err := configMaps.Get(ctx, "a", metav1.GetOptions{})
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				seen[f.namespace] = live.Annotations["size"]
				return nil
			}}
			s := f.scenario()
			for _, size := range []string{"1", "2"} {
				s.Script = append(s.Script, controllertest.Step{Name: "size " + size, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					select {
					case <-time.After(300 * time.Millisecond): // a slow user
					case <-ctx.Done():
					}
					kube, err := kubernetes.NewForConfig(cfg)
					if err != nil {
						return err
					}
					_, err = kube.CoreV1().ConfigMaps(env.Namespace).Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"size":"`+size+`"}}}`), metav1.PatchOptions{})
					return err
				}})
			}
			s.Converged = copiedToB
			report := run(t, s, quick(t, plan))
			for _, f := range report.Failures {
				t.Error(f)
			}
			want := "1"
			if strings.HasPrefix(plan, string(controllertest.TwoSteps)) {
				want = "2"
			}
			mu.Lock()
			defer mu.Unlock()
			sizes := map[string]int{}
			for _, size := range seen {
				sizes[size]++
			}
			if report.Valid != 1 || sizes[want] != 1 || sizes[""] != 4 {
				t.Errorf("%d of %d plans are valid; the sizes right after the creation were %v, want %q once and none in the runs without faults", report.Valid, report.Plans, sizes, want)
			}
		})
	}
}
