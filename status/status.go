package status

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrOutsideStatus is wrapped by the error of [Update] when the function given to
// it changed a field outside the status, which the error names.
var ErrOutsideStatus = errors.New("status: changed outside the status")

// Object is an API object that copies itself: pointers to the generated types,
// and *unstructured.Unstructured.
type Object[T any] interface {
	metav1.Object
	DeepCopy() T
}

// Updater is the one method of a client that [Update] calls. Typed clients of
// kinds with a status have it, and so has the dynamic client.
type Updater[T any] interface {
	UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
}

// Update gives mutate a deep copy of obj to bring its status up to date, and
// writes the copy if that made a difference. It returns the server's answer, or
// obj itself, the same pointer, when there was nothing to write.
//
// obj must have a resourceVersion, that is, come from the server or a cache;
// Update refuses one that has none, because many kinds take such a write as
// permission to overwrite. Objects in a fake clientset need one set by hand.
//
// mutate runs once; it is a func(T), or a func(T) error whose error ends Update,
// wrapped, with nothing written. It may change only the status, otherwise Update
// fails with [ErrOutsideStatus]. Errors of the request are wrapped: after a
// Conflict, reconcile again from a newer copy.
func Update[T Object[T], F func(T) | func(T) error](ctx context.Context, c Updater[T], obj T, mutate F) (T, error) {
	var none T
	if obj.GetResourceVersion() == "" {
		return none, fmt.Errorf("status: object %q has no metadata.resourceVersion: pass one that the API server returned", obj.GetName())
	}
	changed := obj.DeepCopy()
	switch mutate := any(mutate).(type) {
	case func(T):
		mutate(changed)
	case func(T) error:
		if err := mutate(changed); err != nil {
			return none, fmt.Errorf("status: mutate: %w", err)
		}
	}
	if apiequality.Semantic.DeepEqual(obj, changed) {
		return obj, nil
	}
	if field := outside(obj, changed); field != "" {
		return none, fmt.Errorf("%w: mutate changed %s: write that with its own request", ErrOutsideStatus, field)
	}
	answer, err := c.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return none, fmt.Errorf("status: update: %w", err)
	}
	return answer, nil
}

// outside names a top-level field other than the status in which a and b differ,
// or returns "". a and b have one type.
func outside(a, b any) string {
	type content interface{ UnstructuredContent() map[string]any }
	if ua, ok := a.(content); ok {
		return outsideMap(ua.UnstructuredContent(), b.(content).UnstructuredContent())
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
