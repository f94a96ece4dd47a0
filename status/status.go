package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrOutsideStatus is wrapped by the error of [Update] and [Patch] when the function
// given to them changed a field outside the status, which the error names.
var ErrOutsideStatus = errors.New("status: changed outside the status")

// maxStatus is the largest status, in bytes of JSON, that is sent. The API server
// takes no object of more than 1.5 MiB, and every watcher holds a copy.
const maxStatus = 1 << 20

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
// obj must have a name and a resourceVersion, that is, come from the server or a
// cache; Update refuses one that has none, because many kinds take such a write as
// permission to overwrite. Objects in a fake clientset need one set by hand.
//
// mutate runs once; it is a func(T), or a func(T) error whose error ends Update,
// wrapped, with nothing written. It may change only the status, otherwise Update
// fails with [ErrOutsideStatus]. It must not let status.observedGeneration or that
// of a condition go back, or run ahead of obj's generation, and the status it
// leaves must not have more than 1 MiB. Errors of the request are wrapped: after a
// Conflict, reconcile again from a newer copy.
func Update[T Object[T], F func(T) | func(T) error](ctx context.Context, c Updater[T], obj T, mutate F) (T, error) {
	var none T
	if err := usable(obj); err != nil {
		return none, err
	}
	changed, err := change(obj, mutate)
	if err != nil {
		return none, err
	}
	if isNil(changed) {
		return obj, nil
	}
	answer, err := c.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return none, fmt.Errorf("status: update: %w", err)
	}
	return answer, nil
}

// change returns a copy of obj with the status that mutate gives it, or nil if that
// is the one it has. It is where all that a status must not be is refused.
func change[T Object[T], F func(T) | func(T) error](obj T, mutate F) (T, error) {
	var none T
	if mutate == nil {
		return none, errors.New("status: mutate is nil: give a function that changes the status")
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
		return none, nil
	}
	if field := outside(obj, changed); field != "" {
		return none, fmt.Errorf("%w: mutate changed %s: write that with its own request", ErrOutsideStatus, field)
	}
	if err := forward(obj.GetGeneration(), read(obj), read(changed)); err != nil {
		return none, err
	}
	data, err := json.Marshal(statusOf(changed))
	if err != nil {
		return none, fmt.Errorf("status: status cannot be written as JSON: %w", err)
	}
	return changed, sized(len(data))
}

// usable refuses an object that did not come from the API server.
func usable(obj metav1.Object) error {
	switch {
	case isNil(obj):
		return errors.New("status: the object is nil: pass one that the API server returned")
	case obj.GetName() == "":
		return errors.New("status: the object has no metadata.name: pass one that the API server returned")
	case obj.GetResourceVersion() == "":
		return fmt.Errorf("status: object %q has no metadata.resourceVersion: pass one that the API server returned", obj.GetName())
	}
	return nil
}

// identified is usable for the requests that name the uid.
func identified(obj metav1.Object) error {
	if err := usable(obj); err != nil {
		return err
	}
	if obj.GetUID() == "" {
		return fmt.Errorf("status: object %q has no metadata.uid: pass one that the API server returned", obj.GetName())
	}
	return nil
}

// sized refuses a status of more than maxStatus bytes.
func sized(n int) error {
	if n > maxStatus {
		return fmt.Errorf("status: status has %d bytes, more than %d: keep long lists in objects of their own", n, maxStatus)
	}
	return nil
}

// forward refuses a status after that says less than before about what was
// observed, or more than an object of that generation can.
func forward(generation int64, before, after view) error {
	check := func(field string, old, next int64) error {
		switch {
		case next < old:
			return fmt.Errorf("status: %s shows generation %d, this result is for generation %d: reconcile again from a newer copy", field, old, next)
		case next > old && next > generation:
			return fmt.Errorf("status: %s would show generation %d of an object with metadata.generation %d: use the generation of the copy that was reconciled", field, next, generation)
		}
		return nil
	}
	if err := check("status.observedGeneration", before.observed, after.observed); err != nil {
		return err
	}
	old := make(map[string]int64, len(before.conditions))
	for _, c := range before.conditions {
		old[c.Type] = c.ObservedGeneration
	}
	for _, c := range after.conditions {
		if err := check(fmt.Sprintf("condition %q", c.Type), old[c.Type], c.ObservedGeneration); err != nil {
			return err
		}
	}
	return nil
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}
