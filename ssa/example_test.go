package ssa_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

func ExampleApply() {
	client := fake.NewClientset().CoreV1().ConfigMaps("default")

	config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "red"})
	obj, err := ssa.Apply(context.Background(), "example.com/colors", client.Apply, config)
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
		obj, applied, err := ssa.ApplyChanged(ctx, "example.com/colors", client.Apply, config, live, applycorev1.ExtractConfigMap)
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
	if _, err := ssa.Apply(ctx, "example.com/colors", client.Apply, red); err != nil {
		fmt.Println(err)
		return
	}

	_, err := ssa.TryApply(ctx, "example.org/fashion", client.Apply, blue, nil)
	var conflict *ssa.ConflictError
	if errors.As(err, &conflict) {
		for _, c := range conflict.Conflicts {
			fmt.Println(c.Field, "belongs to", c.Manager)
		}
	}
	// Output: .data.color belongs to example.com/colors
}

func ExampleApply_status() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "cpu", Namespace: "default"},
	}).CoreV1().ResourceQuotas("default")

	config := applycorev1.ResourceQuota("cpu", "default").WithStatus(applycorev1.ResourceQuotaStatus().
		WithUsed(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}))
	obj, err := ssa.Apply(ctx, "example.com/meter", client.ApplyStatus, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obj.Status.Used.Cpu())
	// Output: 2
}

func ExampleTryApply_status() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "cpu", Namespace: "default"},
	}).CoreV1().ResourceQuotas("default")
	used := func(cpu string) *applycorev1.ResourceQuotaApplyConfiguration {
		return applycorev1.ResourceQuota("cpu", "default").WithStatus(applycorev1.ResourceQuotaStatus().
			WithUsed(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}))
	}
	if _, err := ssa.Apply(ctx, "example.com/meter", client.ApplyStatus, used("2")); err != nil {
		fmt.Println(err)
		return
	}

	_, err := ssa.TryApply(ctx, "example.org/meter", client.ApplyStatus, used("3"), nil)
	var conflict *ssa.ConflictError
	fmt.Println(errors.As(err, &conflict))
	// Output: true
}

func ExampleMemory() {
	ctx := context.Background()
	client := fake.NewClientset().CoreV1().ConfigMaps("default")

	// A field of the controller.
	var memory ssa.Memory[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration]

	var live *corev1.ConfigMap // from the lister
	for range 2 {
		config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "red"})
		obj, applied, err := memory.ApplyChanged(ctx, "example.com/colors", client.Apply, config, live, applycorev1.ExtractConfigMap)
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
}

func ExampleDynamic() {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	mapper := meta.NewDefaultRESTMapper(nil) // in a controller: restmapper.NewDeferredDiscoveryRESTMapper
	mapper.Add(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}, meta.RESTScopeNamespace)

	config := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1",
		"kind":       "Pain",
		"metadata":   map[string]any{"name": "one", "namespace": "default"},
	}}
	_, err := ssa.Apply(context.Background(), "example.com/colors", ssa.Dynamic(client, mapper), config)
	fmt.Println(err)
	// Output: ssa: apply as "example.com/colors": apiVersion and kind: find the resource of example.com/v1, Kind=Pain: no matches for kind "Pain" in version "example.com/v1"
}
