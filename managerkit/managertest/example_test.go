package managertest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

// The scenario of a controller that copies ConfigMaps. A test passes it to
// controllertest.Explore.
func ExampleStart() {
	copies := reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil })
	scenario := controllertest.Scenario{
		Name: "copies",
		Start: managertest.Start(ctrl.Options{}, func(mgr ctrl.Manager, env *controllertest.Env) error {
			return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(copies)
		}),
		Converged: func(s *controllertest.State) error {
			if s.Get("configmaps", "original") != nil && s.Get("configmaps", "copy") == nil {
				return errors.New("the copy is missing")
			}
			return nil
		},
	}
	fmt.Println(scenario.Name)
	// Output: copies
}
