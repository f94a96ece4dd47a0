package informer

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// KeepMetadata returns a cache.TransformFunc that keeps the objects whole for which whole
// returns true, and only the metadata of all others. From each object it also removes what
// [Trim] removes. With it a controller can watch all Secrets and hold the data of its own:
//
//	transform := informer.KeepMetadata(func(o metav1.Object) bool { return o.GetLabels()["app"] == "web" })
//	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(transform))
//
// The objects of the cache keep their type. One without its spec and data must not be
// written back by an Update, which would remove them on the server.
//
// whole is called with each object that is listed or comes as an event, concurrently for
// several informers, and by client-go twice for objects of a first list. It may read only its
// argument, and not the fields that Trim removes, which the second call does not see. An object
// that is already in the cache does not get its data back when another result is wanted. nil
// means that no object is kept whole; client-go's metadatainformer then needs less, because the
// API server does not send the rest.
//
// It accepts what Trim accepts. A type of your own keeps everything if it does not embed
// metav1.ObjectMeta itself. The function never fails.
func KeepMetadata(whole func(metav1.Object) bool) cache.TransformFunc {
	return func(obj any) (any, error) {
		if v := reflect.ValueOf(obj); v.Kind() == reflect.Pointer && v.IsNil() {
			return obj, nil
		}
		if o, err := meta.Accessor(obj); err == nil && (whole == nil || !whole(o)) {
			strip(obj)
		}
		return Trim(obj)
	}
}

// strip sets everything but the type and the metadata of obj to zero. It writes only what
// is not zero yet, because a cached object may be read at the same time.
func strip(obj any) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		stripUnstructured(u)
		return
	}
	v := reflect.Indirect(reflect.ValueOf(obj))
	if v.Kind() != reflect.Struct {
		return
	}
	typeMeta, objectMeta := reflect.TypeFor[metav1.TypeMeta](), reflect.TypeFor[metav1.ObjectMeta]()
	if f, ok := v.Type().FieldByName(objectMeta.Name()); !ok || f.Type != objectMeta || len(f.Index) != 1 {
		return // the metadata is elsewhere, and must stay
	}
	for i := range v.NumField() {
		field := v.Field(i)
		if t := field.Type(); t != typeMeta && t != objectMeta && field.CanSet() && !field.IsZero() {
			field.SetZero()
		}
	}
}

// stripUnstructured makes a new map, because deleting does not make one smaller.
func stripUnstructured(u *unstructured.Unstructured) {
	kept := make(map[string]any, 3)
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := u.Object[key]; ok {
			kept[key] = v
		}
	}
	if len(kept) < len(u.Object) {
		u.Object = kept
	}
}
