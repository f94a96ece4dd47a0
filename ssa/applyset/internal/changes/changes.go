// Package changes compares two states of an object.
package changes

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Paths returns the paths of the values that differ, without the values that the API server
// sets with each write.
func Paths(before, after *unstructured.Unstructured) []string {
	var paths []string
	var compare func(path string, a, b any)
	compare = func(path string, a, b any) {
		x, isMap := a.(map[string]any)
		y, areMaps := b.(map[string]any)
		switch {
		case path == ".metadata.managedFields" || path == ".metadata.generation" || path == ".metadata.resourceVersion":
		case isMap && areMaps:
			for _, name := range slices.Sorted(maps.Keys(x)) {
				compare(path+"."+name, x[name], y[name])
			}
			for _, name := range slices.Sorted(maps.Keys(y)) {
				if _, ok := x[name]; !ok {
					compare(path+"."+name, nil, y[name])
				}
			}
		case !reflect.DeepEqual(a, b):
			paths = append(paths, path)
		}
	}
	compare("", before.Object, after.Object)
	return paths
}
