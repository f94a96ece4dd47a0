package ssa_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

func ExampleMigrate() {
	ctx := context.Background()
	client := fake.NewClientset().CoreV1().ConfigMaps("default")
	// What an earlier release of the controller has created. The API server sets the
	// uid and the resourceVersion; client-go's fake does not.
	live, err := client.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "paint", UID: "1234", ResourceVersion: "1"},
		Data:       map[string]string{"color": "red", "coats": "2"},
	}, metav1.CreateOptions{FieldManager: "colors"})
	if err != nil {
		fmt.Println(err)
		return
	}

	_, migrated, err := ssa.Migrate(ctx, "example.com/colors", client.Patch, live, "colors")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("migrated:", migrated)
	// This release has no coats: they go.
	config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "red"})
	obj, err := ssa.Apply(ctx, "example.com/colors", client.Apply, config)
	fmt.Println(obj.Data, err)
	// Output:
	// migrated: true
	// map[color:red] <nil>
}

func ExampleMigrateStatus() {
	ctx := context.Background()
	live := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "paint", UID: "1234", ResourceVersion: "1"}}
	fields := metav1.NewFieldsV1(`{"f:status":{"f:expectedPods":{}}}`)
	live.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "colors", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
		APIVersion: "policy/v1", FieldsType: "FieldsV1", FieldsV1: fields,
	}}
	client := fake.NewClientset(live).PolicyV1().PodDisruptionBudgets("")

	obj, migrated, err := ssa.MigrateStatus(ctx, "example.com/colors", client.Patch, live, "colors")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("migrated:", migrated)
	// Before each ApplyStatus, for as long as objects of earlier releases are around:
	_, migrated, err = ssa.MigrateStatus(ctx, "example.com/colors", client.Patch, obj, "colors")
	fmt.Println("migrated:", migrated, err)
	// Output:
	// migrated: true
	// migrated: false <nil>
}
