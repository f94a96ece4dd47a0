package findings

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"

	"github.com/controllerkit/controllerkit/controllertest"
)

// volumes gives a volume to one of two claims, and after its deletion to the other one. The
// protection of volumes and of claims runs too.
func volumes() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "persistentvolume-binder",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			binder, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
				KubeClient: kube, SyncPeriod: 15 * time.Second, EnableDynamicProvisioning: true,
				VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(),
				ClassInformer: shared.Storage().V1().StorageClasses(), PodInformer: core.Pods(), NodeInformer: core.Nodes(),
			})
			if err != nil {
				return nil, err
			}
			ofVolumes, err := pvprotection.NewPVProtectionController(klog.FromContext(ctx), core.PersistentVolumes(), kube)
			if err != nil {
				return nil, err
			}
			ofClaims, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), kube)
			return []func(context.Context){
				binder.Run,
				func(ctx context.Context) { ofVolumes.Run(ctx, 1) },
				func(ctx context.Context) { ofClaims.Run(ctx, 1) },
			}, err
		}),
		Script: []controllertest.Step{
			step("create a volume", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-disk"}, Spec: corev1.PersistentVolumeSpec{
					StorageClassName: manual, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
					PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/disk"}},
				}}, metav1.CreateOptions{})
				return err
			}),
			step("create a claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createClaim(ctx, kube, namespace, "one")
			}),
			step("create another claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				volume, err := kube.CoreV1().PersistentVolumes().Get(ctx, namespace+"-disk", metav1.GetOptions{})
				if err == nil && volume.Spec.ClaimRef == nil {
					err = fmt.Errorf("the volume has no claim")
				}
				if err != nil {
					return err
				}
				return createClaim(ctx, kube, namespace, "two")
			}),
			step("delete the first claim", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, "one", metav1.DeleteOptions{})
			}),
			step("free the volume", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				volume, err := kube.CoreV1().PersistentVolumes().Get(ctx, namespace+"-disk", metav1.GetOptions{})
				if err == nil && volume.Status.Phase != corev1.VolumeReleased {
					err = fmt.Errorf("the volume is not released")
				}
				if err != nil {
					return err
				}
				_, err = kube.CoreV1().PersistentVolumes().Patch(ctx, namespace+"-disk", types.MergePatchType, []byte(`{"spec":{"claimRef":null}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: bound,
		Invariants: []controllertest.Invariant{{Name: "a volume has one claim", Check: func(s *controllertest.State) error {
			owner := ""
			for _, u := range s.Objects("persistentvolumeclaims") {
				claim, err := as[corev1.PersistentVolumeClaim](u)
				if err != nil {
					return err
				}
				if claim.Status.Phase == corev1.ClaimBound {
					if owner != "" {
						return fmt.Errorf("the claims %s and %s are bound to one volume", owner, claim.Name)
					}
					owner = claim.Name
				}
			}
			return nil
		}}},
	}
}

// bound is the Converged of volumes.
func bound(s *controllertest.State) error {
	volume, err := as[corev1.PersistentVolume](s.Get("persistentvolumes", s.Namespace()+"-disk"))
	if err != nil {
		return err
	}
	claims := map[types.UID]*corev1.PersistentVolumeClaim{}
	for _, u := range s.Objects("persistentvolumeclaims") {
		claim, err := as[corev1.PersistentVolumeClaim](u)
		if err != nil {
			return err
		}
		claims[claim.UID] = claim
		want := corev1.ClaimPending
		switch {
		case claim.DeletionTimestamp != nil:
			return fmt.Errorf("the deleted claim %s is left", claim.Name)
		case claim.Spec.VolumeName == "":
		case volume == nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID:
			want = corev1.ClaimLost
		default:
			want = corev1.ClaimBound
		}
		if claim.Status.Phase != want {
			return fmt.Errorf("the claim %s is %s, want %s", claim.Name, claim.Status.Phase, want)
		}
	}
	if volume == nil {
		return nil
	}
	want := corev1.VolumeAvailable
	switch ref := volume.Spec.ClaimRef; {
	case ref == nil && len(claims) > 0:
		return fmt.Errorf("the volume is free, and a claim waits")
	case ref != nil && claims[ref.UID] == nil:
		want = corev1.VolumeReleased
	case ref != nil:
		want = corev1.VolumeBound
		if claims[ref.UID].Spec.VolumeName != volume.Name {
			return fmt.Errorf("the claim %s does not name its volume", ref.Name)
		}
	}
	if volume.Status.Phase != want {
		return fmt.Errorf("the volume is %s, want %s", volume.Status.Phase, want)
	}
	if volume.DeletionTimestamp != nil && want != corev1.VolumeBound {
		return fmt.Errorf("the deleted volume is left")
	}
	return nil
}
