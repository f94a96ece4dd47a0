package findings

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/sample-controller/pkg/apis/samplecontroller/v1alpha1"
	"k8s.io/sample-controller/pkg/generated/clientset/versioned"
	typed "k8s.io/sample-controller/pkg/generated/clientset/versioned/typed/samplecontroller/v1alpha1"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// sampleProgram is the sample-controller, which is a program and no package.
const sampleProgram = "../../bin/sample-controller"

// sample runs the sample-controller with the controllers of its Deployment.
func sample() controllertest.Scenario {
	foos := func(name string, do func(context.Context, typed.FooInterface) error) controllertest.Step {
		return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			client, err := versioned.NewForConfig(cfg)
			if err != nil {
				return err
			}
			return do(ctx, client.SamplecontrollerV1alpha1().Foos(env.Namespace))
		}}
	}
	return controllertest.Scenario{
		Name: "sample-controller",
		Command: func(p controllertest.Process) (*exec.Cmd, error) {
			return exec.Command(sampleProgram, "-kubeconfig", p.Kubeconfig), nil
		},
		Setup: func(ctx context.Context, _ *rest.Config) error {
			out, err := exec.CommandContext(ctx, "go", "build", "-o", sampleProgram, "k8s.io/sample-controller").CombinedOutput()
			if err != nil {
				err = fmt.Errorf("go build k8s.io/sample-controller: %w\n%s", err, out)
			}
			return err
		},
		World: world.Together(world.Cluster{}.Run, start(deploymentControllers)),
		CRDs:  []string{filepath.Join(sourceOf(".", "k8s.io/sample-controller"), "artifacts", "examples", "crd-status-subresource.yaml")},
		Script: []controllertest.Step{
			foos("create", func(ctx context.Context, client typed.FooInterface) error {
				_, err := client.Create(ctx, &v1alpha1.Foo{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.FooSpec{DeploymentName: "web", Replicas: new(int32(1))}}, metav1.CreateOptions{})
				return err
			}),
			foos("scale to 2", func(ctx context.Context, client typed.FooInterface) error {
				_, err := client.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Accept: func(f controllertest.Finding, _ string) string {
			if f.Oracle == controllertest.Events && (strings.HasPrefix(f.Object, "replicasets.apps/") || strings.HasPrefix(f.Object, "pods/")) {
				return "it is of the Deployment controller, which takes the name of a former ReplicaSet for a collision"
			}
			return ""
		},
		Converged: func(s *controllertest.State) error {
			foo, err := as[v1alpha1.Foo](s.Get("foos.samplecontroller.k8s.io", "web"))
			if err != nil || foo == nil {
				return err
			}
			d, err := as[appsv1.Deployment](s.Get("deployments.apps", "web"))
			if err != nil {
				return err
			}
			if d == nil || !metav1.IsControlledBy(d, foo) || *d.Spec.Replicas != *foo.Spec.Replicas || d.Status.AvailableReplicas != *foo.Spec.Replicas || foo.Status.AvailableReplicas != *foo.Spec.Replicas {
				return fmt.Errorf("%d of %d replicas are available", foo.Status.AvailableReplicas, *foo.Spec.Replicas)
			}
			return nil
		},
	}
}
