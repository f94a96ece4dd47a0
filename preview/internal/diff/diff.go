// Package diff compares two states of an object, as decoded from JSON with json.Number.
package diff

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxFields = 100 // that are named
	maxValue  = 512 // bytes of a value
	maxPath   = 512 // bytes of a path
)

// A Field is a field that differs. Its values are JSON, "" for an absent field.
type Field struct{ Path, Old, New string }

const (
	hidden        = "(hidden)"
	managedFields = ".metadata.managedFields"
)

// Fields returns the fields that differ, in their order, and how many more do. Fields that the API server sets in each
// write do not count, and .metadata.managedFields counts only if no other field differs. secret hides the values.
func Fields(before, after map[string]any, secret bool) (fields []Field, omitted int) {
	d := &differ{secret: secret}
	d.maps("", before, after)
	if len(d.fields) == 0 && d.owners {
		d.fields = []Field{{managedFields, hidden, hidden}}
	}
	return d.fields, d.omitted
}

// RestartsPods reports whether a change of an object of the resource replaces its Pods.
func RestartsPods(resource string, before, after map[string]any) bool {
	switch resource {
	case "deployments.apps", "statefulsets.apps", "daemonsets.apps":
	default:
		return false
	}
	old, _ := before["spec"].(map[string]any)
	spec, _ := after["spec"].(map[string]any)
	strategy, _ := spec["updateStrategy"].(map[string]any)
	return strategy["type"] != "OnDelete" && spec["paused"] != true && !reflect.DeepEqual(old["template"], spec["template"])
}

// Text returns the text at a path, "" if it is absent.
func Text(object map[string]any, path ...string) string {
	for _, name := range path[:len(path)-1] {
		object, _ = object[name].(map[string]any)
	}
	text, _ := object[path[len(path)-1]].(string)
	return text
}

type differ struct {
	secret  bool
	owners  bool // managedFields differ
	fields  []Field
	omitted int
}

func (d *differ) add(path string, before, after any, had, has bool) {
	if len(d.fields) == maxFields {
		d.omitted++
		return
	}
	d.fields = append(d.fields, Field{kube.Printable(path, maxPath), d.value(path, before, had), d.value(path, after, has)})
}

// value returns a value as a cut text.
func (d *differ) value(path string, v any, there bool) string {
	switch {
	case !there:
		return ""
	case d.secret && !strings.HasPrefix(path, ".metadata.labels"):
		return hidden
	}
	text, err := json.Marshal(v)
	if err != nil {
		return hidden
	}
	return kube.Printable(string(text), maxValue)
}

// maps compares two objects.
func (d *differ) maps(path string, before, after map[string]any) {
	names := slices.Collect(maps.Keys(before))
	for name := range after {
		if _, both := before[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b, had := before[name]
		a, has := after[name]
		d.values(path+"."+name, b, a, had, has)
	}
}

func (d *differ) values(path string, before, after any, had, has bool) {
	switch path {
	case ".metadata.resourceVersion", ".metadata.generation": // of the write
		return
	case managedFields:
		d.owners = !reflect.DeepEqual(untimed(before), untimed(after))
		return
	}
	if had == has && reflect.DeepEqual(before, after) {
		return
	}
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			d.maps(path, b, a)
			return
		}
	case []any:
		a, ok := after.([]any)
		if key := keyOf(b, a); ok && key != "" {
			d.lists(path, key, b, a)
			return
		}
	}
	d.add(path, before, after, had, has)
}

// untimed returns managedFields without the times.
func untimed(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	cut := make([]any, len(list))
	for i, item := range list {
		entry, _ := item.(map[string]any)
		entry = maps.Clone(entry)
		delete(entry, "time")
		cut[i] = entry
	}
	return cut
}

// keyOf returns the field that names the items of two lists, or "".
func keyOf(before, after []any) string {
	for _, key := range []string{"name", "type", "mountPath", "containerPort", "port", "key", "uid", "ip"} {
		if names(before, key) && names(after, key) {
			return key
		}
	}
	return ""
}

// names reports whether a field of the items differs between them.
func names(list []any, key string) bool {
	seen := map[any]bool{}
	for _, item := range list {
		fields, _ := item.(map[string]any)
		name := fields[key]
		switch name.(type) {
		case string, json.Number:
		default:
			return false
		}
		if seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

// lists compares two lists whose items have names.
func (d *differ) lists(path, key string, before, after []any) {
	named := func(list []any) map[any]any {
		m := make(map[any]any, len(list))
		for _, item := range list {
			m[item.(map[string]any)[key]] = item
		}
		return m
	}
	old, now := named(before), named(after)
	size := len(d.fields) + d.omitted
	for _, b := range before {
		name := b.(map[string]any)[key]
		a, has := now[name]
		d.values(fmt.Sprintf("%s[%s=%v]", path, key, name), b, a, true, has)
	}
	for _, a := range after {
		name := a.(map[string]any)[key]
		if _, had := old[name]; !had {
			d.values(fmt.Sprintf("%s[%s=%v]", path, key, name), nil, a, false, true)
		}
	}
	if size == len(d.fields)+d.omitted { // the same items in another order
		d.add(path, before, after, true, true)
	}
}
