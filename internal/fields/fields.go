// Package fields finds the fields of objects by their names in JSON, in generated types as in
// maps.
package fields

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Status has the parts of a status that the packages read.
type Status struct {
	Observed    int64              // status.observedGeneration, 0 if absent
	Conditions  []metav1.Condition // the first MaxConditions; must not be modified
	Total       int                // the number of conditions
	Conditioned bool               // the conditions are, or can be, of type metav1.Condition
}

// MaxConditions bounds what is read of a status. Other users can store hundreds of thousands of
// conditions in an object.
const MaxConditions = 1000

// Unstructured is implemented by *unstructured.Unstructured.
type Unstructured interface{ UnstructuredContent() map[string]any }

// Read returns the parts of obj's status.
func Read(obj any) Status {
	var v Status
	switch status := Of(obj).(type) {
	case nil:
		_, v.Conditioned = obj.(Unstructured)
	case map[string]any:
		v.Observed, _ = ObservedGeneration(status)
		v.Conditions, v.Total, v.Conditioned = fromMaps(status["conditions"])
	default:
		value := reflect.ValueOf(status)
		if value.Kind() == reflect.Pointer && value.IsNil() {
			value = reflect.New(value.Type().Elem()) // empty, with the same fields
		}
		value = reflect.Indirect(value)
		if f := reflect.Indirect(Member(value, "observedGeneration")); f.CanInt() {
			v.Observed = f.Int()
		}
		if f := Member(value, "conditions"); f.IsValid() {
			if own := reflect.TypeFor[[]metav1.Condition](); f.CanConvert(own) {
				f = f.Convert(own) // a type of its own can be one of such conditions
			}
			v.Conditions, v.Conditioned = f.Interface().([]metav1.Condition)
			v.Total = len(v.Conditions)
			v.Conditions = v.Conditions[:min(v.Total, MaxConditions)]
		}
	}
	return v
}

// fromMaps returns the conditions of an unstructured object. If a condition is not a
// metav1.Condition, for example because its lastTransitionTime is empty, it returns the
// readable fields. Any writer of the status can store such a condition if the schema
// accepts it.
func fromMaps(list any) (conditions []metav1.Condition, total int, ok bool) {
	if list == nil {
		return nil, 0, true
	}
	items, ok := list.([]any)
	if !ok {
		return nil, 0, false
	}
	total = len(items)
	items = items[:min(total, MaxConditions)]
	conditions = slices.Grow(conditions, len(items)) // nil without items
	for _, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, 0, false
		}
		var c metav1.Condition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c); err != nil {
			text := func(name string) string { value, _ := fields[name].(string); return value }
			c = metav1.Condition{Type: text("type"), Status: metav1.ConditionStatus(text("status")), Reason: text("reason"), Message: text("message")}
			c.ObservedGeneration, _ = ObservedGeneration(fields)
		}
		conditions = append(conditions, c)
	}
	return conditions, total, true
}

// Of returns the status of obj, or nil.
func Of(obj any) any {
	if u, ok := obj.(Unstructured); ok {
		return u.UnstructuredContent()["status"]
	}
	if f := Member(reflect.Indirect(reflect.ValueOf(obj)), "status"); f.IsValid() {
		return f.Interface()
	}
	return nil
}

// Member returns the field with that name in JSON of a struct or of its embedded structs,
// otherwise the zero Value.
func Member(value reflect.Value, name string) reflect.Value {
	if value.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	field, _, ok := kube.JSONField(value.Type(), name)
	if !ok {
		return reflect.Value{}
	}
	found, err := value.FieldByIndexErr(field.Index)
	if err != nil {
		return reflect.Value{} // an embedded pointer is nil
	}
	return found
}

// nameOf returns the name of a field in JSON.
func nameOf(field reflect.StructField) string {
	if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
		return name
	}
	return field.Name
}

// embedded reports whether JSON has the fields of the field in the surrounding struct.
func embedded(field reflect.StructField) bool {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return field.Anonymous && name == ""
}

// Outside returns the name of a top-level field, except the status, in which a and b
// differ, or "". a and b have the same type.
func Outside(a, b any) string {
	if ua, ok := a.(Unstructured); ok {
		return outsideMap(ua.UnstructuredContent(), b.(Unstructured).UnstructuredContent())
	}
	return outsideStruct(reflect.Indirect(reflect.ValueOf(a)), reflect.Indirect(reflect.ValueOf(b)))
}

func outsideStruct(a, b reflect.Value) string {
	if a.Kind() != reflect.Struct || b.Kind() != reflect.Struct {
		return ""
	}
	for i := range a.NumField() {
		field := a.Type().Field(i)
		fa, fb := a.Field(i), b.Field(i)
		switch name := nameOf(field); {
		case embedded(field) && reflect.Indirect(fa).Kind() == reflect.Struct && reflect.Indirect(fb).Kind() == reflect.Struct:
			if name := outsideStruct(reflect.Indirect(fa), reflect.Indirect(fb)); name != "" {
				return name
			}
		case name == "status" || name == "-" || !field.IsExported():
		case !apiequality.Semantic.DeepEqual(fa.Interface(), fb.Interface()):
			return name
		}
	}
	return ""
}

func outsideMap(a, b map[string]any) string {
	for name := range a {
		if name != "status" && !apiequality.Semantic.DeepEqual(a[name], b[name]) {
			return name
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok && name != "status" {
			return name
		}
	}
	return ""
}

// ObservedGeneration returns the observedGeneration of a status or of a condition, 0 if it is
// absent. Some kinds store it as text. readable is false if it is not a number.
func ObservedGeneration(fields map[string]any) (generation int64, readable bool) {
	switch value := fields["observedGeneration"].(type) {
	case nil:
		return 0, true
	case int64:
		return value, true
	case string:
		generation, err := strconv.ParseInt(value, 10, 64)
		return generation, err == nil
	}
	return 0, false
}
