package reconcile_test

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/reconcile"
)

func ExampleSetController() {
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	owner := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}

	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-settings"}}
	err := reconcile.SetController(owner, kind, settings)
	fmt.Println(metav1.IsControlledBy(settings, owner), err)

	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web-settings"}}
	err = reconcile.SetController(owner, kind, elsewhere)
	fmt.Println(len(elsewhere.OwnerReferences), errors.Is(err, reconcile.ErrTerminal))
	// Output:
	// true <nil>
	// 0 true
}

// One ConfigMap matches and has no controller, the other matches no more. The fake
// does not know resource versions; the real server refuses what is out of date.
func ExampleClaim() {
	ctx := context.Background()
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	owner := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}
	found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "found", UID: "1", Labels: map[string]string{"app": "web"}}}
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "left", UID: "2",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}}}
	client := fake.NewClientset(owner, found, left)

	configMaps := client.CoreV1().ConfigMaps("default")
	claimed, err := reconcile.Claim(ctx, client.AppsV1().Deployments("default"), owner, kind, configMaps,
		labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{found, left}) // a lister's
	for _, cm := range claimed {
		fmt.Println("claimed", cm.Name, metav1.IsControlledBy(cm, owner))
	}
	left, _ = configMaps.Get(ctx, "left", metav1.GetOptions{})
	fmt.Println("left has", len(left.OwnerReferences), "owners", err)
	// Output:
	// claimed found true
	// left has 0 owners <nil>
}
