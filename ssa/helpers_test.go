package ssa_test

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

func configMapOf(namespace, color string) *config {
	return applycorev1.ConfigMap("one", namespace).WithData(map[string]string{"color": color})
}

// object reads an unstructured object.
func object(s string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(s), &u.Object); err != nil {
		panic(err)
	}
	return u
}
