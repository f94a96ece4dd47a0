package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/endpoint"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// endpoints publishes a Pod, and then the user deletes the Service.
func endpoints() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "endpoints",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), kube, 0)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		World: world.Cluster{}.Run,
		Mask: func(obj *unstructured.Unstructured) { // the controller does not keep the time over a restart or a failed sync
			unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", corev1.EndpointsLastChangeTriggerTime)
		},
		Script: []controllertest.Step{
			step("create a Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}}, Spec: template("web", corev1.RestartPolicyAlways).Spec}
				_, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			}),
			step("create a Service", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
				_, err := kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
				return err
			}),
			step("delete the Service", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().Services(namespace).Delete(ctx, "web", metav1.DeleteOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			//lint:ignore SA1019 the controller writes it
			found, err := as[corev1.Endpoints](s.Get("endpoints", "web"))
			if err != nil {
				return err
			}
			if s.Get("services", "web") == nil {
				if found != nil {
					return fmt.Errorf("the Endpoints of a deleted Service are left")
				}
				return nil
			}
			ready := 0
			if found != nil {
				for _, subset := range found.Subsets {
					ready += len(subset.Addresses)
				}
			}
			if want := len(s.Objects("pods")); ready != want {
				return fmt.Errorf("%d addresses, want %d", ready, want)
			}
			return nil
		},
	}
}
