package findings

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// recreate starts a Deployment with the strategy Recreate, and gives it another image.
func recreate() controllertest.Scenario {
	images := func(s *controllertest.State) (images map[string]bool, err error) {
		images = map[string]bool{}
		for _, u := range s.Objects("pods") {
			pod, err := as[corev1.Pod](u)
			if err != nil {
				return nil, err
			}
			if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
				images[pod.Spec.Containers[0].Image] = true
			}
		}
		return images, nil
	}
	return controllertest.Scenario{
		Name:  "recreate",
		Start: start(deploymentControllers),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create without a Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("web", corev1.RestartPolicyAlways),
					Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
				}}, metav1.CreateOptions{})
				return err
			}),
			rolls("scale to 1, and another image", `{"spec":{"replicas":1}}`, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"another"}]}}}}`),
		},
		Converged: func(s *controllertest.State) error {
			d, err := as[appsv1.Deployment](s.Get("deployments.apps", "web"))
			if err != nil || d == nil {
				return err
			}
			running, err := images(s)
			if err != nil {
				return err
			}
			want, have := *d.Spec.Replicas, d.Status
			if have.ObservedGeneration != d.Generation || have.UpdatedReplicas != want || have.AvailableReplicas != want || len(s.Objects("pods")) != int(want) || want > 0 && !running[d.Spec.Template.Spec.Containers[0].Image] {
				return fmt.Errorf("%d Pods of %v, of which %d are updated and %d are available, want %d", len(s.Objects("pods")), running, have.UpdatedReplicas, have.AvailableReplicas, want)
			}
			return nil
		},
		Mask: func(obj *unstructured.Unstructured) { // the controller may not see the Deployment between the two changes
			for _, name := range []string{"desired-replicas", "max-replicas"} {
				unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", "deployment.kubernetes.io/"+name)
			}
		},
		Invariants: []controllertest.Invariant{{Name: "one version", Check: func(s *controllertest.State) error {
			running, err := images(s)
			if err == nil && len(running) > 1 && s.Get("deployments.apps", "web") != nil {
				err = fmt.Errorf("Pods of two versions exist at the same time: %v", running)
			}
			return err
		}}},
	}
}
