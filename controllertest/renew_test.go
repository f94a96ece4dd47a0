package controllertest

import (
	"context"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestRenew: an exploration that has its own server takes another one after a number of plans,
// with the same reference and the same preparation.
func TestRenew(t *testing.T) {
	testserver.Needed(t)
	if os.Getenv("USE_EXISTING_CLUSTER") == "true" {
		t.Skip("an existing cluster is not renewed")
	}
	bin, err := testserver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(ServerVariable, bin)
	var mu sync.Mutex
	runs, prepared := map[int]int{}, 0 // runs by server
	creates := func(name string) func(context.Context, *rest.Config, *Env) error {
		return func(ctx context.Context, cfg *rest.Config, env *Env) error {
			kube, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err = kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, object, metav1.CreateOptions{})
			return err
		}
	}
	s := Scenario{
		Start: func(ctx context.Context, cfg *rest.Config, env *Env) error {
			mu.Lock()
			runs[prepared]++
			mu.Unlock()
			_ = creates("b")(ctx, cfg, env) // with the fault of the plan
			<-ctx.Done()
			return nil
		},
		Script:    []Step{{Name: "create a", Do: creates("a")}},
		Converged: func(*State) error { return nil },
		Setup: func(context.Context, *rest.Config) error {
			mu.Lock()
			defer mu.Unlock()
			prepared++
			return nil
		},
	}
	plan := "slow@create configmaps b#1"
	report, err := Run(t.Context(), s, Options{Plans: []string{plan, plan, plan, plan, plan}, Parallel: 2, renewAfter: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 5 || !report.Complete {
		t.Errorf("%d valid plans of 5: %s", report.Valid, report)
	}
	if len(runs) != 3 || prepared != 3 {
		t.Errorf("the runs by server are %v, and %d servers were prepared, want 3", runs, prepared)
	}
}
