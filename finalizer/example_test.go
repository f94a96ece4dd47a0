package finalizer_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/finalizer"
)

// createBucket stands for work outside the cluster. It takes a Held, so it cannot
// be called before the finalizer is stored.
func createBucket(held finalizer.Held[*corev1.ConfigMap]) {
	fmt.Println("create bucket for", held.Object().Name)
}

func ExampleEnsure() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "photos", Namespace: "default", UID: "1"}}
	client := fake.NewClientset(obj).CoreV1().ConfigMaps("default")

	reconcile := func(obj *corev1.ConfigMap) error {
		held, live, err := finalizer.Ensure(ctx, client, obj, "example.com/bucket",
			func(_ context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
				fmt.Println("delete bucket of", held.Object().Name)
				return nil
			})
		if err != nil || !live {
			return err
		}
		createBucket(held)
		return nil
	}

	fmt.Println(reconcile(obj))
	obj, _ = client.Get(ctx, "photos", metav1.GetOptions{})
	fmt.Println(obj.Finalizers)

	obj.DeletionTimestamp = &metav1.Time{Time: epoch} // somebody deletes it
	fmt.Println(reconcile(obj))
	obj, _ = client.Get(ctx, "photos", metav1.GetOptions{})
	fmt.Println(obj.Finalizers)
	// Output:
	// create bucket for photos
	// <nil>
	// [example.com/bucket]
	// delete bucket of photos
	// <nil>
	// []
}

func ExampleAdd() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "photos", Namespace: "default", UID: "1"}}
	client := fake.NewClientset(obj).CoreV1().ConfigMaps("default")

	held, err := finalizer.Add(ctx, client, obj, "example.com/bucket")
	switch {
	case apierrors.IsConflict(err):
		fmt.Println("the copy is stale: read it again")
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println(held.Object().Finalizers)
	}
	// Output: [example.com/bucket]
}

func ExampleRemove() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "photos", Namespace: "default", UID: "1",
		Finalizers: []string{"example.com/bucket", "example.org/audit"},
	}}
	client := fake.NewClientset(obj).CoreV1().ConfigMaps("default")

	obj, err := finalizer.Remove(ctx, client, obj, "example.com/bucket")
	fmt.Println(obj.Finalizers, err)
	// Output: [example.org/audit] <nil>
}

func ExampleHas() {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"example.org/audit"}}}
	fmt.Println(finalizer.Has(obj, "example.org/audit"), finalizer.Has(obj, "example.com/bucket"))
	// Output: true false
}
