package status_test

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/status"
)

func ExamplePatch() {
	ctx := context.Background()
	obj := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "default", UID: "6f1c", Generation: 2, ResourceVersion: "1",
	}}
	client := fake.NewClientset(obj).PolicyV1().PodDisruptionBudgets("default")

	for range 2 {
		updated, err := status.Patch(ctx, client, obj, func(o *policyv1.PodDisruptionBudget) {
			o.Status.ObservedGeneration = o.Generation
			o.Status.CurrentHealthy = 3
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(updated.Status.CurrentHealthy, "written:", updated != obj)
		obj = updated
	}
	// Output:
	// 3 written: true
	// 3 written: false
}

func ExampleApply() {
	ctx := context.Background()
	obj := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "default", UID: "6f1c", Generation: 2, ResourceVersion: "1",
	}}
	client := fake.NewClientset(obj).PolicyV1().PodDisruptionBudgets("default")

	updated, err := status.Apply(ctx, "certificates", client, obj,
		policyac.PodDisruptionBudget(obj.Name, obj.Namespace),
		status.True("Certified", "Issued", "valid until May"))
	if err != nil {
		fmt.Println(err)
		return
	}
	c := updated.Status.Conditions[0]
	fmt.Println(c.Type, c.Status, c.ObservedGeneration)
	// Output:
	// Certified True 2
}

// The conditions of a Deployment have a type of their own.
func ExampleSetOf() {
	conditions := []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "Starting"}}
	err := status.SetOf(&conditions, 3, status.True("Available", "Running", "all servers are ready"))
	fmt.Println(err, conditions[0].Status, conditions[0].Reason)
	// Output: <nil> True Running
}
