package served

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Needed returns what the informer of a registration needs, whose objects are of type T.
func Needed[T any](resource schema.GroupResource, informer any, controller string) Resource {
	r := Resource{GroupResource: resource, Kind: KindOf[T](informer), Controller: controller}
	if own, ok := informer.(interface{ InNamespace() string }); ok {
		r.Namespace = own.InNamespace()
	}
	return r
}

// KindOf returns the kind of the objects of type T that come from an informer, or "" for a
// type of several kinds. It is the name of the type, unless the informer knows it.
func KindOf[T any](informer any) string {
	if known, ok := informer.(interface {
		GroupVersionKind() schema.GroupVersionKind
	}); ok {
		return known.GroupVersionKind().Kind
	}
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer || typ == reflect.TypeFor[*unstructured.Unstructured]() || typ == reflect.TypeFor[*metav1.PartialObjectMetadata]() {
		return ""
	}
	return typ.Elem().Name()
}
