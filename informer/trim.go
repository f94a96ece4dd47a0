package informer

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

var _ cache.TransformFunc = Trim

// Trim is a cache.TransformFunc that removes data that controllers seldom read and that is
// often half of an object: managedFields and kubectl's annotation with the last applied
// configuration. Everything else stays, in particular resourceVersion, which the store
// needs to compare versions.
//
// It accepts typed objects, unstructured ones and PartialObjectMetadata, and returns
// anything else unchanged, including tombstones. It changes the object that it gets. It
// only reads an object that is already trimmed, so it may be called again while others read
// the object. It never fails.
//
// Do not use it if field ownership is read from the cache, or if the cached object itself is
// written to the status of a built-in kind: the API server then stores the trimmed annotations.
func Trim(obj any) (any, error) {
	if v := reflect.ValueOf(obj); v.Kind() == reflect.Pointer && v.IsNil() {
		return obj, nil
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		trimUnstructured(u)
		return obj, nil
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // a tombstone, whose object is trimmed, or an unknown type
	}
	if o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	annotations := o.GetAnnotations()
	if _, ok := annotations[corev1.LastAppliedConfigAnnotation]; ok {
		o.SetAnnotations(without(annotations, corev1.LastAppliedConfigAnnotation))
	}
	return obj, nil
}

// trimUnstructured uses the maps directly: the accessors would first decode all
// managedFields.
func trimUnstructured(u *unstructured.Unstructured) {
	metadata, _ := u.Object["metadata"].(map[string]any)
	if metadata["managedFields"] != nil { // delete writes even if the key is absent
		delete(metadata, "managedFields")
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if _, ok := annotations[corev1.LastAppliedConfigAnnotation]; ok {
		if rest := without(annotations, corev1.LastAppliedConfigAnnotation); rest != nil {
			metadata["annotations"] = rest
		} else {
			delete(metadata, "annotations")
		}
	}
}

// without returns a copy of m without key, or nil if key is the only one. It copies because
// others may read the map, and because deleting does not make a map smaller.
func without[V any](m map[string]V, key string) map[string]V {
	if len(m) == 1 {
		return nil
	}
	m = maps.Clone(m)
	delete(m, key)
	return m
}
