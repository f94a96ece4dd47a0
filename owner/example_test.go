package owner_test

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/owner"
)

func ExampleSetController() {
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}

	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-settings"}}
	err := owner.SetController(web, kind, settings)
	fmt.Println(metav1.IsControlledBy(settings, web), err)

	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web-settings"}}
	err = owner.SetController(web, kind, elsewhere)
	fmt.Println(err)
	// Output:
	// true <nil>
	// owner: make default/web the controller of other/web-settings: the owner is in namespace "default" and the child in "other": use an owner in the child's namespace
}

// One ConfigMap matches and has no controller, the other no longer matches. The fake
// does not know resource versions; the real server refuses what is out of date.
func ExampleClaim() {
	ctx := context.Background()
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}
	found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "found", UID: "1", Labels: map[string]string{"app": "web"}}}
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "left", UID: "2",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(web, kind)}}}
	client := fake.NewClientset(web, found, left)

	configMaps := client.CoreV1().ConfigMaps("default")
	claimed, err := owner.Claim(ctx, client.AppsV1().Deployments("default"), web, kind, configMaps,
		labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{found, left}) // a lister's
	for _, cm := range claimed {
		fmt.Println("claimed", cm.Name, metav1.IsControlledBy(cm, web))
	}
	left, _ = configMaps.Get(ctx, "left", metav1.GetOptions{})
	fmt.Println("left has", len(left.OwnerReferences), "owners", err)
	// Output:
	// claimed found true
	// left has 0 owners <nil>
}
