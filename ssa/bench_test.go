package ssa_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

type noRequest[T, C any] struct{ b *testing.B }

func (n noRequest[T, C]) Apply(context.Context, C, metav1.ApplyOptions) (T, error) {
	n.b.Fatal("a request")
	panic("unreachable")
}

// BenchmarkApplyChangedUnchanged is the cost of an apply that was not needed: the
// extraction and the comparison, no request.
func BenchmarkApplyChangedUnchanged(b *testing.B) {
	b.Run("ConfigMap", func(b *testing.B) {
		live, c := applied(b)
		client := noRequest[*corev1.ConfigMap, *config]{b: b}
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := ssa.ApplyChanged(b.Context(), manager, client, c, live, applycorev1.ExtractConfigMap); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Deployment", func(b *testing.B) {
		c := deployment("one", "default")
		live, err := ssa.Apply(b.Context(), manager, fake.NewClientset().AppsV1().Deployments("default"), c)
		if err != nil {
			b.Fatal(err)
		}
		client := noRequest[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]{b: b}
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := ssa.ApplyChanged(b.Context(), manager, client, c, live, applyappsv1.ExtractDeployment); err != nil {
				b.Fatal(err)
			}
		}
	})
	// What the comparison alone costs, without the generated extraction.
	b.Run("comparison of Deployment", func(b *testing.B) {
		c := deployment("one", "default")
		live, err := ssa.Apply(b.Context(), manager, fake.NewClientset().AppsV1().Deployments("default"), c)
		if err != nil {
			b.Fatal(err)
		}
		owned, err := applyappsv1.ExtractDeployment(live, string(manager))
		if err != nil {
			b.Fatal(err)
		}
		extract := func(*appsv1.Deployment, string) (*applyappsv1.DeploymentApplyConfiguration, error) { return owned, nil }
		client := noRequest[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]{b: b}
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := ssa.ApplyChanged(b.Context(), manager, client, c, live, extract); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// deployment is a configuration with what usually makes trouble in a comparison:
// defaulted fields, keys of lists with a default, quantities in other words.
func deployment(name, namespace string) *applyappsv1.DeploymentApplyConfiguration {
	labels := map[string]string{"app": name}
	var env []*applycorev1.EnvVarApplyConfiguration
	for i := range 10 {
		env = append(env, applycorev1.EnvVar().WithName(fmt.Sprintf("E%d", i)).WithValue("x"))
	}
	return applyappsv1.Deployment(name, namespace).WithLabels(labels).WithSpec(applyappsv1.DeploymentSpec().
		WithReplicas(2).
		WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().WithContainers(
			applycorev1.Container().WithName("main").WithImage("example.com/image:1").WithEnv(env...).
				WithPorts(applycorev1.ContainerPort().WithContainerPort(80)). // protocol is a key with a default
				WithResources(applycorev1.ResourceRequirements().WithRequests(corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("1000m"),
					corev1.ResourceMemory: resource.MustParse("1024Mi"),
				})),
			applycorev1.Container().WithName("side").WithImage("example.com/image:2").WithArgs("a", "b"),
		))))
}
