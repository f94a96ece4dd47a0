package fleet

import (
	"encoding/json"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A condition is what a Tracker reads of one.
type condition struct {
	kind, status, reason string
	since                time.Time
	generation           int64
}

// A layout has the places of the conditions in a Go type, so that they are looked up once.
type layout struct {
	of     reflect.Type
	status []int // the index of the field, nil if there is none
	list   []int // in the status
	pairs  struct{ kind, status, reason, since, generation []int }
}

// read calls yield with the conditions of an object until it returns false.
func (l *layout) read(obj any, yield func(condition) bool) {
	if u, ok := obj.(fields.Unstructured); ok {
		readMap(u.UnstructuredContent(), yield)
		return
	}
	value := reflect.ValueOf(obj)
	if value.Kind() != reflect.Pointer || value.Elem().Kind() != reflect.Struct {
		return
	}
	if value = value.Elem(); value.Type() != l.of {
		*l = newLayout(value.Type())
	}
	if l.list == nil {
		return
	}
	status, err := value.FieldByIndexErr(l.status)
	if err != nil {
		return // an embedded pointer is nil
	}
	if status.Kind() == reflect.Pointer {
		if status.IsNil() {
			return
		}
		status = status.Elem()
	}
	list, err := status.FieldByIndexErr(l.list)
	if err != nil {
		return
	}
	if conditions, ok := list.Addr().Interface().(*[]metav1.Condition); ok {
		for i := range *conditions {
			c := &(*conditions)[i]
			if !yield(condition{c.Type, string(c.Status), c.Reason, c.LastTransitionTime.Time, c.ObservedGeneration}) {
				return
			}
		}
		return
	}
	for i := range list.Len() {
		c := list.Index(i)
		if !yield(condition{text(c, l.pairs.kind), text(c, l.pairs.status), text(c, l.pairs.reason), moment(c, l.pairs.since), number(c, l.pairs.generation)}) {
			return
		}
	}
}

// newLayout finds the conditions in a struct type.
func newLayout(typ reflect.Type) layout {
	l := layout{of: typ}
	status, _, ok := kube.JSONField(typ, "status")
	if !ok {
		return l
	}
	inner := status.Type
	if inner.Kind() == reflect.Pointer {
		inner = inner.Elem()
	}
	list, _, ok := kube.JSONField(inner, "conditions")
	if !ok || list.Type.Kind() != reflect.Slice || list.Type.Elem().Kind() != reflect.Struct {
		return l
	}
	field := func(name string) []int {
		f, _, _ := kube.JSONField(list.Type.Elem(), name)
		return f.Index
	}
	if field("type") == nil {
		return l
	}
	l.status, l.list = status.Index, list.Index
	l.pairs.kind, l.pairs.status, l.pairs.reason = field("type"), field("status"), field("reason")
	l.pairs.since, l.pairs.generation = field("lastTransitionTime"), field("observedGeneration")
	return l
}

// member returns the field of a condition with the index, the zero Value if there is none.
func member(v reflect.Value, index []int) reflect.Value {
	if index == nil {
		return reflect.Value{}
	}
	f, err := v.FieldByIndexErr(index)
	if err != nil {
		return reflect.Value{}
	}
	return reflect.Indirect(f)
}

func text(v reflect.Value, index []int) string {
	if f := member(v, index); f.Kind() == reflect.String {
		return f.String()
	}
	return ""
}

func number(v reflect.Value, index []int) int64 {
	if f := member(v, index); f.CanInt() {
		return f.Int()
	}
	return 0
}

// moment returns a time by its text in JSON, because a project can have it in any type.
func moment(v reflect.Value, index []int) time.Time {
	f := member(v, index)
	if !f.IsValid() || !f.CanInterface() {
		return time.Time{}
	}
	if at, ok := f.Interface().(metav1.Time); ok {
		return at.Time
	}
	var at string
	if data, err := json.Marshal(f.Interface()); err != nil || json.Unmarshal(data, &at) != nil {
		return time.Time{}
	}
	return parse(at)
}

// parse returns the time of a text, which is zero if it is not valid.
func parse(text string) time.Time {
	at, _ := time.Parse(time.RFC3339, text)
	return at
}

// readMap is read for the content of an unstructured object.
func readMap(content map[string]any, yield func(condition) bool) {
	status, _ := content["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		c, ok := item.(map[string]any)
		if !ok {
			continue
		}
		word := func(name string) string { value, _ := c[name].(string); return value }
		generation, _ := fields.ObservedGeneration(c)
		if !yield(condition{word("type"), word("status"), word("reason"), parse(word("lastTransitionTime")), generation}) {
			return
		}
	}
}
