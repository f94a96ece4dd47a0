package status

import (
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// This file reads objects by the names that their fields have in JSON, so that one
// rule holds for generated types, which have no method for it, and for maps.

// view is what the package reads of a status.
type view struct {
	observed    int64              // status.observedGeneration, 0 if there is none
	conditions  []metav1.Condition // must not be modified
	conditioned bool               // the conditions are, or can be, of type metav1.Condition
}

// unstructuredContent is *unstructured.Unstructured.
type unstructuredContent interface{ UnstructuredContent() map[string]any }

// read returns what the status of obj says.
func read(obj any) view {
	var v view
	switch status := statusOf(obj).(type) {
	case nil:
		_, v.conditioned = obj.(unstructuredContent)
	case map[string]any:
		v.observed, _ = status["observedGeneration"].(int64)
		v.conditions, v.conditioned = fromMaps(status["conditions"])
	default:
		value := reflect.Indirect(reflect.ValueOf(status))
		if f := reflect.Indirect(member(value, "observedGeneration")); f.IsValid() && f.CanInt() {
			v.observed = f.Int()
		}
		if f := member(value, "conditions"); f.IsValid() {
			v.conditions, v.conditioned = f.Interface().([]metav1.Condition)
		}
	}
	return v
}

// fromMaps returns conditions of an unstructured object.
func fromMaps(list any) (conditions []metav1.Condition, ok bool) {
	if list == nil {
		return nil, true
	}
	items, ok := list.([]any)
	if !ok {
		return nil, false
	}
	for _, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, false
		}
		var c metav1.Condition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c); err != nil {
			return nil, false
		}
		conditions = append(conditions, c)
	}
	return conditions, true
}

// statusOf returns the status of obj, nil if it has none.
func statusOf(obj any) any {
	if u, ok := obj.(unstructuredContent); ok {
		return u.UnstructuredContent()["status"]
	}
	if f := member(reflect.Indirect(reflect.ValueOf(obj)), "status"); f.IsValid() {
		return f.Interface()
	}
	return nil
}

// member returns the field of a struct with that name in JSON, which may be in an
// embedded struct; otherwise the zero Value.
func member(value reflect.Value, name string) reflect.Value {
	if value.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	for i := range value.NumField() {
		field := value.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case !field.IsExported():
		case tag == name:
			return value.Field(i)
		case tag == "" && field.Anonymous:
			if f := member(reflect.Indirect(value.Field(i)), name); f.IsValid() {
				return f
			}
		}
	}
	return reflect.Value{}
}

// outside names a top-level field other than the status in which a and b differ,
// or returns "". a and b have one type.
func outside(a, b any) string {
	if ua, ok := a.(unstructuredContent); ok {
		return outsideMap(ua.UnstructuredContent(), b.(unstructuredContent).UnstructuredContent())
	}
	va, vb := reflect.Indirect(reflect.ValueOf(a)), reflect.Indirect(reflect.ValueOf(b))
	if va.Kind() != reflect.Struct {
		return ""
	}
	for i := range va.NumField() {
		field := va.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		if name == "status" || !field.IsExported() {
			continue
		}
		if !apiequality.Semantic.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
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
