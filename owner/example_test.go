package owner_test

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
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

// The references of an apply configuration: the object that controls it, and one that shares it.
func ExampleController() {
	widget := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "widget", UID: "0a1b"}}
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	controller, err := owner.Controller(widget, kind)
	if err != nil {
		fmt.Println(err)
		return
	}
	shared, err := owner.Reference(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other", UID: "2c3d"}}, kind)
	if err != nil {
		fmt.Println(err)
		return
	}
	config := applycorev1.Secret("password", "default").WithOwnerReferences(controller, shared)
	for _, ref := range config.OwnerReferences {
		fmt.Println(*ref.Kind, *ref.Name, ref.Controller != nil)
	}
	// Output:
	// ConfigMap widget true
	// ConfigMap other false
}
