package kstatus_test

import (
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// object decodes an object of generation 2 as a client does. content has its spec and status.
func object(t testing.TB, apiVersion, kind, content string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"one","namespace":"default","generation":2},%s}`, apiVersion, kind, content)
	u := new(unstructured.Unstructured)
	if err := utiljson.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return u
}

// named is a custom resource whose condition Ready has the status.
func named(t testing.TB, name string, status metav1.ConditionStatus) *unstructured.Unstructured {
	u := object(t, "example.com/v1", "Widget", fmt.Sprintf(`"status":{"conditions":[{"type":"Ready","status":%q,"reason":"R"}]}`, status))
	u.SetName(name)
	return u
}

// budget is an object whose condition Ready is True for its generation.
func budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", Generation: 3},
		Status: policyv1.PodDisruptionBudgetStatus{Conditions: []metav1.Condition{{
			Type: "Ready", Status: metav1.ConditionTrue, Reason: "Fine", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1e9, 0),
		}}},
	}
}

// refused checks that err is an error of the package with the text, or nil for no text.
func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: error %v, want none", what, err)
	case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "kstatus: ") || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error %v, want one of kstatus with %q", what, err, want)
	}
}

// shaped is an object with a status of type S.
type shaped[S any] struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            S `json:"status,omitempty"`
}

// Common is a part that several statuses embed.
type Common struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// ownList is a status whose conditions have a type of their own.
type ownList struct {
	ObservedGeneration int64      `json:"observedGeneration,omitempty"`
	Conditions         conditions `json:"conditions,omitempty"`
}

type conditions []metav1.Condition
