// Package fields lists, copies and edits the fields of objects that are maps of JSON.
package fields

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
)

// Leaves lists the paths at which to differs from from. A list is one leaf.
func Leaves(path []string, from, to map[string]any) (paths [][]string) {
	for _, key := range Keys(from, to) {
		a, aMap := from[key].(map[string]any)
		b, bMap := to[key].(map[string]any)
		inner := append(slices.Clone(path), key)
		switch {
		case bMap && (aMap || from[key] == nil):
			paths = append(paths, Leaves(inner, a, b)...)
		case !reflect.DeepEqual(from[key], to[key]) || from == nil:
			paths = append(paths, inner)
		}
	}
	return paths
}

// Edits returns merge patches that change one field each of an object as its controller has
// written it, outside of metadata, status and lists.
func Edits(resource string, wrote map[string]any) [][]byte {
	var patches [][]byte
	for _, path := range Leaves(nil, map[string]any{}, wrote) {
		switch path[0] {
		case "apiVersion", "kind", "metadata", "status", "immutable":
			continue
		}
		var value any = wrote
		for _, key := range path {
			value = value.(map[string]any)[key]
		}
		switch v := value.(type) {
		case string:
			value = "drift"
			if resource == "secrets" && path[0] == "data" {
				value = "ZHJpZnQ=" // base64
			}
		case bool:
			value = !v
		case int64:
			value = v + 1
		case float64:
			value = v + 1
		default:
			continue
		}
		for n := len(path) - 1; n >= 0; n-- {
			value = map[string]any{path[n]: value}
		}
		if patch, err := json.Marshal(value); err == nil {
			patches = append(patches, patch)
		}
	}
	return patches
}

// Copy makes a field of an object what it is in another one.
func Copy(to, from map[string]any, path []string) {
	if path[0] == "status" || len(path) > 1 && path[0] == "metadata" && path[1] == "finalizers" {
		return // controllers write them too
	}
	for _, key := range path[:len(path)-1] {
		next, ok := from[key].(map[string]any)
		if !ok {
			path = []string{key} // a list or an absent field is copied whole
			break
		}
		if _, ok := to[key].(map[string]any); !ok {
			to[key] = map[string]any{}
		}
		from, to = next, to[key].(map[string]any)
	}
	last := path[len(path)-1]
	if v, ok := from[last]; ok {
		to[last] = runtime.DeepCopyJSONValue(v)
	} else {
		delete(to, last)
	}
}

// Keys returns the keys of both maps in their order.
func Keys(a, b map[string]any) []string {
	var all []string
	for k := range a {
		all = append(all, k)
	}
	for k := range b {
		if _, both := a[k]; !both {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return all
}
