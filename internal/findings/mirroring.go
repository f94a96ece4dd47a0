package findings

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"

	"github.com/controllerkit/controllerkit/controllertest"
)

// mirroring mirrors the Endpoints of a Service without a selector, and then a person deletes the
// slice.
func mirroring() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "endpointslicemirroring",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c := endpointslicemirroring.NewController(ctx, core.Endpoints(), shared.Discovery().V1().EndpointSlices(), core.Services(), 1000, kube, 0)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		Mask: func(obj *unstructured.Unstructured) { // a slice that the controller has updated has none
			unstructured.RemoveNestedField(obj.Object, "metadata", "generateName")
		},
		Script: []controllertest.Step{
			step("create a Service", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
				_, err := kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
				return err
			}),
			step("create Endpoints", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				//lint:ignore SA1019 the controller mirrors them
				_, err := kube.CoreV1().Endpoints(namespace).Create(ctx, &corev1.Endpoints{
					ObjectMeta: metav1.ObjectMeta{Name: "web"},
					//lint:ignore SA1019 the controller mirrors them
					Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1"}}, Ports: []corev1.EndpointPort{{Port: 80}}}},
				}, metav1.CreateOptions{})
				return err
			}),
			step("another port", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().Endpoints(namespace).Patch(ctx, "web", types.MergePatchType,
					[]byte(`{"subsets":[{"addresses":[{"ip":"10.1.0.1"},{"ip":"10.1.0.2"}],"ports":[{"port":81}]}]}`), metav1.PatchOptions{})
				return err
			}),
			step("delete the slice", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			}),
		},
		Converged: func(s *controllertest.State) error {
			//lint:ignore SA1019 the controller mirrors them
			endpoints, err := as[corev1.Endpoints](s.Get("endpoints", "web"))
			if err != nil {
				return err
			}
			var have, want []string
			if endpoints != nil && s.Get("services", "web") != nil {
				for _, subset := range endpoints.Subsets {
					for _, address := range subset.Addresses {
						want = append(want, fmt.Sprintf("%s:%d", address.IP, subset.Ports[0].Port))
					}
				}
			}
			for _, u := range s.Objects("endpointslices.discovery.k8s.io") {
				slice, err := as[discoveryv1.EndpointSlice](u)
				if err != nil {
					return err
				}
				for _, endpoint := range slice.Endpoints {
					have = append(have, fmt.Sprintf("%s:%d", endpoint.Addresses[0], *slice.Ports[0].Port))
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, want) {
				return fmt.Errorf("the slices have the addresses %v, want %v", have, want)
			}
			return nil
		},
	}
}
