package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// Run is for programs that do something else with what is found than to fail a
// test. Here the greeter is explored without the answers that the API server gives
// to those who may not, or ask for nonsense.
func ExampleRun() {
	faults := slices.DeleteFunc(controllertest.AllFaults(), func(k controllertest.Kind) bool {
		return k == controllertest.Forbidden || k == controllertest.Invalid
	})
	report, err := controllertest.Run(context.Background(), controllertest.Scenario{
		Name: "greeter",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			return runGreeter(ctx, cfg, env.Namespace)
		},
		Script: []controllertest.Step{{Name: "create a name", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			name := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "gopher"}}
			_, err = client.CoreV1().ConfigMaps(env.Namespace).Create(ctx, name, metav1.CreateOptions{})
			return err
		}}},
		Converged: func(s *controllertest.State) error {
			if (s.Get("configmaps", "gopher") == nil) != (s.Get("configmaps", "gopher-greeting") == nil) {
				return errors.New("a greeting is missing, or left")
			}
			return nil
		},
	}, controllertest.Options{Faults: faults})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("operations:", report.Operations)
	fmt.Println("failing plans:", len(report.Failures))
	// Output:
	// operations: [create configmaps gopher-greeting#1]
	// failing plans: 0
}
