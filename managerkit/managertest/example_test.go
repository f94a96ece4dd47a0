package managertest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/managerkit"
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

// The test of a reconciler with the fake client: objects have a uid, and the second result reads live.
func ExampleFake() {
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}}
	c, live := managertest.Fake(fake.NewClientBuilder(), settings)
	maps, err := managerkit.NewClient[*corev1.ConfigMap](c, live)
	if err != nil {
		fmt.Println(err)
		return
	}
	got, err := maps.Namespace("shop").Get(context.Background(), "settings", metav1.GetOptions{})
	fmt.Println(err, got.UID != "")
	// Output: <nil> true
}
