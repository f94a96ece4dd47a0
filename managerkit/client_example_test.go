package managerkit_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/managerkit"
)

// In a program, the arguments of NewClient are mgr.GetClient() and mgr.GetAPIReader(). In
// a unit test, a fake client is both.
func ExampleNewClient() {
	ctx := context.Background()
	cached := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "1"}}
	c := fake.NewClientBuilder().WithObjects(cached).Build()

	configMaps, err := managerkit.NewClient[*corev1.ConfigMap](c, struct{ client.Reader }{c})
	if err != nil {
		fmt.Println(err)
		return
	}
	held, live, err := finalizer.Ensure(ctx, configMaps.Namespace(cached.Namespace), cached, "example.com/bucket",
		func(context.Context, finalizer.Held[*corev1.ConfigMap]) error {
			return nil // delete the bucket
		})
	if err != nil || !live {
		fmt.Println(live, err)
		return
	}
	fmt.Println(held.Object().Finalizers)
	// Output: [example.com/bucket]
}

// The Go type of an unstructured object does not determine its kind.
func ExampleNewClientForKind() {
	c := fake.NewClientBuilder().Build()
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	configMaps, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, struct{ client.Reader }{c}, kind)
	if err != nil {
		fmt.Println(err)
		return
	}
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
	created, err := configMaps.Namespace("default").Create(context.Background(), obj, metav1.CreateOptions{})
	fmt.Println(created.GetKind(), created.GetNamespace(), created.GetName(), err)
	// Output: ConfigMap default a <nil>
}

// A reconciler that was written for r.Status().Update changes the object in place.
func ExampleUpdateStatus() {
	ctx := context.Background()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "1"}}
	c := fake.NewClientBuilder().WithObjects(pod).WithStatusSubresource(pod).Build() // mgr.GetClient()
	pods, err := managerkit.NewClient[*corev1.Pod](c, struct{ client.Reader }{c})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		before := pod.ResourceVersion
		pod.Status.Message = "running"
		if err := managerkit.UpdateStatus(ctx, pods, pod); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(pod.Status.Message, pod.ResourceVersion != before)
	}
	// Output:
	// running true
	// running false
}
