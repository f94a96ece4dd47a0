package kstatus_test

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/status/kstatus"
)

func ExampleOf() {
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Generation: 3},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2))},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 1},
	}
	fmt.Println(kstatus.Of(deployment))

	deployment.Generation = 4 // by a change of the spec
	fmt.Println(kstatus.Of(deployment))
	// Output:
	// Progressing status.updatedReplicas is 1, and 2 are wanted
	// Progressing status.observedGeneration is 3, and the generation is 4
}

func ExampleCondition() {
	// Usually from listers.
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "shop"}}
	disk := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "disk", Namespace: "shop"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	c := kstatus.Condition(settings, disk)
	fmt.Println(c.Type, c.Status, c.Reason)
	fmt.Println(c.Message)
	// Output:
	// Ready False Progressing
	// 1 of 2 objects are ready; PersistentVolumeClaim shop/disk: status.phase is Pending
}

// A user of a kind gives it a rule.
func ExampleRules() {
	rules := kstatus.Rules{
		{Group: "gateway.networking.k8s.io", Kind: "Gateway"}: kstatus.AllTrue("Accepted", "Programmed"),
	}
	gateway := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
		"metadata": map[string]any{"name": "web", "namespace": "shop", "generation": int64(1)},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Accepted", "status": "True", "observedGeneration": int64(1)},
		}},
	}}
	fmt.Println(kstatus.Of(gateway))
	fmt.Println(rules.Of(gateway))
	fmt.Println(rules.Condition(gateway).Reason)
	// Output:
	// Ready the object has no condition Ready
	// Progressing the object has no condition Programmed
	// Progressing
}
