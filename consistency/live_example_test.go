package consistency_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/consistency"
)

// A claim is deleted because the cache says that nobody uses it; meanwhile somebody does.
func ExampleConfirmLive() {
	ctx := context.Background()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "c0ffee", ResourceVersion: "7"}}
	client := fake.NewClientset(claim).CoreV1().PersistentVolumeClaims("default")

	remove := func(cached *corev1.PersistentVolumeClaim) error {
		live, err := consistency.ConfirmLive(ctx, client, cached)
		if err != nil {
			return err // the loop waits for the cache and calls again
		}
		return client.Delete(ctx, live.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion),
		}})
	}

	old := claim.DeepCopy()
	old.ResourceVersion = "6"
	err := remove(old)
	fmt.Println(errors.Is(err, consistency.ErrChanged), err)
	fmt.Println(remove(claim))
	// Output:
	// true consistency: confirm default/data live: the cached object is stale: the object changed from resource version 6 to 7
	// <nil>
}
