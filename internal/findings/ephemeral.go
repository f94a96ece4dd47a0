package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/volume/ephemeral"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// ephemeralVolumes runs a Pod with a volume of its own, and replaces it by one of the same name.
func ephemeralVolumes() controllertest.Scenario {
	create := func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: template("work", corev1.RestartPolicyAlways).Spec}
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claimSpec()},
		}}}}
		_, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
	return controllertest.Scenario{
		Name: "ephemeral-volume",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c, err := ephemeral.NewController(ctx, kube, core.Pods(), core.PersistentVolumeClaims())
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, err
		}),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create a Pod", create),
			step("replace the Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := kube.CoreV1().Pods(namespace).Delete(ctx, "work", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
					return err
				}
				return create(ctx, kube, namespace)
			}),
			step("delete the claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, "work-scratch", metav1.DeleteOptions{})
			}),
			step("replace the Pod again", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := kube.CoreV1().Pods(namespace).Delete(ctx, "work", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
					return err
				}
				return create(ctx, kube, namespace)
			}),
		},
		Converged: func(s *controllertest.State) error {
			pod, claim := s.Get("pods", "work"), s.Get("persistentvolumeclaims", "work-scratch")
			switch {
			case pod == nil && claim == nil:
				return nil
			case pod == nil:
				return fmt.Errorf("the claim of a deleted Pod is left")
			case claim == nil:
				return fmt.Errorf("the Pod has no claim")
			case !metav1.IsControlledBy(claim, pod):
				return fmt.Errorf("the claim is not of this Pod")
			}
			return nil
		},
	}
}
