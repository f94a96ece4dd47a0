package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"

	"github.com/controllerkit/controllerkit/controllertest"
)

// claimProtection deletes a claim that a Pod uses, and then the Pod.
func claimProtection() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "pvcprotection",
		Setup: createNodes("node"),
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), kube)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, err
		}),
		Script: []controllertest.Step{
			step("create a claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createClaim(ctx, kube, namespace, "data")
			}),
			step("create a Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				claim, err := kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, "data", metav1.GetOptions{})
				if err == nil && claim.DeletionTimestamp != nil {
					err = fmt.Errorf("the claim is being deleted, so that no scheduler binds the Pod")
				}
				if err != nil {
					return err
				}
				pod := podOn("node", "work")
				pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
				_, err = kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			}),
			step("delete the claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, "data", metav1.DeleteOptions{})
			}),
			step("delete the Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().Pods(namespace).Delete(ctx, "work", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			}),
			step("create the claim again", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createClaim(ctx, kube, namespace, "data")
			}),
		},
		Converged: func(s *controllertest.State) error {
			claim, pod := s.Get("persistentvolumeclaims", "data"), s.Get("pods", "work")
			if claim != nil && pod == nil && claim.GetDeletionTimestamp() != nil {
				return fmt.Errorf("a deleted claim that no Pod uses is left")
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{Name: "a used claim stays", Check: func(s *controllertest.State) error {
			if s.Get("pods", "work") != nil && s.Get("persistentvolumeclaims", "data") == nil {
				return fmt.Errorf("the claim of a Pod is gone")
			}
			return nil
		}}},
	}
}

// createClaim creates a claim of a class that no provisioner serves.
func createClaim(ctx context.Context, kube kubernetes.Interface, namespace, name string) error {
	_, err := kube.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec()}, metav1.CreateOptions{})
	return err
}

// manual is the name of a class of volumes that a person creates.
const manual = "manual"

func claimSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: new(manual), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}
