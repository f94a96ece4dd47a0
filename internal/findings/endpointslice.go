package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/endpointslice"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// endpointSlices publishes a Pod, and then a person deletes the slice.
func endpointSlices() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "endpointslice",
		Setup: createNodes("node"),
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), shared.Discovery().V1().EndpointSlices(), 100, kube, 0)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, nil
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
			step("delete the slice", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			}),
		},
		Converged: func(s *controllertest.State) error {
			service, slices := s.Get("services", "web"), s.Objects("endpointslices.discovery.k8s.io")
			if service == nil {
				if len(slices) > 0 {
					return fmt.Errorf("%d slices of a deleted Service", len(slices))
				}
				return nil
			}
			ready := 0
			for _, u := range slices {
				slice, err := as[discoveryv1.EndpointSlice](u)
				if err != nil || len(slice.OwnerReferences) == 0 || slice.OwnerReferences[0].UID != service.GetUID() {
					return fmt.Errorf("the slice %s is not of this Service: %w", u.GetName(), err)
				}
				for _, endpoint := range slice.Endpoints {
					if *endpoint.Conditions.Ready {
						ready++
					}
				}
			}
			if ready != len(s.Objects("pods")) {
				return fmt.Errorf("%d endpoints, want %d", ready, len(s.Objects("pods")))
			}
			return nil
		},
	}
}
