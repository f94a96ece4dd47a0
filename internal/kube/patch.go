package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// Operation is one operation of a JSON patch (RFC 6902). Value has no omitempty, because
// a test for null must contain the null. A remove and a copy ignore it.
type Operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Test returns the operation that fails the patch unless the field at path has the
// value. A nil value matches an absent field: the API server omits empty fields.
func Test(path string, value any) Operation {
	return Operation{Op: "test", Path: path, Value: value}
}

const uidPath = "/metadata/uid"

// TestUID returns the test that the patched object is obj and not a later object of the
// same name.
func TestUID(obj metav1.Object) Operation {
	return Test(uidPath, obj.GetUID())
}

// Patch sends the operations as one JSON patch. The error of a failed test is a
// Conflict; see [AsConflict]. A response without the tested UID is an error: some fakes return
// an empty object for a dry run, which would read as an object without any field.
func Patch[T any](ctx context.Context, client controllerkit.Patcher[T], name string, operations []Operation, opts metav1.PatchOptions, subresources ...string) (T, error) {
	var zero T
	data, err := json.Marshal(operations)
	if err != nil {
		return zero, err
	}
	patched, err := client.Patch(ctx, name, types.JSONPatchType, data, opts, subresources...)
	switch {
	case err != nil:
		return zero, AsConflict(err)
	case IsNil(patched):
		return zero, errors.New("the client returned neither an object nor an error")
	}
	if err := checkUID(patched, operations); err != nil {
		return zero, err
	}
	if len(opts.DryRun) == 0 {
		calls.NoteWritten(ctx, patched)
	}
	return patched, nil
}

// checkUID returns an error if the operations test a UID that patched does not have.
func checkUID(patched any, operations []Operation) error {
	obj, ok := patched.(metav1.Object)
	if !ok {
		return nil
	}
	for _, o := range operations {
		if o.Op == "test" && o.Path == uidPath && o.Value != obj.GetUID() {
			return fmt.Errorf("the client returned an object with metadata.uid %q for a patch that tests for %q: use a client that carries each patch out, in a unit test that of managertest.Fake", obj.GetUID(), o.Value)
		}
	}
	return nil
}
