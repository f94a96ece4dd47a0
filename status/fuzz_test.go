package status_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
)

// Each byte of program is one Set: type, status, generation and time since the
// last. The conditions are compared with what a history says: the time of the last
// flip, the highest generation, the order of first appearance.
//
// Proves S5, S6.
func FuzzConditionUpdates(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 255, 128, 64, 0, 0})
	f.Add([]byte("a condition flips and flips"))
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 200 {
			program = program[:200]
		}
		synctest.Test(t, func(t *testing.T) {
			types := []string{"A", "B", "example.com/C"}
			statuses := []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown, "Bad"}
			var conditions []metav1.Condition
			want := map[string]metav1.Condition{}
			var order []string
			for i, step := range program {
				typ := types[step%3]
				set := metav1.Condition{Type: typ, Status: statuses[step/3%4], Reason: "R", Message: string(program[i:])}
				generation := int64(step / 12 % 4)
				time.Sleep(time.Duration(step) * 37 * time.Millisecond)

				old, known := want[typ]
				ok := set.Status != "Bad" && (!known || generation >= old.ObservedGeneration)
				before := slices.Clone(conditions)
				if err := status.Set(&conditions, generation, set); (err == nil) != ok {
					t.Fatalf("step %d: error = %v, want success: %v", i, err, ok)
				}
				if !ok {
					if diff := cmp.Diff(before, conditions); diff != "" {
						t.Fatalf("step %d: a refused Set changed (-before +after):\n%s", i, diff)
					}
					continue
				}
				expected := metav1.Condition{Status: set.Status, ObservedGeneration: generation, LastTransitionTime: old.LastTransitionTime}
				if !known {
					order = append(order, typ)
				}
				if !known || old.Status != set.Status {
					expected.LastTransitionTime = metav1.Time{Time: time.Now().Truncate(time.Second)}
				}
				want[typ] = expected
				if len(conditions) != len(order) {
					t.Fatalf("step %d: %d conditions, want %d", i, len(conditions), len(order))
				}
				for j, typ := range order {
					got, want := conditions[j], want[typ]
					if got.Type != typ || got.Status != want.Status || got.ObservedGeneration != want.ObservedGeneration || !got.LastTransitionTime.Equal(&want.LastTransitionTime) {
						t.Fatalf("step %d: condition %d = %+v, want %s %+v", i, j, got, typ, want)
					}
				}
				// What is stored is what is compared next time: nothing is lost on the wire.
				c := meta.FindStatusCondition(conditions, typ)
				if c.LastTransitionTime.Nanosecond() != 0 {
					t.Fatalf("step %d: lastTransitionTime %v has a fraction", i, c.LastTransitionTime)
				}
			}
		})
	})
}
