package ssa_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

func ExampleApply() {
	client := fake.NewClientset().CoreV1().ConfigMaps("default")

	config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "red"})
	obj, err := ssa.Apply(context.Background(), "example.com/colors", client, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obj.Data["color"], "owned by", obj.ManagedFields[0].Manager)
	// Output: red owned by example.com/colors
}

func ExampleApplyChanged() {
	ctx := context.Background()
	client := fake.NewClientset().CoreV1().ConfigMaps("default")

	var live *corev1.ConfigMap // in a controller: from the lister, nil if it has none
	for _, color := range []string{"red", "red", "blue"} {
		config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": color})
		obj, applied, err := ssa.ApplyChanged(ctx, "example.com/colors", client, config, live, applycorev1.ExtractConfigMap)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(obj.Data["color"], "applied:", applied)
		live = obj
	}
	// Output:
	// red applied: true
	// red applied: false
	// blue applied: true
}

func ExampleTryApply() {
	ctx := context.Background()
	client := fake.NewClientset().CoreV1().ConfigMaps("default")
	red := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "red"})
	blue := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "blue"})
	if _, err := ssa.Apply(ctx, "example.com/colors", client, red); err != nil {
		fmt.Println(err)
		return
	}

	_, err := ssa.TryApply(ctx, "example.org/fashion", client, blue)
	var conflict *ssa.ConflictError
	if errors.As(err, &conflict) {
		for _, c := range conflict.Conflicts {
			fmt.Println(c.Field, "belongs to", c.Manager)
		}
	}
	// Output: .data.color belongs to example.com/colors
}

func ExampleApplyStatus() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "cpu", Namespace: "default"},
	}).CoreV1().ResourceQuotas("default")

	config := applycorev1.ResourceQuota("cpu", "default").WithStatus(applycorev1.ResourceQuotaStatus().
		WithUsed(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}))
	obj, err := ssa.ApplyStatus(ctx, "example.com/meter", client, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obj.Status.Used.Cpu())
	// Output: 2
}

func ExampleTryApplyStatus() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "cpu", Namespace: "default"},
	}).CoreV1().ResourceQuotas("default")
	used := func(cpu string) *applycorev1.ResourceQuotaApplyConfiguration {
		return applycorev1.ResourceQuota("cpu", "default").WithStatus(applycorev1.ResourceQuotaStatus().
			WithUsed(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}))
	}
	if _, err := ssa.ApplyStatus(ctx, "example.com/meter", client, used("2")); err != nil {
		fmt.Println(err)
		return
	}

	_, err := ssa.TryApplyStatus(ctx, "example.org/meter", client, used("3"))
	var conflict *ssa.ConflictError
	fmt.Println(errors.As(err, &conflict))
	// Output: true
}
