package applyset_test

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// The response to an attempt decides about the next step.
func TestAttemptNext(t *testing.T) {
	live := func(version string) *metav1.ObjectMeta { return &metav1.ObjectMeta{UID: "u", ResourceVersion: version} }
	response := func(version, manager string) *unstructured.Unstructured {
		u := new(unstructured.Unstructured)
		u.SetResourceVersion(version)
		u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager}})
		return u
	}
	invalid := func(at string, message string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "one", field.ErrorList{field.Invalid(field.NewPath(at), "x", message)})
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "one", errors.New("changed"))
	immutable := invalid("spec", "field is immutable")
	tests := []struct {
		name     string
		attempt  applyset.Attempt
		response *unstructured.Unstructured
		err      error
		want     string
		action   applyset.Action
	}{
		{name: "created", response: response("1", manager), want: "accept", action: applyset.Created},
		{name: "created beside a mutating webhook", response: response("1", "other"), want: "accept", action: applyset.Created},
		{name: "recreated", attempt: applyset.Attempt{Recreated: true, Previous: 1}, response: response("1", manager), want: "accept", action: applyset.Recreated},
		{name: "adopted", attempt: applyset.Attempt{Live: live("1"), Adopts: true}, response: response("2", "other"), want: "accept", action: applyset.Adopted},
		{name: "unchanged", attempt: applyset.Attempt{Live: live("1")}, response: response("1", manager), want: "accept", action: applyset.Unchanged},
		{name: "changed", attempt: applyset.Attempt{Live: live("1")}, response: response("2", "other"), want: "accept", action: applyset.Changed},
		{name: "conflict", err: conflict, want: "readAgain"},
		{name: "another uid", err: invalid("metadata.uid", "field is immutable"), attempt: applyset.Attempt{Live: live("1"), MayRecreate: true}, want: "readAgain"},
		{name: "the last conflict", err: conflict, attempt: applyset.Attempt{Previous: 3}, want: "fail"},
		{name: "immutable", err: immutable, attempt: applyset.Attempt{Live: live("1"), MayRecreate: true}, want: "recreate"},
		{name: "immutable after conflicts", err: immutable, attempt: applyset.Attempt{Live: live("1"), MayRecreate: true, Previous: 3}, want: "recreate"},
		{name: "immutable, not to be deleted", err: immutable, attempt: applyset.Attempt{Live: live("1")}, want: "fail"},
		{name: "invalid otherwise", err: invalid("spec", "must be positive"), attempt: applyset.Attempt{Live: live("1"), MayRecreate: true}, want: "fail"},
		{name: "created without a version", attempt: applyset.Attempt{RejectsNoVersion: true, Previous: 1}, response: response("1", manager), want: "accept", action: applyset.Created},
		{name: "met without a version", attempt: applyset.Attempt{RejectsNoVersion: true, Previous: 1}, response: response("1", "other"), want: "undo"},
		{name: "another error", err: errBoom, want: "fail"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if step, action := tt.attempt.Next(manager, tt.response, tt.err); step != tt.want || action != tt.action {
				t.Errorf("step %s, action %q; want %s, %q", step, action, tt.want, tt.action)
			}
		})
	}
}

// With Own, an object that an earlier parent of the same name controls is a wait for the garbage
// collector, and one of another owner is not.
func TestOwnedByAnEarlierParent(t *testing.T) {
	s := &applyset.Set{Own: true, ParentKind: schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Gallery"}}
	parent := &metav1.ObjectMeta{Namespace: "a", Name: "one", UID: "new"}
	for _, tt := range []struct {
		group, kind, name string
		waits             bool
	}{
		{"example.com/v1", "Gallery", "one", true},
		{"example.com/v1", "Gallery", "two", false},
		{"example.com/v1", "Website", "one", false},
		{"v1", "Gallery", "one", false},
	} {
		owner := metav1.OwnerReference{APIVersion: tt.group, Kind: tt.kind, Name: tt.name, UID: "old", Controller: new(true)}
		err := applyset.MayApply(s, parent, &metav1.ObjectMeta{Name: "x", OwnerReferences: []metav1.OwnerReference{owner}})
		var waiting controllerkit.WaitingError
		if waits := errors.As(err, &waiting); err == nil || waits != tt.waits || waits && waiting.Waits() <= 0 {
			t.Errorf("%+v: error %v, want a WaitingError: %t", tt, err, tt.waits)
		}
	}
}
