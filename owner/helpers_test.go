package owner_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/fakeserver"
	"github.com/controllerkit/controllerkit/owner"
)

// ref is a reference to a ConfigMap: Controller and BlockOwnerDeletion are controller.
func ref(name string, uid types.UID, controller *bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: uid, Controller: controller, BlockOwnerDeletion: controller}
}

// child is one that a cache has.
func child(change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "child", UID: "uid-5", ResourceVersion: "5"}}
	for _, f := range change {
		f(cm)
	}
	return cm
}

// use calls both functions with the child and checks what they leave behind.
func use(t *testing.T, cm *corev1.ConfigMap) {
	t.Helper()
	parent := fakeserver.Settings()
	own := cm.DeepCopy()
	if err := owner.SetController(parent, configMapKind, own); err == nil {
		controllers, mine := 0, 0
		for _, ref := range own.OwnerReferences {
			if ptr.Deref(ref.Controller, false) {
				controllers++
			}
			if ref.UID == parent.UID {
				mine++
			}
		}
		if controllers != 1 || mine != 1 {
			t.Errorf("%d controllers and %d references to the owner, want one of each", controllers, mine)
		}
	}
	server := fakeserver.New(parent, cm)
	claimed, err := owner.Claim(context.Background(), server, parent, configMapKind, server, labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{cm})
	if err == nil && len(claimed) == 1 && !metav1.IsControlledBy(claimed[0], parent) {
		t.Error("claimed a child that the owner does not control")
	}
}

var configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")
