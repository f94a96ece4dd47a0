// Package typeof finds the struct type of the objects of a client.
package typeof

import (
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Of returns the struct to which typ points. If typ is an interface, it returns the struct that the
// scheme has for the kind.
func Of(typ reflect.Type, scheme *runtime.Scheme, kind schema.GroupVersionKind) (reflect.Type, error) {
	switch {
	case typ.Kind() == reflect.Pointer && typ.Elem().Kind() == reflect.Struct:
		return typ.Elem(), nil
	case typ.Kind() != reflect.Interface:
		return nil, fmt.Errorf("the type is %s: use a pointer to a struct, such as *v1.Website", typ)
	case kind.Empty():
		return nil, fmt.Errorf("the type is %s, an interface: call NewClientForKind with the kind of the objects", typ)
	case scheme == nil:
		return nil, errors.New("the client has no scheme: pass mgr.GetClient()")
	}
	obj, err := scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("the type is %s, and the scheme of the client has no %q: call the AddToScheme of its package, or use *unstructured.Unstructured as T: %w", typ, kind, err)
	}
	if !reflect.TypeOf(obj).Implements(typ) {
		return nil, fmt.Errorf("the type is %s, and the scheme has %q as %T, which does not implement it: use the kind of one object", typ, kind, obj)
	}
	return reflect.TypeOf(obj).Elem(), nil
}
