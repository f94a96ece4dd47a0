package churn

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const maxPaths = 5 // of fields in a line

// sizeOf returns about the bytes of a value in JSON. It stops above the limit.
func sizeOf(v any, limit int) int {
	size := 8
	switch v := v.(type) {
	case string:
		size += len(v)
	case map[string]any:
		for key, v := range v {
			if size += len(key); size <= limit {
				size += sizeOf(v, limit-size)
			}
		}
	case []any:
		for _, v := range v {
			if size <= limit {
				size += sizeOf(v, limit-size)
			}
		}
	}
	return size
}

// canonical returns a value whose lists are sorted.
func canonical(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for key, v := range v {
			m[key] = canonical(v)
		}
		return m
	case []any:
		type item struct {
			value any
			text  string
		}
		items := make([]item, len(v))
		for i, v := range v {
			c := canonical(v)
			text, _ := json.Marshal(c) // it was decoded from JSON
			items[i] = item{c, string(text)}
		}
		slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.text, b.text) })
		list := make([]any, len(v))
		for i, item := range items {
			list[i] = item.value
		}
		return list
	}
	return v
}

// A difference is a field with two values.
type difference struct {
	path string
	a, b any
}

// differences are at most maxPaths.
type differences []difference

func (d *differences) add(path string, a, b any) {
	if len(*d) < maxPaths {
		*d = append(*d, difference{path, a, b})
	}
}

// paths returns the paths for a line of log.
func (d differences) paths() []string {
	paths := make([]string, len(d))
	for i := range d {
		paths[i] = kube.Printable(d[i].path, maxText/maxPaths)
	}
	return paths
}

// clock reports whether the values of a field are the times of two applies.
func (d differences) clock(a, b time.Time) bool {
	return slices.ContainsFunc(d, func(d difference) bool { return isTime(d.a, a) && isTime(d.b, b) })
}

// isTime reports whether a value is about the time, as a text or as a number of seconds, milliseconds,
// microseconds or nanoseconds.
func isTime(v any, at time.Time) bool {
	text, _ := v.(string)
	for _, layout := range []string{time.RFC3339, time.RFC1123, time.RFC1123Z, time.ANSIC} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.Sub(at).Abs() <= near
		}
	}
	n, ok := number(v)
	if !ok {
		var err error
		if n, err = strconv.ParseFloat(text, 64); err != nil {
			return false
		}
	}
	for _, unit := range []float64{1, 1e3, 1e6, 1e9} {
		if math.Abs(n/unit-float64(at.UnixNano())/1e9) <= near.Seconds() {
			return true
		}
	}
	return false
}

// between returns the fields in which two configurations differ. It returns the whole list for lists
// of different length or order.
func between(a, b map[string]any) (found differences) {
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		if len(found) == maxPaths || reflect.DeepEqual(a, b) {
			return
		}
		switch a := a.(type) {
		case map[string]any:
			if b, ok := b.(map[string]any); ok {
				both := map[string]any{}
				maps.Copy(both, a)
				maps.Copy(both, b)
				for _, key := range slices.Sorted(maps.Keys(both)) {
					walk(path+"."+key, a[key], b[key])
				}
				return
			}
		case []any:
			if b, ok := b.([]any); ok && len(a) == len(b) && !permuted(a, b) {
				for i := range a {
					walk(fmt.Sprintf("%s[%d]", path, i), a[i], b[i])
				}
				return
			}
		}
		found.add(path, a, b)
	}
	walk("", a, b)
	return found
}

// permuted reports whether two lists of one length have the same items in another order.
func permuted(a, b []any) bool {
	if !reflect.DeepEqual(canonical(a), canonical(b)) {
		return false
	}
	for i := range a {
		if !reflect.DeepEqual(canonical(a[i]), canonical(b[i])) {
			return true
		}
	}
	return false // the items have lists in another order
}

// rewritten returns the fields of a configuration that an object has with another value. Fields that
// the object lacks, and the same value in another form, do not count.
func rewritten(config map[string]any, obj any) (found differences) {
	compare(config, obj, func(path string, want, have any, exists bool) {
		if exists && !alike(want, have) {
			found.add(path, want, have)
		}
	})
	return found
}

// holds reports whether an object has all values of a configuration, where the name of the one stands
// for the name of the other.
func holds(config map[string]any, obj any, name, otherName string) bool {
	all := true
	compare(config, obj, func(path string, want, have any, exists bool) {
		if text, ok := want.(string); ok && strings.Contains(text, name) {
			want = strings.ReplaceAll(text, name, otherName)
		}
		if !strings.HasPrefix(path, ".metadata.") && !(exists && alike(want, have)) {
			all = false
		}
	})
	return all
}

// compare calls f with the scalars of a configuration and those of an object.
func compare(config map[string]any, obj any, f func(path string, want, have any, exists bool)) {
	if kube.IsNil(obj) {
		return
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return
	}
	var walk func(path string, want, have any, exists bool)
	walk = func(path string, want, have any, exists bool) {
		switch want := want.(type) {
		case map[string]any:
			m, ok := have.(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(want)) {
				v, there := m[key]
				walk(path+"."+key, want[key], v, ok && there)
			}
		case []any:
			list, ok := have.([]any)
			for i, item := range want {
				v, there := any(nil), false
				if ok {
					v, there = counterpart(list, len(want), i, item)
				}
				walk(fmt.Sprintf("%s[%d]", path, i), item, v, there)
			}
		case nil:
		default:
			f(path, want, have, exists)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		v, there := object[key]
		switch key {
		case "apiVersion", "kind", "status":
		case "metadata": // the API server writes the other fields, or the operator does
			config, _ := config[key].(map[string]any)
			object, _ := v.(map[string]any)
			for _, key := range []string{"annotations", "labels"} {
				v, there := object[key]
				walk(".metadata."+key, config[key], v, there)
			}
		default:
			walk("."+key, config[key], v, there)
		}
	}
}

// counterpart returns the item of an object's list for an item of a configuration's: the one at the same place of a
// list of the same length, if it does not have another name. Otherwise it is the only item of that name. A name can be
// there twice, such as that of a volume with two mounts.
func counterpart(list []any, length, i int, item any) (v any, ok bool) {
	want, _ := item.(map[string]any)
	name, named := want["name"].(string)
	same := func(v any) bool { m, ok := v.(map[string]any); return ok && m["name"] == any(name) }
	switch {
	case len(list) == length && (!named || same(list[i])):
		return list[i], true
	case !named:
		return nil, false
	}
	for _, other := range list {
		if !same(other) {
			continue
		}
		if ok {
			return nil, false
		}
		v, ok = other, true
	}
	return v, ok
}

// alike reports whether the API server can store a value of a configuration as another one without a
// webhook: as an equal quantity, time, duration or number, or as an allocated value in place of a
// zero. Values of other types are alike, because a schema converts them.
func alike(want, have any) bool {
	switch want := want.(type) {
	case string:
		have, ok := have.(string)
		return !ok || want == "" || want == have || sameText(want, have)
	case bool:
		have, ok := have.(bool)
		return !ok || want == have
	}
	a, isNumber := number(want)
	b, ok := number(have)
	return !isNumber || !ok || a == 0 || a == b
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func sameText(a, b string) bool {
	lines := strings.NewReplacer("\r", "", "\n", "") // base64 can have them
	if lines.Replace(a) == lines.Replace(b) {
		return true
	}
	if x, err := resource.ParseQuantity(a); err == nil {
		if y, err := resource.ParseQuantity(b); err == nil && x.Cmp(y) == 0 {
			return true
		}
	}
	if x, err := time.ParseDuration(a); err == nil {
		if y, err := time.ParseDuration(b); err == nil && x == y {
			return true
		}
	}
	x, errA := time.Parse(time.RFC3339, a)
	y, errB := time.Parse(time.RFC3339, b)
	return errA == nil && errB == nil && x.Equal(y)
}
