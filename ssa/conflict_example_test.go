package ssa_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

func ExampleConflictError_Owners() {
	ctx := context.Background()
	client := fake.NewClientset().CoreV1().ConfigMaps("default")
	live, err := client.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "paint"}, Data: map[string]string{"color": "red"},
	}, metav1.CreateOptions{FieldManager: "kubectl-create"})
	if err != nil {
		fmt.Println(err)
		return
	}

	config := applycorev1.ConfigMap("paint", "default").WithData(map[string]string{"color": "blue"})
	_, err = ssa.TryApply(ctx, "example.com/colors", client.Apply, config, nil)
	var conflict *ssa.ConflictError
	if errors.As(err, &conflict) {
		for _, owner := range conflict.Owners("example.com/colors", live) {
			fmt.Println(owner.Field, "by", owner.Operation, "of", owner.Manager)
		}
	}
	// Output: .data.color by Update of kubectl-create
}
