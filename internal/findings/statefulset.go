package findings

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/statefulset"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// statefulSet scales a StatefulSet whose claims are deleted with their Pods.
func statefulSet() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "statefulset",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core, apps := shared.Core().V1(), shared.Apps().V1()
			c := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(), apps.ControllerRevisions(), kube)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, nil
		}),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create with 3 Pods", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				web := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
					Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Template: template("web", corev1.RestartPolicyAlways),
					VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
					}}},
					PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
						WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
					},
				}}
				_, err := kube.AppsV1().StatefulSets(namespace).Create(ctx, web, metav1.CreateOptions{})
				return err
			}),
			step("scale to 2", scale("web", 2)),
			step("scale to 3", scale("web", 3)),
		},
		Converged: func(s *controllertest.State) error {
			set, err := as[appsv1.StatefulSet](s.Get("statefulsets.apps", "web"))
			if err != nil || set == nil {
				return err
			}
			want := *set.Spec.Replicas
			switch pods, claims := len(s.Objects("pods")), len(s.Objects("persistentvolumeclaims")); {
			case pods != int(want) || set.Status.ReadyReplicas != want || set.Status.Replicas != want:
				return fmt.Errorf("%d Pods, of which %d are ready, want %d", pods, set.Status.ReadyReplicas, want)
			case claims != int(want):
				return fmt.Errorf("%d claims, want %d", claims, want)
			case set.Status.ObservedGeneration != set.Generation:
				return fmt.Errorf("the status is of generation %d, want %d", set.Status.ObservedGeneration, set.Generation)
			}
			return nil
		},
	}
}

// scale is the user's change of the number of replicas.
func scale(name string, replicas int) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
		_, err := kube.AppsV1().StatefulSets(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}
