package ssa_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
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

type (
	deploymentConfig = applyappsv1.DeploymentApplyConfiguration
	deploymentMemory = ssa.Memory[*appsv1.Deployment, *deploymentConfig]
)

// noRequest is a client that must not be called.
type noRequest[T, C any] struct{ t testing.TB }

func (n noRequest[T, C]) Apply(context.Context, C, metav1.ApplyOptions) (T, error) {
	n.t.Fatal("a request")
	panic("unreachable")
}

// decisions calls f with the ways to decide that an apply of a Deployment of 8 KiB is
// not needed.
func decisions(t testing.TB, f func(name string, decide func())) {
	live, config := large(t)
	client := noRequest[*appsv1.Deployment, *deploymentConfig]{t: t}
	ctx := t.Context()
	check := func(_ *appsv1.Deployment, applied bool, err error) {
		if err != nil || applied {
			t.Fatalf("applied = %v, error %v", applied, err)
		}
	}
	check(ssa.ApplyChanged(ctx, manager, client.Apply, config, live, applyappsv1.ExtractDeployment)) // the first one asks extract
	f("no memory", func() {
		check(ssa.ApplyChanged(ctx, manager, client.Apply, config, live, applyappsv1.ExtractDeployment))
	})
	memory := &deploymentMemory{}
	f("memory", func() {
		check(memory.ApplyChanged(ctx, manager, client.Apply, config, live, applyappsv1.ExtractDeployment))
	})
}

// BenchmarkApplyChanged is the cost of an apply that was not needed, beside two things
// that tell how fast the machine is at the time.
func BenchmarkApplyChanged(b *testing.B) {
	live, _ := large(b)
	live.ManagedFields = nil
	text, err := json.Marshal(live)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("beside json.Valid", func(b *testing.B) {
		for b.Loop() {
			json.Valid(text)
		}
	})
	b.Run("beside sha256", func(b *testing.B) {
		for b.Loop() {
			sha256.Sum256(text)
		}
	})
	decisions(b, func(name string, decide func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				decide()
			}
		})
	})
}

// TestAllocations proves CK3.
func TestAllocations(t *testing.T) {
	decisions(t, func(name string, decide func()) {
		got := testing.AllocsPerRun(20, decide)
		t.Logf("%s: %.0f allocations", name, got)
		if got > 400 {
			t.Errorf("%s: %.0f allocations, want at most 400", name, got)
		}
	})
}

// large returns a Deployment of 8 KiB, without its managedFields, and what made it.
func large(t testing.TB) (*appsv1.Deployment, *deploymentConfig) {
	t.Helper()
	config := deployment("one", "default")
	for i := range config.Spec.Template.Spec.Containers {
		c := &config.Spec.Template.Spec.Containers[i]
		for j := range 36 {
			c.WithEnv(applycorev1.EnvVar().WithName(fmt.Sprintf("VARIABLE_%d", j)).WithValue(fmt.Sprintf("value-%d-of-the-environment-of-the-container", j)))
		}
		for j := range 4 {
			c.WithVolumeMounts(applycorev1.VolumeMount().WithName(fmt.Sprintf("volume-%d", j)).WithMountPath(fmt.Sprintf("/var/lib/volumes/%d", j)).WithReadOnly(true))
			c.WithPorts(applycorev1.ContainerPort().WithName(fmt.Sprintf("port-%d", j)).WithContainerPort(int32(8000 + j)).WithProtocol(corev1.ProtocolTCP))
		}
		c.WithArgs("--one=1", "--two=2", "--three=3", "--four=4")
	}
	for j := range 4 {
		config.Spec.Template.Spec.WithVolumes(applycorev1.Volume().WithName(fmt.Sprintf("volume-%d", j)).WithConfigMap(applycorev1.ConfigMapVolumeSource().WithName("configuration")))
	}
	for j := range 6 {
		config.WithAnnotations(map[string]string{fmt.Sprintf("example.com/annotation-%d", j): fmt.Sprintf("the value of annotation %d, which has some length", j)})
	}
	live, err := ssa.Apply(t.Context(), manager, fake.NewClientset().AppsV1().Deployments("default").Apply, config)
	if err != nil {
		t.Fatal(err)
	}
	live.UID, live.ResourceVersion = "a", "7"
	owned := len(live.ManagedFields[0].FieldsV1.GetRawString())
	bare := live.DeepCopy()
	bare.ManagedFields = nil
	b, err := json.Marshal(bare)
	if err != nil || len(b) < 8<<10 {
		t.Fatalf("%d bytes and %d of FieldsV1, error %v", len(b), owned, err)
	}
	return live, config
}

// deployment is a configuration with what usually makes trouble in a comparison:
// defaulted fields, keys of lists with a default, quantities in other words.
func deployment(name, namespace string) *deploymentConfig {
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
