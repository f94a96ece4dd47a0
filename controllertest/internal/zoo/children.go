package zoo

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listerscorev1 "k8s.io/client-go/listers/core/v1"

	"github.com/controllerkit/controllerkit/controllertest"
)

// The families replicas, resize and rollout have ConfigMaps as parents. Their
// children name them as controller, so that the garbage collector removes them
// after their parent.

// parentOrOwner names the parent that an event is about.
func parentOrOwner(o metav1.Object) []types.NamespacedName {
	if metav1.GetControllerOfNoCopy(o) != nil {
		return owner(o)
	}
	return self(o)
}

// childMeta is the metadata of a child.
func childMeta(parent *corev1.ConfigMap, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:       parent.Namespace,
		Name:            name,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(parent, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
	}
}

// exactly makes a deletion fail if the object is another one of the same name.
func exactly(o metav1.Object) metav1.DeleteOptions {
	uid := o.GetUID()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

// snapshot returns the ConfigMaps of a cache by name, all from one moment. A caller that
// reads a parent first and its children later may see a deleted parent without its
// children, and create them again.
func snapshot(cache listerscorev1.ConfigMapNamespaceLister) (map[string]*corev1.ConfigMap, error) {
	all, err := cache.List(labels.Everything())
	byName := make(map[string]*corev1.ConfigMap, len(all))
	for _, cm := range all {
		byName[cm.Name] = cm
	}
	return byName, err
}

// childrenOf returns the objects of a resource by name whose controller is the parent.
// If another object has a controller, its owner is deleted, and childrenOf returns an
// error.
func childrenOf(s *controllertest.State, resource string, parent *unstructured.Unstructured) (map[string]*unstructured.Unstructured, error) {
	children := map[string]*unstructured.Unstructured{}
	for _, obj := range s.Objects(resource) {
		ref := metav1.GetControllerOfNoCopy(obj)
		switch {
		case ref == nil:
		case parent == nil || ref.UID != parent.GetUID():
			return nil, fmt.Errorf("%s is still there, its owner is not", obj.GetName())
		default:
			children[obj.GetName()] = obj
		}
	}
	return children, nil
}

// text returns a string field, or "" if it is absent.
func text(obj *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(obj.Object, path...)
	return value
}
