package status_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/status"
)

func TestBuilders(t *testing.T) {
	for _, tt := range []struct {
		got  metav1.Condition
		want metav1.ConditionStatus
	}{
		{got: status.True("T", "R", "m"), want: metav1.ConditionTrue},
		{got: status.False("T", "R", "m"), want: metav1.ConditionFalse},
		{got: status.Unknown("T", "R", "m"), want: metav1.ConditionUnknown},
	} {
		if want := (metav1.Condition{Type: "T", Status: tt.want, Reason: "R", Message: "m"}); tt.got != want {
			t.Errorf("got %+v, want %+v", tt.got, want)
		}
	}
}

// lastTransitionTime moves when the status flips, to whole seconds, and at no
// other time.
func TestSetTransitionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1500 * time.Millisecond) // off the whole second
		var conditions []metav1.Condition
		steps := []struct {
			name string
			set  metav1.Condition
			gen  int64
			flip bool
		}{
			{name: "new", set: status.True("Ready", "A", ""), gen: 1, flip: true},
			{name: "same", set: status.True("Ready", "A", ""), gen: 1},
			{name: "other reason", set: status.True("Ready", "B", ""), gen: 1},
			{name: "other message", set: status.True("Ready", "B", "m"), gen: 1},
			{name: "other generation", set: status.True("Ready", "B", "m"), gen: 2},
			{name: "to False", set: status.False("Ready", "B", "m"), gen: 2, flip: true},
			{name: "to Unknown", set: status.Unknown("Ready", "B", "m"), gen: 2, flip: true},
			{name: "a time is given", set: metav1.Condition{Type: "Ready", Status: metav1.ConditionUnknown, Reason: "B", LastTransitionTime: metav1.Unix(5, 0)}, gen: 3},
			{name: "a time is given with a flip", set: metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "B", LastTransitionTime: metav1.Unix(5, 0)}, gen: 3, flip: true},
		}
		var last metav1.Time
		for _, tt := range steps {
			if err := status.Set(&conditions, tt.gen, tt.set); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			c := conditions[0]
			want := last
			if tt.flip {
				want = metav1.Time{Time: time.Now().Truncate(time.Second)}
			}
			if !c.LastTransitionTime.Equal(&want) {
				t.Errorf("%s: lastTransitionTime = %v, want %v", tt.name, c.LastTransitionTime, want)
			}
			if c.ObservedGeneration != tt.gen || c.Reason != tt.set.Reason || c.Message != tt.set.Message || c.Status != tt.set.Status {
				t.Errorf("%s: condition = %+v", tt.name, c)
			}
			last = c.LastTransitionTime
			time.Sleep(10 * time.Second)
		}
		// The API requires a time; one that was left out is filled in.
		conditions[0].LastTransitionTime = metav1.Time{}
		if err := status.Set(&conditions, 3, status.True("Ready", "B", "")); err != nil || conditions[0].LastTransitionTime.IsZero() {
			t.Errorf("a missing lastTransitionTime stays %v, error %v", conditions[0].LastTransitionTime, err)
		}
	})
}

func TestSetOrderAndAliases(t *testing.T) {
	old := []metav1.Condition{
		{Type: "B", Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Unix(1, 0)},
		{Type: "Other", Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Unix(1, 0)},
		{Type: "A", Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Unix(1, 0)},
	}
	before := slices.Clone(old)
	conditions := old
	if err := status.Set(&conditions, 1, status.False("A", "R", ""), status.True("C", "R", ""), status.True("B", "R", "")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range conditions {
		got = append(got, c.Type+string(c.Status))
	}
	if want := []string{"BTrue", "OtherTrue", "AFalse", "CTrue"}; !slices.Equal(got, want) {
		t.Errorf("conditions = %q, want %q", got, want)
	}
	if diff := cmp.Diff(before[1], conditions[1]); diff != "" {
		t.Errorf("another's condition changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before, old); diff != "" {
		t.Errorf("elements of the old slice changed (-before +after):\n%s", diff)
	}
}

func TestSetRefuses(t *testing.T) {
	valid := status.True("Valid", "R", "")
	tests := []struct {
		name string
		set  []metav1.Condition
		gen  int64
		text string
	}{
		{name: "no type", set: []metav1.Condition{status.True("", "R", "")}, gen: 5, text: "type"},
		{name: "type with a space", set: []metav1.Condition{status.True("Not Ready", "R", "")}, gen: 5, text: "type"},
		{name: "no reason", set: []metav1.Condition{status.True("Ready", "", "")}, gen: 5, text: "reason"},
		{name: "reason is a sentence", set: []metav1.Condition{status.True("Ready", "all is well", "")}, gen: 5, text: "reason"},
		{name: "reason too long", set: []metav1.Condition{status.True("Ready", strings.Repeat("a", 1025), "")}, gen: 5, text: "reason"},
		{name: "no status", set: []metav1.Condition{{Type: "Ready", Reason: "R"}}, gen: 5, text: "status"},
		{name: "other status", set: []metav1.Condition{{Type: "Ready", Reason: "R", Status: "Yes"}}, gen: 5, text: "status"},
		{name: "negative generation", set: []metav1.Condition{status.True("New", "R", "")}, gen: -1, text: "observedGeneration"},
		{name: "older generation", set: []metav1.Condition{status.True("Ready", "R", "")}, gen: 4, text: "generation 5"},
		{name: "second is invalid", set: []metav1.Condition{valid, status.True("Ready", "", "")}, gen: 5, text: "reason"},
		{name: "second is older", set: []metav1.Condition{valid, status.True("Ready", "R", "")}, gen: 4, text: "generation 5"},
		{name: "twice", set: []metav1.Condition{valid, status.False("Valid", "R", "")}, gen: 5, text: "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conditions := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "R", ObservedGeneration: 5, LastTransitionTime: metav1.Unix(1, 0)}}
			before := slices.Clone(conditions)
			err := status.Set(&conditions, tt.gen, tt.set...)
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error = %v, want one about %s", err, tt.text)
			}
			if diff := cmp.Diff(before, conditions); diff != "" {
				t.Errorf("conditions changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestSetMessages(t *testing.T) {
	tests := []struct {
		name    string
		message string
		want    string
	}{
		{name: "as it is", message: "grün", want: "grün"},
		{name: "longest", message: strings.Repeat("a", 32768), want: strings.Repeat("a", 32768)},
		{name: "too long", message: strings.Repeat("a", 32769), want: strings.Repeat("a", 32768)},
		{name: "cut between letters", message: strings.Repeat("a", 32767) + "ü", want: strings.Repeat("a", 32767)},
		{name: "not UTF-8", message: "a\xffb", want: "a\uFFFDb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var conditions []metav1.Condition
			if err := status.Set(&conditions, 1, status.True("Ready", "R", tt.message)); err != nil {
				t.Fatal(err)
			}
			if got := conditions[0].Message; got != tt.want || !utf8.ValidString(got) {
				t.Errorf("message of %d bytes, want %d: %.40q", len(got), len(tt.want), got)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	at := func(gen int64, c metav1.Condition) metav1.Condition {
		c.ObservedGeneration = gen
		return c
	}
	a, b := at(2, status.True("A", "Fine", "a")), at(2, status.True("B", "Fine", "b"))
	notA, notB := at(2, status.False("A", "NoA", "a is down")), at(2, status.False("B", "NoB", "b is down"))
	dunnoA := at(2, status.Unknown("A", "AskA", "asking a"))
	tests := []struct {
		name       string
		conditions []metav1.Condition
		parts      []string
		want       metav1.Condition
	}{
		{name: "all True", conditions: []metav1.Condition{b, a}, parts: []string{"A", "B"}, want: status.True("Ready", "AllTrue", "A, B")},
		{name: "others do not count", conditions: []metav1.Condition{a, notB}, parts: []string{"A"}, want: status.True("Ready", "AllTrue", "A")},
		{name: "one False", conditions: []metav1.Condition{a, notB}, parts: []string{"A", "B"}, want: status.False("Ready", "NoB", "B: b is down")},
		{name: "first False decides", conditions: []metav1.Condition{notB, notA}, parts: []string{"A", "B"}, want: status.False("Ready", "NoA", "A: a is down; B: b is down")},
		{name: "False beats Unknown", conditions: []metav1.Condition{dunnoA, notB}, parts: []string{"A", "B"}, want: status.False("Ready", "NoB", "A: asking a; B: b is down")},
		{name: "Unknown beats True", conditions: []metav1.Condition{b, dunnoA}, parts: []string{"B", "A"}, want: status.Unknown("Ready", "AskA", "A: asking a")},
		{name: "missing", conditions: []metav1.Condition{a}, parts: []string{"A", "B"}, want: status.Unknown("Ready", "NotReported", "B: not reported")},
		{name: "True for an older generation", conditions: []metav1.Condition{at(1, a), b}, parts: []string{"A", "B"}, want: status.Unknown("Ready", "Outdated", "A: reported for generation 1, not 2")},
		{name: "False for an older generation", conditions: []metav1.Condition{at(1, notA), b}, parts: []string{"A", "B"}, want: status.Unknown("Ready", "Outdated", "A: reported for generation 1, not 2")},
		{name: "a part without a reason", conditions: []metav1.Condition{at(2, status.False("A", "", "a is down"))}, parts: []string{"A"}, want: status.False("Ready", "NotReported", "A: a is down")},
		{name: "a part without a status", conditions: []metav1.Condition{at(2, metav1.Condition{Type: "A", Reason: "NoA", Message: "m"})}, parts: []string{"A"}, want: status.Unknown("Ready", "NoA", "A: m")},
		{name: "no parts", conditions: []metav1.Condition{a}, want: status.Unknown("Ready", "NotReported", "no parts")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := status.Summary(tt.conditions, 2, "Ready", tt.parts...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var set []metav1.Condition
			if err := status.Set(&set, 2, got); err != nil || !meta.IsStatusConditionPresentAndEqual(set, "Ready", tt.want.Status) {
				t.Errorf("Set does not take it: %v", err)
			}
		})
	}
}

// The conditions of an unstructured object. What metav1.Condition lacks stays, and a
// failure changes nothing.
func TestSetUnstructured(t *testing.T) {
	const old = "2020-01-01T00:00:00Z"
	condition := func(conditionType, status string, extra ...any) map[string]any {
		c := map[string]any{"type": conditionType, "status": status, "reason": "R", "message": "", "lastTransitionTime": old, "observedGeneration": int64(1)}
		if len(extra) > 0 {
			c["severity"] = extra[0]
		}
		return c
	}
	object := func(status any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(2)}}}
		if status != nil {
			u.Object["status"] = status
		}
		return u
	}
	ready := status.True("Ready", "R", "")
	for _, tt := range []struct {
		name string
		u    *unstructured.Unstructured
		want []any // of the conditions, without the times that are now
		err  string
	}{
		{name: "no status", u: object(nil), want: []any{"Ready True 2 now <nil>"}},
		{name: "no conditions", u: object(map[string]any{"other": "x"}), want: []any{"Ready True 2 now <nil>"}},
		{
			name: "others stay with their fields",
			u:    object(map[string]any{"conditions": []any{condition("Other", "False", "high"), condition("Ready", "True", "low")}}),
			want: []any{"Other False 1 " + old + " high", "Ready True 2 " + old + " <nil>"},
		},
		{name: "flip", u: object(map[string]any{"conditions": []any{condition("Ready", "False")}}), want: []any{"Ready True 2 now <nil>"}},
		{name: "no list", u: object(map[string]any{"conditions": "x"}), err: "status.conditions of the unstructured object is no list of objects"},
		{name: "no object", u: object(map[string]any{"conditions": []any{"x"}}), err: "status.conditions of the unstructured object is no list of objects"},
		{name: "no map", u: object("x"), err: "the unstructured object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.u.DeepCopy()
			err := status.Set(tt.u, 2, ready)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "status: ") || cmp.Diff(before, tt.u) != "" {
					t.Errorf("%v, want %s\n%s", err, tt.err, cmp.Diff(before, tt.u))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			list, _, err := unstructured.NestedSlice(tt.u.Object, "status", "conditions")
			if err != nil {
				t.Fatal(err)
			}
			var got []any
			for _, item := range list {
				c := item.(map[string]any)
				if c["lastTransitionTime"] != old {
					c["lastTransitionTime"] = "now"
				}
				got = append(got, fmt.Sprint(c["type"], " ", c["status"], " ", c["observedGeneration"], " ", c["lastTransitionTime"], " ", c["severity"]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if other, _, _ := unstructured.NestedString(before.Object, "status", "other"); other != "" && tt.u.Object["status"].(map[string]any)["other"] != other {
				t.Error("the rest of the status is lost")
			}
		})
	}
	u := object(map[string]any{"conditions": []any{condition("Ready", "True")}})
	before := u.DeepCopy()
	if err := status.Set(u, 0, ready); err == nil || cmp.Diff(before, u) != "" {
		t.Errorf("an old generation: %v %s", err, cmp.Diff(before, u))
	}
}
