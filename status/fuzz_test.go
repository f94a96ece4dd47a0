package status_test

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/status"
)

// Each byte of program is one Set: type, status, generation and time since the
// last. The conditions are compared with what a history says: the time of the last
// flip, the highest generation, the order of first appearance.
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

// merged is what RFC 7386 makes of a value and a merge patch.
func merged(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result := map[string]any{}
	if t, ok := target.(map[string]any); ok {
		for k, v := range t {
			result[k] = v
		}
	}
	for k, v := range p {
		if v == nil {
			delete(result, k)
		} else {
			result[k] = merged(result[k], v)
		}
	}
	return result
}

// withoutNull is a status as a merge patch can leave it.
func withoutNull(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	result := map[string]any{}
	for k, v := range m {
		if v != nil {
			result[k] = withoutNull(v)
		}
	}
	return result
}

// Any two statuses: the patch makes the one out of the other, sends no field that
// they share, and there is none if they are the same.
//
// Proves S3.
func FuzzPatch(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":[1,2],"d":null}}`), []byte(`{"a":1,"b":{"c":[1],"e":{}}}`))
	f.Add([]byte(`{"conditions":[{"type":"A"}],"a":{"b":{"c":1}}}`), []byte(`{"conditions":[{"type":"B"}],"a":"x"}`))
	f.Add([]byte(`{"a":"x"}`), []byte(`{"a":{"b":null}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var before, after map[string]any
		if utiljson.Unmarshal(a, &before) != nil || utiljson.Unmarshal(b, &after) != nil || before == nil || after == nil {
			t.Skip()
		}
		obj := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "one", "uid": "u", "resourceVersion": "1"}, "status": withoutNull(before),
		}}
		// As JSON, because the strings in it are not all UTF-8.
		normal := func(v any) string {
			data, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		if _, ok := after["observedGeneration"]; ok || normal(before["conditions"]) != normal(after["conditions"]) {
			t.Skip() // there are rules about these
		}
		if _, ok := before["observedGeneration"]; ok {
			t.Skip()
		}
		r := &recorder[*unstructured.Unstructured]{}
		if _, err := status.Patch(t.Context(), r, obj, func(u *unstructured.Unstructured) { u.Object["status"] = after }); err != nil {
			t.Fatal(err)
		}
		want := normal(withoutNull(after))
		if r.data == nil {
			if got := normal(withoutNull(before)); got != want {
				t.Fatalf("no patch from %s to %s", got, want)
			}
			return
		}
		if normal(withoutNull(before)) == want {
			t.Fatalf("patch %s changes nothing in %s", r.data, want)
		}
		var patch map[string]any
		if err := utiljson.Unmarshal(r.data, &patch); err != nil {
			t.Fatal(err)
		}
		if got := normal(merged(obj.Object["status"], patch["status"])); got != want {
			t.Fatalf("patch %s makes %s out of %s, want %s", r.data, got, normal(before), want)
		}
		for name := range patch["status"].(map[string]any) {
			if normal(withoutNull(before[name])) == normal(withoutNull(after[name])) {
				t.Fatalf("patch %s has %s, which did not change", r.data, name)
			}
		}
	})
}
