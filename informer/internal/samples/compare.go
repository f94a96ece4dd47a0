package samples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxDepth    = 500 // keeps the stack small
	maxPathText = 512 // bytes of a Path
	maxKeyText  = 64  // bytes of a map key in a Path
)

// changed reports whether an object differs from its copy, and where.
func changed(obj, saved runtime.Object) (path string, differs bool) {
	a, b := reflect.ValueOf(obj), reflect.ValueOf(saved)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if v, ok := saved.(*unstructured.Unstructured); ok {
			a, b = reflect.ValueOf(u.Object), reflect.ValueOf(v.Object)
		}
	}
	c := comparer{left: 2 * maxValues} // it can have grown
	path, same := c.same(a, b)
	return kube.Printable(path, maxPathText), !same
}

// comparer compares values and stays within bounds. It leaves out unexported fields: some types
// cache results of their methods in them.
type comparer struct{ left, depth int }

// same reports whether two values of one type are the same, and otherwise the path of the first
// difference.
func (c *comparer) same(a, b reflect.Value) (path string, same bool) {
	if c.left--; c.left < 0 || c.depth == maxDepth {
		return "", true
	}
	c.depth++
	defer func() { c.depth-- }()
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Elem().Type() != b.Elem().Type() {
			return "", a.IsNil() && b.IsNil()
		}
		if a.Kind() == reflect.Pointer && a.Pointer() == b.Pointer() {
			return "", true
		}
		return c.same(a.Elem(), b.Elem())
	case reflect.Struct:
		return c.sameStruct(a, b)
	case reflect.Map:
		return c.sameMap(a, b)
	case reflect.Slice:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return "", false
		}
		if a.Type().Elem().Kind() == reflect.Uint8 {
			return "", bytes.Equal(a.Bytes(), b.Bytes())
		}
		fallthrough
	case reflect.Array:
		for i := range a.Len() {
			if path, same := c.same(a.Index(i), b.Index(i)); !same {
				return fmt.Sprintf("[%d]%s", i, path), false
			}
		}
		return "", true
	case reflect.Float32, reflect.Float64:
		return "", a.Float() == b.Float() || a.Float() != a.Float() && b.Float() != b.Float() // NaN
	case reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Invalid:
		return "", true
	}
	return "", a.Equal(b)
}

func (c *comparer) sameStruct(a, b reflect.Value) (path string, same bool) {
	switch x := a.Interface().(type) {
	case time.Time:
		return "", x.Equal(b.Interface().(time.Time))
	case resource.Quantity: // String keeps its result in the Quantity
		return "", x.Cmp(b.Interface().(resource.Quantity)) == 0
	}
	t := a.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if path, same := c.same(a.Field(i), b.Field(i)); !same {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "" && f.Anonymous:
				return path, false
			case name == "" || name == "-":
				name = f.Name
			}
			return "." + name + path, false
		}
	}
	return "", true
}

func (c *comparer) sameMap(a, b reflect.Value) (path string, same bool) {
	if a.IsNil() != b.IsNil() {
		return "", false
	}
	for entries := a.MapRange(); entries.Next(); {
		other := b.MapIndex(entries.Key())
		if !other.IsValid() {
			return inMap(entries.Key()), false
		}
		if path, same := c.same(entries.Value(), other); !same {
			return inMap(entries.Key()) + path, false
		}
		if c.left < 0 {
			return "", true
		}
	}
	if a.Len() == b.Len() {
		return "", true
	}
	for entries := b.MapRange(); entries.Next(); {
		if !a.MapIndex(entries.Key()).IsValid() {
			return inMap(entries.Key()), false
		}
	}
	return "", true
}

// inMap returns a key as a part of a path.
func inMap(key reflect.Value) string {
	text, err := json.Marshal(kube.Printable(fmt.Sprint(key), maxKeyText))
	if err != nil {
		return "[?]"
	}
	return "[" + string(text) + "]"
}
