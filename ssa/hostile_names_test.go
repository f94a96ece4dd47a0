package ssa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/ssa"
)

// theirs is the fieldsV1 entry of another manager.
func theirs(fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: "theirs", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "example.com/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

// bounded requires that f takes little time and memory.
func bounded(t *testing.T, f func()) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector changes the cost of a decision: make test runs this test without it")
	}
	begin := testcost.CPU()
	_, bytes := testcost.Of(f)
	took := testcost.CPU() - begin
	t.Logf("%v and %d MiB", took, bytes>>20)
	if took > 2*time.Second || bytes > 256<<20 {
		t.Errorf("%v and %d MiB", took, bytes>>20)
	}
}

// TestHostileNames: a name of a megabyte above many fields costs no copy for each of them.
//
// Proves CK3.
func TestHostileNames(t *testing.T) {
	const fields = 15_000
	for name, long := range map[string]string{"letters": strings.Repeat("n", 1<<20), "dots": strings.Repeat(".", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			members := owned(fields, func(i int) string { return fmt.Sprintf("f:%06x", i) })
			entry := theirs(`{"f:spec":{"f:l":{"f:` + long + `":` + members + `}}}`)
			spec := func(value any) string {
				return fmt.Sprintf(`,"spec":{"l":{%q:%s}}`, long, must2(json.Marshal(value)))
			}
			live := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{}`, "{}")
			live.SetManagedFields([]metav1.ManagedFieldsEntry{entry})
			same := untypedObject(t, "example.com/v1", "Thing", "", spec(numbered(fields, "%06x", constant("x"))), "")
			bounded(t, func() {
				if _, err := ssa.TryApply(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, same, live); err != nil {
					t.Errorf("TryApply() = %.200v, want no conflict", err)
				}
			})
			text := untypedObject(t, "example.com/v1", "Thing", "", spec("text"), "")
			bounded(t, func() {
				_, err := ssa.TryApply(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, text, live)
				conflict, ok := errors.AsType[*ssa.ConflictError](err)
				if !ok || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Field != ".spec.l."+long {
					t.Errorf("TryApply() = %.200v, want a conflict", err)
				}
			})
			conflict := &ssa.ConflictError{Conflicts: []ssa.Conflict{{Field: ".spec.l", Manager: "theirs"}, {Field: ".spec.l." + long, Manager: "theirs"}}}
			for i := range 20 {
				conflict.Conflicts = append(conflict.Conflicts, ssa.Conflict{Field: fmt.Sprintf(".spec.l.%s.%06x", long, i), Manager: "theirs"})
			}
			bounded(t, func() {
				owners := conflict.Owners(manager, live)
				if len(owners) != len(conflict.Conflicts) || owners[0].Operation != metav1.ManagedFieldsOperationUpdate || owners[1].Operation != metav1.ManagedFieldsOperationUpdate {
					t.Errorf("%d owners of %d conflicts, the first %.100v", len(owners), len(conflict.Conflicts), owners[:2])
				}
			})
		})
	}
}

// TestHostileMemory: a Memory does not encode an object that is too large to decide about.
//
// Proves CK3.
func TestHostileMemory(t *testing.T) {
	live := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"a":"b"}`, `{"f:spec":{"f:a":{}}}`)
	live.Object["spec"].(map[string]any)["l"] = listed(1_500_000, constant(int64(1)))
	config := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"a":"c"}`, "")
	var memory ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]
	bounded(t, func() {
		for range 20 {
			if _, applied, err := memory.ApplyChanged(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, config, live, nil); err != nil || !applied {
				t.Errorf("ApplyChanged() = %v, %v, want an apply", applied, err)
			}
		}
	})
}

// TestHostileSetValue: a long value of a set above many fields costs no copy for each of them.
//
// Proves CK3.
func TestHostileSetValue(t *testing.T) {
	const fields = 5_000
	entry := theirs(`{"f:spec":{"f:l":{"v:\"` + strings.Repeat("n", 64<<10) + `\"":` + owned(fields, func(i int) string { return fmt.Sprintf("f:%06x", i) }) + `}}}`)
	live := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "one"}}}
	live.SetManagedFields([]metav1.ManagedFieldsEntry{entry})
	conflict := &ssa.ConflictError{Conflicts: []ssa.Conflict{{Field: ".spec.l", Manager: "theirs"}}}
	bounded(t, func() {
		if owners := conflict.Owners(manager, live); len(owners) != 1 {
			t.Errorf("owners %v", owners)
		}
	})
}
