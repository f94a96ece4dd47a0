// Package fields lists and copies the fields of objects that are maps of JSON.
package fields

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
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
