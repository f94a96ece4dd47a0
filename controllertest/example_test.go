package controllertest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// Run is for programs that do something else with what is found than to fail a
// test. Here the greeter crashes before and after each of its writes, and nothing else
// happens.
func ExampleRun() {
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
	}, controllertest.Options{Faults: []controllertest.Kind{controllertest.CrashBefore, controllertest.CrashAfter}})
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
