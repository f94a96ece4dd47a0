package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/devicetainteviction"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// gpuDriver is the name of a driver of devices.
const gpuDriver = "gpu.example.com"

// deviceTaints runs a Pod with a device that an administrator taints by a rule, and another one
// after the rule is gone, whose device the driver taints.
func deviceTaints() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "devicetainteviction",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			api := shared.Resource().V1()
			c := devicetainteviction.New(kube, shared.Core().V1().Pods(), api.ResourceClaims(), api.ResourceSlices(), api.DeviceTaintRules(), api.DeviceClasses(), "device-taint-eviction")
			return []func(context.Context){func(ctx context.Context) {
				if err := c.Run(ctx, 8); err != nil {
					klog.FromContext(ctx).Error(err, "devicetainteviction")
				}
			}}, nil
		}),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create a device", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-gpus"}, Spec: resourcev1.ResourceSliceSpec{
					Driver: gpuDriver, Pool: resourcev1.ResourcePool{Name: namespace, ResourceSliceCount: 1}, AllNodes: new(true), Devices: []resourcev1.Device{{Name: "gpu"}},
				}}, metav1.CreateOptions{})
				return err
			}),
			step("create a Pod", createWithDevice),
			step("create a rule", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.ResourceV1().DeviceTaintRules().Create(ctx, &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-broken"}, Spec: resourcev1.DeviceTaintRuleSpec{
					DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(gpuDriver), Pool: &namespace},
					Taint:          resourcev1.DeviceTaint{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoExecute},
				}}, metav1.CreateOptions{})
				return err
			}),
			step("delete the rule", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.ResourceV1().DeviceTaintRules().Delete(ctx, namespace+"-broken", metav1.DeleteOptions{})
			}),
			step("create the Pod again", createWithDevice),
			step("taint the device", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.ResourceV1().ResourceSlices().Patch(ctx, namespace+"-gpus", types.MergePatchType,
					[]byte(`{"spec":{"devices":[{"name":"gpu","taints":[{"key":"example.com/broken","effect":"NoExecute"}]}]}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			slice, err := as[resourcev1.ResourceSlice](s.Get("resourceslices.resource.k8s.io", s.Namespace()+"-gpus"))
			if err != nil {
				return err
			}
			rule, err := as[resourcev1.DeviceTaintRule](s.Get("devicetaintrules.resource.k8s.io", s.Namespace()+"-broken"))
			if err != nil {
				return err
			}
			if rule != nil && !meta.IsStatusConditionFalse(rule.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress) {
				return fmt.Errorf("the rule does not say that the eviction is at its end")
			}
			pod := s.Get("pods", "work")
			if pod != nil && s.Get("resourceclaims.resource.k8s.io", "gpu") != nil && (rule != nil || slice != nil && len(slice.Spec.Devices[0].Taints) > 0) {
				return fmt.Errorf("the Pod of a tainted device is left")
			}
			return nil
		},
	}
}

// createWithDevice creates the Pod work with the claim of a device, which it allocates, as a
// scheduler does. A former claim is replaced.
func createWithDevice(ctx context.Context, kube kubernetes.Interface, namespace string) error {
	claims := kube.ResourceV1().ResourceClaims(namespace)
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	claim, err := claims.Create(ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}},
	}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: template("work", corev1.RestartPolicyNever).Spec}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	pod, err = kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status = resourcev1.ResourceClaimStatus{
		Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: gpuDriver, Pool: namespace, Device: "gpu"},
		}}},
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}},
	}
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}
