package world_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// runController is what the main function of the controller calls.
func runController(context.Context, *rest.Config, string) error { return nil }

// A controller of StatefulSets is explored while a Node goes down.
func Example() {
	test := func(t *testing.T) {
		controllertest.Explore(t, controllertest.Scenario{
			Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				return runController(ctx, cfg, env.Namespace)
			},
			World: world.Cluster{
				Nodes: []string{"x", "y"},
				Ready: func(p *corev1.Pod) bool { return p.Labels["image"] != "broken" },
			}.Run,
			Script: []controllertest.Step{
				{Name: "create", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}} // and its spec
					_, err := kubernetes.NewForConfigOrDie(cfg).AppsV1().StatefulSets(env.Namespace).Create(ctx, set, metav1.CreateOptions{})
					return err
				}},
				{Name: "x goes down", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					down := []byte(`{"metadata":{"annotations":{"` + world.Down + `":"true"}}}`)
					_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Nodes().Patch(ctx, world.NodeName(env, "x"), types.MergePatchType, down, metav1.PatchOptions{})
					return err
				}},
			},
			Converged: func(*controllertest.State) error { return nil },
		}, controllertest.Options{})
	}
	_ = test
	fmt.Println(world.NodeName(&controllertest.Env{Namespace: "run"}, "x"))
	// Output:
	// run-x
}

// The programs of others run beside it. All end with the first.
func ExampleTogether() {
	approver := func(ctx context.Context, _ *rest.Config, _ *controllertest.Env) error {
		<-ctx.Done() // until then it approves what the controller asks for
		fmt.Println("the approver has stopped")
		return nil
	}
	builder := func(context.Context, *rest.Config, *controllertest.Env) error {
		return errors.New("builder: no rights")
	}
	world := world.Together(approver, builder)
	fmt.Println(world(context.Background(), nil, &controllertest.Env{Namespace: "run"}))
	// Output:
	// the approver has stopped
	// builder: no rights
}
