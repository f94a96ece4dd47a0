package findings

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"

	"github.com/controllerkit/controllerkit/controllertest"
)

// ofRun is a label with the namespace of a run.
const ofRun = "run"

// serviceCIDRs gives a Service an address of a ServiceCIDR, and deletes the ServiceCIDR after
// another one with the same addresses exists. The other one is deleted too, and must stay until
// the Service is gone.
func serviceCIDRs() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "servicecidr",
		Start: startWith(func(ctx context.Context, p process) ([]func(context.Context), error) {
			// Only the ServiceCIDRs of the run: all see the one of the API server.
			cidrs := informers.NewSharedInformerFactoryWithOptions(p.kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.LabelSelector = ofRun + "=" + p.namespace
			}))
			c := servicecidrs.NewController(ctx, cidrs.Networking().V1().ServiceCIDRs(), p.shared.Networking().V1().IPAddresses(), p.kube)
			return []func(context.Context){func(ctx context.Context) {
				defer cidrs.Shutdown()
				cidrs.StartWithContext(ctx)
				c.Run(ctx, 5)
			}}, nil
		}),
		Script: []controllertest.Step{
			step("create a ServiceCIDR", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createCIDR(ctx, kube, namespace, "one")
			}),
			step("create a Service", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: rangeOf(namespace) + ".7", Ports: []corev1.ServicePort{{Port: 80}}}}
				return repeat(ctx, func() error { // until the API server knows the ServiceCIDR
					_, err := kube.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
					return err
				}, apierrors.IsInvalid)
			}),
			step("create another ServiceCIDR", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createCIDR(ctx, kube, namespace, "two")
			}),
			step("delete the first one", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.NetworkingV1().ServiceCIDRs().Delete(ctx, namespace+"-one", metav1.DeleteOptions{})
			}),
			step("delete the other one", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.NetworkingV1().ServiceCIDRs().Delete(ctx, namespace+"-two", metav1.DeleteOptions{})
			}),
			step("delete the Service", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().Services(namespace).Delete(ctx, "web", metav1.DeleteOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			all, used := s.Objects("servicecidrs.networking.k8s.io"), s.Get("services", "web") != nil
			for _, u := range all {
				cidr, err := as[networkingv1.ServiceCIDR](u)
				if err != nil {
					return err
				}
				ready := meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
				switch {
				case !slices.Contains(cidr.Finalizers, servicecidrs.ServiceCIDRProtectionFinalizer):
					return fmt.Errorf("%s has no finalizer", cidr.Name)
				case cidr.DeletionTimestamp == nil && !ready:
					return fmt.Errorf("%s is not ready", cidr.Name)
				case cidr.DeletionTimestamp != nil && (!used || len(all) > 1):
					return fmt.Errorf("%s is deleted, its addresses are free or in another one, and it is left", cidr.Name)
				case cidr.DeletionTimestamp != nil && ready:
					return fmt.Errorf("%s is deleted and ready", cidr.Name)
				}
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{Name: "a used address is of a ServiceCIDR", Check: func(s *controllertest.State) error {
			if s.Get("services", "web") != nil && len(s.Objects("servicecidrs.networking.k8s.io")) == 0 {
				return fmt.Errorf("no ServiceCIDR has the address of the Service")
			}
			return nil
		}}},
	}
}

// rangeOf returns the first three numbers of the addresses of a run. Runs of the same range would
// share the allocator of the API server.
func rangeOf(namespace string) string {
	h := fnv.New32a()
	h.Write([]byte(namespace)) // which has no error
	return fmt.Sprintf("10.%d.%d", 128+h.Sum32()%127, h.Sum32()>>8%256)
}

func createCIDR(ctx context.Context, kube kubernetes.Interface, namespace, name string) error {
	_, err := kube.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name, Labels: map[string]string{ofRun: namespace}},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{rangeOf(namespace) + ".0/24"}},
	}, metav1.CreateOptions{})
	return err
}
