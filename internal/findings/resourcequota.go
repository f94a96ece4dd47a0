package findings

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/controllerkit/controllerkit/controllertest"
)

// quota raises a quota of Pods, and then fills it.
func quota() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "resourcequota",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			config, err := install.NewQuotaConfigurationForControllers(generic.ListerFuncForResourceFunc(shared.ForResource), shared)
			if err != nil {
				return nil, err
			}
			c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
				QuotaClient: kube.CoreV1(), ResourceQuotaInformer: shared.Core().V1().ResourceQuotas(), InformerFactory: shared, InformersStarted: closed(),
				ResyncPeriod: controller.StaticResyncPeriodFunc(5 * time.Minute), ReplenishmentResyncPeriod: controller.StaticResyncPeriodFunc(12 * time.Hour),
				Registry: generic.NewRegistry(config.Evaluators()), IgnoredResourcesFunc: config.IgnoredResources, UpdateFilter: install.DefaultUpdateFilter(),
				DiscoveryFunc: func() ([]*metav1.APIResourceList, error) { // only Pods, so that a run has few informers
					return []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"create", "list", "watch", "delete"}}}}}, nil
				},
			})
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, err
		}),
		UserObjects: []string{"resourcequotas/pods"}, // without a Pod another one fits
		Script: []controllertest.Step{
			step("create a quota of 2 Pods", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				spec := corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}}
				_, err := kube.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: spec}, metav1.CreateOptions{})
				return err
			}),
			step("create a Pod and raise the quota to 3", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := createPods(ctx, kube, namespace, "first"); err != nil {
					return err
				}
				time.Sleep(100 * time.Millisecond) // without faults the controller has seen the Pod
				_, err := kube.CoreV1().ResourceQuotas(namespace).Patch(ctx, "pods", types.MergePatchType, []byte(`{"spec":{"hard":{"pods":"3"}}}`), metav1.PatchOptions{})
				return err
			}),
			step("create Pods until the quota is full", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().ResourceQuotas(namespace).Get(ctx, "pods", metav1.GetOptions{})
				if err == nil {
					err = createPods(ctx, kube, namespace, "a", "b", "c", "d")
				}
				if apierrors.IsForbidden(err) {
					return nil
				}
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			q, err := as[corev1.ResourceQuota](s.Get("resourcequotas", "pods"))
			if err != nil || q == nil {
				return err
			}
			if want, have := q.Spec.Hard.Pods().Value(), q.Status.Hard.Pods().Value(); have != want || len(s.Objects("pods")) > int(want) {
				return fmt.Errorf("%d Pods, the quota is %d, and %d in its status", len(s.Objects("pods")), want, have)
			}
			return nil
		},
	}
}
