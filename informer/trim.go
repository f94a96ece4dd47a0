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

// Trim is a cache.TransformFunc that removes what controllers seldom read and
// what often is half of an object: managedFields and kubectl's annotation with
// the last applied configuration. Everything else stays, above all
// resourceVersion, without which the store cannot tell how fresh it is.
//
// It takes typed objects, unstructured ones and PartialObjectMetadata, and
// returns anything else as it is, tombstones included. It changes the object it
// is given, which nobody else has seen at that point; an object that is trimmed
// already is only read, so calling it again is safe while others read the
// object. It never fails.
//
// Do not use it where field ownership is read from the cache, see the package's
// Caveats.
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
		return obj, nil //nolint:nilerr // a tombstone, whose object was trimmed before, or nothing we know
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

// trimUnstructured works on the maps themselves: the accessors would decode all
// managedFields first.
func trimUnstructured(u *unstructured.Unstructured) {
	metadata, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return
	}
	if metadata["managedFields"] != nil { // delete would be a write even with nothing to delete
		delete(metadata, "managedFields")
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		return
	}
	if _, ok := annotations[corev1.LastAppliedConfigAnnotation]; ok {
		if rest := without(annotations, corev1.LastAppliedConfigAnnotation); rest != nil {
			metadata["annotations"] = rest
		} else {
			delete(metadata, "annotations")
		}
	}
}

// without returns a copy of m that lacks key, nil if nothing else is in it. A
// copy, because the map may be shared with an object that others read, and
// because deleting from a map does not make it smaller.
func without[V any](m map[string]V, key string) map[string]V {
	if len(m) == 1 {
		return nil
	}
	m = maps.Clone(m)
	delete(m, key)
	return m
}
