package kube

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsNil reports whether v is nil, or a nil pointer, map, slice, function or channel in
// an interface.
func IsNil(v any) bool {
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return value.IsNil()
	}
	return false
}

// IsSame reports whether a and b are the same value. Values that cannot be compared are not.
func IsSame(a, b any) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// CheckNamespace rejects an object of another namespace than the client's. An object
// without a namespace gets the client's.
func CheckNamespace(obj metav1.Object, client string) error {
	if namespace := obj.GetNamespace(); namespace != "" && namespace != client {
		return fmt.Errorf("metadata.namespace of %q is %q, and the client has %q: use Client.Namespace(%[2]q)", obj.GetName(), namespace, client)
	}
	return nil
}

// NameOf returns namespace/name, or the name of an object that has no namespace.
func NameOf(obj metav1.Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}

// MaxMessage is the length in bytes that the schema of metav1.Condition allows for a
// message.
const MaxMessage = 32768

// Message returns text as the message of a condition: valid UTF-8 of at most
// [MaxMessage] bytes, without what [WithoutValues] omits. The API server replaces invalid
// UTF-8, so that the next comparison would find a difference.
func Message(text string) string {
	text = hideValues(text[:min(len(text), 4*MaxMessage)]) // bounds the work on a text of any length
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > MaxMessage {
		text = strings.ToValidUTF8(text[:MaxMessage], "")
	}
	return text
}

// JSONField returns the field of the struct type that has the name in JSON, and whether it
// is omitted when empty. Fields of the struct come before the fields of its embedded
// structs. The index of the returned field is relative to t, as
// [reflect.Value.FieldByIndexErr] takes it.
func JSONField(t reflect.Type, name string) (field reflect.StructField, omitempty, ok bool) {
	return jsonField(t, name, 0)
}

// maxEmbedding ends the search in a type that embeds a pointer to itself.
const maxEmbedding = 8

func jsonField(t reflect.Type, name string, depth int) (field reflect.StructField, omitempty, ok bool) {
	if t.Kind() != reflect.Struct || depth > maxEmbedding {
		return field, false, false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if ok {
				continue
			}
			if field, omitempty, ok = jsonField(inner, name, depth+1); ok {
				field.Index = append([]int{i}, field.Index...)
			}
		case f.IsExported() && tag != "-" && cmp.Or(tag, f.Name) == name:
			return f, hasOption(options, "omitempty") || hasOption(options, "omitzero"), true
		}
	}
	return field, omitempty, ok
}

func hasOption(options, name string) bool {
	for option := range strings.SplitSeq(options, ",") {
		if option == name {
			return true
		}
	}
	return false
}
