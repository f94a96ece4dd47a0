package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
)

var errNoClient = errors.New("status: the client is nil: pass the client of the object's kind")

// maxStatus is the largest status, in bytes of JSON, that is sent. The API server rejects
// objects over 1.5 MiB, and every watcher holds a copy.
const maxStatus = 1 << 20

// Updater is the one method of a client that [Update] calls. Typed clients of kinds with a
// status have it, as does the dynamic client.
type Updater[T any] interface {
	UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
}

// Update passes a deep copy of obj to mutate and writes the copy if its status changed.
// It returns the API server's response, or obj itself, the same pointer, if it sent no
// request. It never modifies obj. T can be an interface, for code that writes several kinds.
//
// obj is as it was read. If the caller has changed its status before, Update cannot see that
// change and does not write it: make each change in mutate.
//
// obj must have a name and a resourceVersion, so it comes from the API server or a cache.
// Update rejects the version "0" and an empty one, because many kinds accept such a write
// as permission to overwrite. client-go's fake clientset sets no version: set one in the test.
//
// Update sends the whole object, and with the status of a built-in kind the API server
// also stores the metadata. If a cache has trimmed an annotation, the write removes it.
// [Patch] and [Apply] write no metadata.
//
// mutate runs once. It is a func(T), or a func(T) error whose error ends Update without a
// request. It may change only the status; otherwise Update returns an error without a
// request. Neither status.observedGeneration nor the highest one of a type in
// status.conditions may go back or exceed the object's generation, and the status may have at
// most 1 MiB. Errors of the request are wrapped. After a Conflict, reconcile again from a newer
// copy.
func Update[T controllerkit.Object, F func(T) | func(T) error](ctx context.Context, c Updater[T], obj T, mutate F) (T, error) {
	var none T
	if err := usable(c, obj); err != nil {
		return none, err
	}
	changed, made, err := change(obj, mutate)
	if err != nil {
		return none, err
	}
	if made == nil {
		calls.NoteWrite(ctx, calls.Status, false)
		return obj, nil
	}
	calls.NoteWrite(ctx, calls.Status, true)
	stored, err := c.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return none, fmt.Errorf("status: update: %w", err)
	}
	calls.NoteWritten(ctx, stored)
	return stored, nil
}

// edit is a status before and after mutate, in the types of unstructured objects.
type edit struct{ before, after any }

// change returns a copy of obj with the status that mutate gives it, and the edit, nil if
// the status is unchanged. It rejects every invalid change.
func change[T controllerkit.Object, F func(T) | func(T) error](obj T, mutate F) (T, *edit, error) {
	var none T
	if mutate == nil {
		return none, nil, errors.New("status: mutate is nil: give a function that changes the status")
	}
	changed, ok := obj.DeepCopyObject().(T)
	if !ok || reflect.TypeOf(changed) != reflect.TypeOf(obj) {
		return none, nil, fmt.Errorf("status: DeepCopyObject of %T returns %T: generate it with controller-gen object", obj, obj.DeepCopyObject())
	}
	switch mutate := any(mutate).(type) {
	case func(T):
		mutate(changed)
	case func(T) error:
		if err := mutate(changed); err != nil {
			return none, nil, fmt.Errorf("status: mutate: %w", err)
		}
	}
	if field := fields.Outside(obj, changed); field != "" {
		return none, nil, fmt.Errorf("status: mutate changed %s, which is outside the status: write that with its own request", field)
	}
	if apiequality.Semantic.DeepEqual(fields.Of(obj), fields.Of(changed)) {
		return none, nil, nil
	}
	// Values that differ in Go can be equal in JSON, such as a time with and without a
	// fraction of a second. A write would have no effect, and each reconcile would repeat it.
	before, _, err := plain(obj)
	if err != nil {
		return none, nil, err
	}
	after, size, err := plain(changed)
	if err != nil {
		return none, nil, err
	}
	if reflect.DeepEqual(before, after) {
		return none, nil, nil
	}
	// A map can hold any Go type. The checks below know only the types of JSON.
	if u, ok := any(changed).(fields.Unstructured); ok {
		content := u.UnstructuredContent()
		if content["status"] = after; after == nil {
			delete(content, "status")
		}
	}
	if err := forward(obj.GetGeneration(), before, after); err != nil {
		return none, nil, err
	}
	return changed, &edit{before, after}, sized(size)
}

// plain returns the status of obj in the types of unstructured objects, and its length in
// bytes of JSON.
func plain(obj any) (status any, size int, err error) {
	data, err := json.Marshal(fields.Of(obj))
	if err == nil {
		err = utiljson.Unmarshal(data, &status)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("status: status cannot be written as JSON: %w", err)
	}
	return status, len(data), nil
}

// usable rejects a nil client, and an object that did not come from the API server.
func usable(client any, obj metav1.Object) error {
	switch {
	case kube.IsNil(client):
		return errNoClient
	case kube.IsNil(obj):
		return errors.New("status: the object is nil: pass one that the API server returned")
	case obj.GetName() == "":
		return errors.New("status: the object has no metadata.name: pass one that the API server returned")
	case obj.GetResourceVersion() == "" || obj.GetResourceVersion() == "0": // both mean any version to the API server
		return fmt.Errorf("status: object %q has metadata.resourceVersion %q, which matches every version: pass one that the API server returned", obj.GetName(), obj.GetResourceVersion())
	}
	return nil
}

// identified is usable for requests that name the UID.
func identified(client any, obj metav1.Object) error {
	if err := usable(client, obj); err != nil {
		return err
	}
	if obj.GetUID() == "" {
		return fmt.Errorf("status: object %q has no metadata.uid: pass one that the API server returned", obj.GetName())
	}
	return nil
}

// tooLargeError is the error for a status of more than maxStatus bytes. No retry cures it.
type tooLargeError struct{ bytes int }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("status: status has %d bytes, more than %d: keep long lists in objects of their own", e.bytes, maxStatus)
}

func (*tooLargeError) Rejected() bool { return true }

// sized rejects a status of more than maxStatus bytes.
func sized(n int) error {
	if n > maxStatus {
		return &tooLargeError{n}
	}
	return nil
}

// forward rejects a status that shows an older generation than before, or a newer one
// than the object has. Both are in the types of unstructured objects.
func forward(generation int64, before, after any) error {
	_, old := observations(before)
	names, next := observations(after)
	for _, name := range names {
		old, next := old[name], next[name]
		switch {
		case next.newest < old.newest:
			return fmt.Errorf("status: %s shows generation %d, this result is for generation %d: reconcile again from a newer copy", name, old.newest, next.newest)
		case next.newest > old.newest && next.newest > generation:
			return fmt.Errorf("status: %s would show generation %d of an object with metadata.generation %d: use the generation of the copy that was reconciled", name, next.newest, generation)
		case next.unreadable != nil && !reflect.DeepEqual(old.unreadable, next.unreadable):
			return fmt.Errorf("status: %s would show generation %.32q, which is not a whole number: use the generation of the copy that was reconciled", name, fmt.Sprint(next.unreadable[0]))
		}
	}
	return nil
}

// observation has the values of one field observedGeneration. It has several if the
// conditions repeat a type.
type observation struct {
	newest     int64
	unreadable []any // the values that are not numbers
}

// observations returns the observedGeneration of a status and of each type of its
// conditions, and their names for errors in order. It reads field by field, because one
// unreadable condition, which any writer can store, must not hide the others.
func observations(status any) (names []string, all map[string]observation) {
	all = map[string]observation{}
	add := func(name string, content map[string]any) {
		o, known := all[name]
		if !known {
			names = append(names, name)
		}
		if generation, ok := fields.ObservedGeneration(content); ok {
			o.newest = max(o.newest, generation)
		} else {
			o.unreadable = append(o.unreadable, content["observedGeneration"])
		}
		all[name] = o
	}
	content, _ := status.(map[string]any)
	add("status.observedGeneration", content)
	conditions, _ := content["conditions"].([]any)
	for _, item := range conditions {
		if c, ok := item.(map[string]any); ok {
			conditionType, _ := c["type"].(string)
			add(fmt.Sprintf("condition %q", conditionType), c)
		}
	}
	return names, all
}
