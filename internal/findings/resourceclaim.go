package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/resourceclaim"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// claimsOfFinished is the name of an invariant. The claim of a Pod that has ended is the one that
// its status names.
const claimsOfFinished = "a Pod that has ended gets no claim"

// resourceClaims runs a Pod with a claim of a template to its end, and edits it then. Claims are
// not allocated, because no driver and no scheduler of devices runs.
func resourceClaims() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "resourceclaim",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			api := shared.Resource().V1()
			c, err := resourceclaim.NewController(klog.FromContext(ctx), kube, shared.Core().V1().Pods(), shared.Scheduling().V1beta1().PodGroups(), api.ResourceClaims(), api.ResourceClaimTemplates())
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 10) }}, err
		}),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create a template", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourcev1.ResourceClaimTemplate{
					ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
					Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
						{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
					}}}},
				}, metav1.CreateOptions{})
				return err
			}),
			step("create a Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: template("work", corev1.RestartPolicyNever).Spec}
				pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpu")}}
				_, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			}),
			step("end the Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return edit(ctx, kube, namespace, "work", world.Exit, string(corev1.PodSucceeded))
			}),
			step("edit the Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return edit(ctx, kube, namespace, "work", "note", "a")
			}),
		},
		Converged: func(s *controllertest.State) error {
			pod, err := as[corev1.Pod](s.Get("pods", "work"))
			if err != nil {
				return err
			}
			want := 0
			if pod != nil && pod.Status.Phase != corev1.PodSucceeded {
				want = 1
			}
			if claims := s.Objects("resourceclaims.resource.k8s.io"); len(claims) != want {
				return fmt.Errorf("%d claims, want %d", len(claims), want)
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{Name: claimsOfFinished, Check: func(s *controllertest.State) error {
			pod, err := as[corev1.Pod](s.Get("pods", "work"))
			if err != nil || pod == nil || pod.Status.Phase != corev1.PodSucceeded || len(pod.Status.ResourceClaimStatuses) == 0 {
				return err
			}
			for _, claim := range s.Objects("resourceclaims.resource.k8s.io") {
				if name := pod.Status.ResourceClaimStatuses[0].ResourceClaimName; name != nil && claim.GetName() != *name {
					return fmt.Errorf("the Pod has ended, and gets another claim")
				}
			}
			return nil
		}}},
		Accept: func(f controllertest.Finding, plan string) string {
			if plan == "" && f.Field == claimsOfFinished {
				return "it needs no fault"
			}
			return ""
		},
	}
}

// edit sets an annotation of a Pod.
func edit(ctx context.Context, kube kubernetes.Interface, namespace, name, annotation, value string) error {
	_, err := kube.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, value), metav1.PatchOptions{})
	return err
}
