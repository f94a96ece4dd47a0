package status

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Patch is [Update] with a merge patch of the status subresource. It is for clients
// without UpdateStatus, and for types that do not know every field of the status: unknown
// fields stay, except in a list that changed. The patch has the changed fields, and the
// uid and resourceVersion of obj, which obj must have. If it sets a field that the schema lacks,
// the API server rejects it and stores nothing.
func Patch[T controllerkit.Object, F func(T) | func(T) error](ctx context.Context, c controllerkit.Patcher[T], obj T, mutate F) (T, error) {
	var none T
	if err := identified(c, obj); err != nil {
		return none, err
	}
	_, made, err := change(obj, mutate)
	if err != nil {
		return none, err
	}
	if made == nil {
		calls.NoteWrite(ctx, calls.Status, false)
		return obj, nil
	}
	status, differs := difference(made.before, made.after)
	if !differs {
		calls.NoteWrite(ctx, calls.Status, false)
		return obj, nil
	}
	body, err := json.Marshal(map[string]any{"metadata": guard(obj), "status": status})
	if err != nil {
		return none, fmt.Errorf("status: status cannot be written as JSON: %w", err)
	}
	calls.NoteWrite(ctx, calls.Status, true)
	stored, err := c.Patch(ctx, obj.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}, "status")
	if err != nil {
		return none, fmt.Errorf("status: patch: %w", kube.AsUnknownField(err))
	}
	calls.NoteWritten(ctx, stored)
	return stored, nil
}

// guard returns the metadata that makes the API server reject a write to another version
// or another object.
func guard(obj metav1.Object) map[string]any {
	return map[string]any{"uid": string(obj.GetUID()), "resourceVersion": obj.GetResourceVersion()}
}

// difference returns the merge patch (RFC 7386) from a to b. It treats an absent value as
// null, because such a patch cannot distinguish them.
func difference(a, b any) (patch any, differs bool) {
	after, ok := b.(map[string]any)
	if !ok {
		return b, !reflect.DeepEqual(a, b)
	}
	before, ok := a.(map[string]any)
	fields := map[string]any{}
	for name := range before {
		if after[name] == nil && before[name] != nil {
			fields[name] = nil
		}
	}
	for name, value := range after {
		if value == nil {
			continue
		}
		if p, differs := difference(before[name], value); differs {
			fields[name] = p
		}
	}
	return fields, !ok || len(fields) > 0
}
