package status_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
)

// ownCondition is like the conditions of Deployments and of many projects.
type ownCondition struct {
	Type               string                 `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	LastUpdateTime     metav1.Time            `json:"lastUpdateTime,omitempty"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime,omitempty"`
	Severity           string                 `json:"severity,omitempty"`
	Reason             string                 `json:"reason,omitempty"`
	Message            string                 `json:"message,omitempty"`
}

// TestSetOf: conditions of another type follow the rules of Set and keep their other fields.
func TestSetOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := metav1.Now().Rfc3339Copy()
		list := []ownCondition{
			{Type: "Other", Status: corev1.ConditionUnknown, Severity: "Info"}, // without a time or a reason
			{Type: "Ready", Status: corev1.ConditionFalse, Reason: "Starting", LastUpdateTime: begin, LastTransitionTime: begin, Severity: "Error"},
		}
		time.Sleep(time.Hour)
		now := metav1.Now().Rfc3339Copy()
		if err := status.SetOf(&list, 3, status.False("Ready", "Waiting", "for a Pod"), status.True("New", "Made", "")); err != nil {
			t.Fatal(err)
		}
		// The times have the local zone after JSON.
		equal := cmp.Comparer(func(a, b metav1.Time) bool { return a.Equal(&b) })
		want := []ownCondition{
			{Type: "Other", Status: corev1.ConditionUnknown, Severity: "Info"},
			{Type: "Ready", Status: corev1.ConditionFalse, Reason: "Waiting", Message: "for a Pod", LastUpdateTime: begin, LastTransitionTime: begin, Severity: "Error"},
			{Type: "New", Status: corev1.ConditionTrue, Reason: "Made", LastTransitionTime: now},
		}
		if diff := cmp.Diff(want, list, equal); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		before := list
		if err := status.SetOf(&list, 3, status.True("Ready", "Made", "")); err != nil || !list[1].LastTransitionTime.Equal(&now) || before[1].Reason != "Waiting" {
			t.Errorf("a changed status: %+v, %v; the list of before: %+v", list, err, before)
		}
	})
	deployment := []corev1.PodCondition{}
	if err := status.SetOf(&deployment, 4, status.True("Ready", "Made", "")); err != nil || deployment[0].ObservedGeneration != 4 {
		t.Errorf("a type with observedGeneration: %+v, %v", deployment, err)
	}
	if err := status.SetOf(&deployment, 3, status.True("Ready", "Made", "")); err == nil || !strings.Contains(err.Error(), "generation 4") {
		t.Errorf("an older generation: %v", err)
	}
}

// TestSetOfFraction: a stored time with a fraction of a second stays until the status changes.
func TestSetOfFraction(t *testing.T) {
	at := time.Date(2026, time.May, 1, 12, 0, 0, 123456789, time.UTC)
	setFraction(t, at)
	setFraction(t, &at)
	setFraction(t, at.Format(time.RFC3339Nano))
	setFraction(t, metav1.NewMicroTime(at.Truncate(time.Microsecond)))
}

func setFraction[T any](t *testing.T, at T) {
	t.Helper()
	type condition struct {
		Type               string `json:"type"`
		Status             string `json:"status"`
		LastTransitionTime T      `json:"lastTransitionTime"`
		Reason             string `json:"reason"`
		Message            string `json:"message"`
	}
	list := []condition{{"Ready", "False", at, "Waiting", ""}}
	if err := status.SetOf(&list, 3, status.False("Ready", "Waiting", "for a Pod")); err != nil {
		t.Errorf("%T: another message: %v", at, err)
	}
	if want := []condition{{"Ready", "False", at, "Waiting", "for a Pod"}}; !cmp.Equal(list, want) {
		t.Errorf("%T: %+v, want %+v", at, list, want)
	}
}

// TestSetOfBad: a type that is no condition is an error, and the list stays.
func TestSetOfBad(t *testing.T) {
	type small struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	}
	list := []small{{Type: "A"}}
	for _, tt := range []struct {
		name, want string
		err        error
	}{
		{"nil", "conditions is nil", status.SetOf[small](nil, 1)},
		{"no reason", "has not all of the fields", status.SetOf(&list, 1, status.True("Ready", "Made", ""))},
		{"no struct", "status: condition", status.SetOf(&[]int{1}, 1, status.True("Ready", "Made", ""))},
		{"no reason given", `condition "Ready"`, status.SetOf(&[]ownCondition{}, 1, status.True("Ready", "", ""))},
		{"too many", "at most 1000", status.SetOf(new(make([]ownCondition, 1001)), 1, status.True("Ready", "Made", ""))},
		{"not JSON", "status: condition 0", status.SetOf(&[]func(){func() {}}, 1, status.True("Ready", "Made", ""))},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, tt.err, tt.want)
		}
	}
	if len(list) != 1 || list[0].Type != "A" {
		t.Errorf("the list is %v", list)
	}
}
