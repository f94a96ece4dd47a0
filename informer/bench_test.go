package informer_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/informer"
)

func BenchmarkTrim(b *testing.B) {
	annotations := map[string]string{lastApplied: "{}", "a": "1", "b": "2"}
	fields := make([]metav1.ManagedFieldsEntry, 3)
	obj := &corev1.ConfigMap{}
	b.ReportAllocs()
	for b.Loop() {
		obj.ManagedFields, obj.Annotations = fields, annotations
		_, _ = informer.Trim(obj)
	}
}

func BenchmarkTrimAgain(b *testing.B) {
	obj := &corev1.ConfigMap{ObjectMeta: thin()}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = informer.Trim(obj)
	}
}
