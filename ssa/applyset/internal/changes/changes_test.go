package changes_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/changes"
)

// TestPaths: values that are added, removed or changed have a path, and those that each write sets have none.
func TestPaths(t *testing.T) {
	before := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "one", "resourceVersion": "1", "generation": int64(1)},
		"spec":     map[string]any{"a": "1", "b": []any{"x"}, "c": true},
	}}
	after := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "one", "resourceVersion": "2", "generation": int64(2)},
		"spec":     map[string]any{"a": "1", "b": []any{"y"}, "d": map[string]any{"e": "2"}},
	}}
	if got, want := changes.Paths(before, after), []string{".spec.b", ".spec.c", ".spec.d"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := changes.Paths(after, after); len(got) > 0 {
		t.Errorf("an object differs from itself in %q", got)
	}
}
