package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/finalizer"
)

// photos is an object that is being deleted.
func photos() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "photos", Namespace: "default", UID: "1", Generation: 2,
		Finalizers: []string{"example.com/bucket"}, DeletionTimestamp: &metav1.Time{Time: epoch},
	}}
}

// A cleanup of two steps: the children go first, the bucket that they use after
// them. Whatever the reconcile function returns is for package reconcile.
func ExamplePlan() {
	type result struct{ RequeueAfter time.Duration } // that of package reconcile
	ctx := context.Background()
	client := fake.NewClientset(photos(), child("thumbnails", "1")).CoreV1().ConfigMaps("default")
	files := 2

	plan := finalizer.Plan[*corev1.ConfigMap]{
		Client: client,
		Steps: []finalizer.Step[*corev1.ConfigMap]{
			{
				Name: "children",
				Run: func(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
					mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, held.Object()) }
					return finalizer.DeleteAll(ctx, client, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
				},
			},
			{
				Name:    "bucket",
				Timeout: 10 * time.Second,
				Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
					if files > 0 {
						files--
						return finalizer.Progress{After: 5 * time.Second, Message: "the bucket is not empty"}, nil
					}
					return finalizer.Progress{Done: true}, nil
				},
			},
		},
	}

	reconcile := func(obj *corev1.ConfigMap) (result, error) {
		_, live, err := finalizer.Ensure(ctx, client, obj, "example.com/bucket", plan.Run)
		if blocked, ok := errors.AsType[*finalizer.BlockedError](err); ok {
			condition := blocked.Condition(obj.Generation)
			fmt.Println(condition.Type, condition.Reason, condition.Message)
			return result{RequeueAfter: blocked.After}, blocked.Err
		}
		if err != nil || !live {
			return result{}, err
		}
		// the work on an object that is not being deleted
		return result{}, nil
	}

	for range 3 {
		fmt.Println(reconcile(photos()))
	}
	// Output:
	// Terminating StepWaiting not finished: step bucket: the bucket is not empty
	// {5s} <nil>
	// Terminating StepWaiting not finished: step bucket: the bucket is not empty
	// {5s} <nil>
	// {0s} <nil>
}

func ExamplePlan_Run() {
	ctx := context.Background()
	client := fake.NewClientset(photos()).CoreV1().ConfigMaps("default")
	plan := finalizer.Plan[*corev1.ConfigMap]{Client: client, Steps: []finalizer.Step[*corev1.ConfigMap]{{
		Name: "bucket",
		Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
			return finalizer.Progress{}, errors.New("access denied")
		},
	}}}
	_, _, err := finalizer.Ensure(ctx, client, photos(), "example.com/bucket", plan.Run)
	fmt.Println(err)
	// Output: finalizer example.com/bucket: cleanup: not finished: step bucket: access denied
}

func ExamplePlan_Validate() {
	plan := finalizer.Plan[*corev1.ConfigMap]{
		Client: fake.NewClientset().CoreV1().ConfigMaps("default"),
		Steps: []finalizer.Step[*corev1.ConfigMap]{{
			Name:  "bucket",
			After: []string{"children"},
			Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
				return finalizer.Progress{Done: true}, nil
			},
		}},
	}
	fmt.Println(plan.Validate())
	// Output: finalizer: Plan.Steps[0].After names "children", which is no step before bucket: declare it earlier
}

func ExampleBlockedError_Condition() {
	blocked := &finalizer.BlockedError{
		Since: epoch,
		Steps: []finalizer.BlockedStep{{Name: "children", Message: "2 left: thumbnails, videos"}},
	}
	c := blocked.Condition(2)
	fmt.Println(c.Type, c.Status, c.Reason, c.LastTransitionTime.UTC().Format(time.RFC3339))
	fmt.Println(c.Message)
	// Output:
	// Terminating True StepWaiting 2026-01-02T03:04:05Z
	// not finished: step children: 2 left: thumbnails, videos
}

func ExampleRemaining() {
	ctx := context.Background()
	client := fake.NewClientset(child("thumbnails", "1"), child("notes", "2")).CoreV1().ConfigMaps("default")
	mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, photos()) }

	left, err := finalizer.Remaining(ctx, client, metav1.ListOptions{}, mine)
	for _, child := range left {
		fmt.Println(child.GetName())
	}
	fmt.Println(err)
	// Output:
	// thumbnails
	// <nil>
}

func ExampleDelete() {
	ctx := context.Background()
	client := fake.NewClientset(child("thumbnails", "1")).CoreV1().ConfigMaps("default")

	for range 2 { // gone is gone
		fmt.Println(finalizer.Delete(ctx, client, child("thumbnails", "1"), metav1.DeletePropagationBackground))
	}
	fmt.Println(finalizer.Delete(ctx, client, child("thumbnails", "1"), ""))
	// Output:
	// <nil>
	// <nil>
	// finalizer: propagation is "": use Background, Foreground or Orphan
}

func ExampleDeleteAll() {
	ctx := context.Background()
	client := fake.NewClientset(child("thumbnails", "1"), child("videos", "1"), child("notes", "2")).CoreV1().ConfigMaps("default")
	mine := func(child metav1.Object) bool { return metav1.IsControlledBy(child, photos()) }

	progress, err := finalizer.DeleteAll(ctx, client, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
	fmt.Println(progress.Done, err)
	left, _ := client.List(ctx, metav1.ListOptions{})
	fmt.Println(len(left.Items), left.Items[0].Name)
	// Output:
	// true <nil>
	// 1 notes
}
