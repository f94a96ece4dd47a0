package findings

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/replicaset"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// rollout rolls a Deployment out, scales it and rolls it back.
func rollout() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "deployment",
		Start: start(deploymentControllers),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("web", corev1.RestartPolicyAlways),
				}}, metav1.CreateOptions{})
				return err
			}),
			rolls("another image", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"another"}]}}}}`),
			rolls("scale to 3", `{"spec":{"replicas":3}}`),
			rolls("the first image", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"image"}]}}}}`),
		},
		Converged: func(s *controllertest.State) error {
			d, err := as[appsv1.Deployment](s.Get("deployments.apps", "web"))
			if err != nil || d == nil {
				return err
			}
			want, have := *d.Spec.Replicas, d.Status
			if have.ObservedGeneration != d.Generation || have.UpdatedReplicas != want || have.Replicas != want || have.AvailableReplicas != want || len(s.Objects("pods")) != int(want) {
				return fmt.Errorf("%d Pods, of which %d are updated and %d are available, want %d", len(s.Objects("pods")), have.UpdatedReplicas, have.AvailableReplicas, want)
			}
			for _, u := range s.Objects("pods") {
				pod, err := as[corev1.Pod](u)
				if err != nil || pod.Spec.Containers[0].Image != d.Spec.Template.Spec.Containers[0].Image {
					return fmt.Errorf("a Pod has the image %s: %w", pod.Spec.Containers[0].Image, err)
				}
			}
			return nil
		},
	}
}

func deploymentControllers(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
	apps, pods := shared.Apps().V1(), shared.Core().V1().Pods()
	d, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), pods, kube)
	if err != nil {
		return nil, err
	}
	r := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), pods, kube, replicaset.BurstReplicas)
	return []func(context.Context){func(ctx context.Context) { d.Run(ctx, 2) }, func(ctx context.Context) { r.Run(ctx, 2) }}, nil
}

// rolls is a step that patches the Deployment, a second after the patch before.
func rolls(name string, patches ...string) controllertest.Step {
	return step(name, func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
		for n, patch := range patches {
			if n > 0 {
				time.Sleep(time.Second)
			}
			if _, err := kube.AppsV1().Deployments(namespace).Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}
