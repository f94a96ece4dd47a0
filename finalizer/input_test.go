package finalizer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
)

func TestPlanValidate(t *testing.T) {
	run := says(done, nil)
	client := &answering{}
	tests := []struct {
		name string
		plan plan
		text []string
	}{
		{name: "no client", plan: plan{Steps: []step{{Name: "a", Run: run}}}, text: []string{"Plan.Client is nil"}},
		{name: "nil pointer as client", plan: plan{Client: (*model)(nil), Steps: []step{{Name: "a", Run: run}}}, text: []string{"Plan.Client is nil"}},
		{name: "no steps", plan: plan{Client: client}, text: []string{"Plan.Steps is empty"}},
		{name: "no name", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run}, {Run: run}}}, text: []string{"Plan.Steps[1].Name is empty"}},
		{name: "no run", plan: plan{Client: client, Steps: []step{{Name: "a"}}}, text: []string{"Plan.Steps[0].Run is nil", "step a"}},
		{name: "name twice", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run}, {Name: "a", Run: run}}}, text: []string{"Plan.Steps[1].Name is a"}},
		{name: "after itself", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, After: []string{"a"}}}}, text: []string{"Plan.Steps[0].After", `"a"`, "earlier"}},
		{name: "after a later one", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, After: []string{"b"}}, {Name: "b", Run: run}}}, text: []string{"Plan.Steps[0].After", `"b"`, "earlier"}},
		{name: "after nobody", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run}, {Name: "b", Run: run, After: []string{"a", "x"}}}}, text: []string{"Plan.Steps[1].After", `"x"`}},
		{name: "after empty", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, After: []string{}}}}, text: []string{"Plan.Steps[0].After is empty", "AtOnce"}},
		{name: "after and at once", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run}, {Name: "b", Run: run, AtOnce: true, After: []string{"a"}}}}, text: []string{"Plan.Steps[1]", "AtOnce and After"}},
		{name: "negative", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, Timeout: -1}}}, text: []string{"Plan.Steps[0]", "negative"}},
		{name: "gives up in silence", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, GiveUpAfter: time.Hour}}}, text: []string{"Plan.GaveUp is nil", "step a"}},
		{name: "nil pointer as metrics", plan: plan{Client: client, Metrics: (*observed)(nil), Steps: []step{{Name: "a", Run: run}}}},
		{name: "valid", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run}, {Name: "b", Run: run, AtOnce: true}, {Name: "c", Run: run, After: []string{"a", "b"}}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.plan.Validate()
			if (err == nil) != (tt.text == nil) {
				t.Fatalf("error = %v, want one: %v", err, tt.text != nil)
			}
			for _, text := range tt.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not contain %q", err, text)
				}
			}
			if err == nil {
				return
			}
			// Run says the same, before any request.
			_, _, ran := finalizer.Ensure(t.Context(), client, object("a", true, name), name, tt.plan.Run)
			if ran == nil || !strings.Contains(ran.Error(), err.Error()) {
				t.Errorf("Run says %v, Validate %v", ran, err)
			}
			if client.calls > 0 {
				t.Errorf("%d requests with a plan that is not valid", client.calls)
			}
		})
	}
}

// What can only be a mistake fails before any request.
//
// Proves CK2.
func TestBadInput(t *testing.T) {
	nameless := object("a", true, name)
	nameless.Name = ""
	tests := []struct {
		name      string
		obj       *corev1.ConfigMap
		finalizer string
		text      string
	}{
		{name: "nil object", finalizer: name, text: "the object is nil"},
		{name: "no name", obj: nameless, finalizer: name, text: "metadata.name"},
		{name: "no uid", obj: object("", true, name), finalizer: name, text: "metadata.uid"},
		{name: "no finalizer name", obj: object("a", true), text: "not a finalizer name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &answering{}
			calls := map[string]func() error{
				"Ensure": func() error {
					_, _, err := finalizer.Ensure(t.Context(), c, tt.obj, tt.finalizer, func(context.Context, held) error { return nil })
					return err
				},
				"Add":    func() error { _, err := finalizer.Add(t.Context(), c, tt.obj, tt.finalizer); return err },
				"Remove": func() error { _, err := finalizer.Remove(t.Context(), c, tt.obj, tt.finalizer); return err },
			}
			for what, call := range calls {
				if err := call(); err == nil || !strings.Contains(err.Error(), tt.text) || !strings.HasPrefix(err.Error(), "finalizer ") {
					t.Errorf("%s: error = %v, want %q in it", what, err, tt.text)
				}
			}
			if c.calls > 0 {
				t.Errorf("%d requests", c.calls)
			}
		})
	}
	t.Run("nil interface", func(t *testing.T) {
		if _, err := finalizer.Add[metav1.Object](t.Context(), nil, nil, name); err == nil || !strings.Contains(err.Error(), "the object is nil") {
			t.Errorf("error = %v", err)
		}
	})
	for _, tt := range []struct {
		name   string
		client controllerkit.Patcher[*corev1.ConfigMap]
	}{{name: "nil client"}, {name: "nil pointer as client", client: (*model)(nil)}} {
		t.Run(tt.name, func(t *testing.T) {
			for _, obj := range []*corev1.ConfigMap{object("a", false), object("a", false, name), object("a", true, name)} {
				_, added := finalizer.Add(t.Context(), tt.client, obj, name)
				_, removed := finalizer.Remove(t.Context(), tt.client, obj, name)
				_, _, ensured := finalizer.Ensure(t.Context(), tt.client, obj, name, func(context.Context, held) error {
					t.Error("the cleanup runs, and nothing can remove the finalizer after it")
					return nil
				})
				for _, err := range []error{added, removed, ensured} {
					if err == nil || !strings.Contains(err.Error(), "the client is nil") {
						t.Errorf("finalizers %q: error = %v", obj.Finalizers, err)
					}
				}
			}
		})
	}
}

// A 404 that is not about the object proves no absence.
func TestNotServedIsNotGone(t *testing.T) {
	for _, answer := range []error{notServed, noSuchResource} {
		if _, err := finalizer.Remove(t.Context(), &answering{err: answer}, object("a", true, name), name); !apierrors.IsNotFound(err) {
			t.Errorf("Remove: error = %v, want %v", err, answer)
		}
		p := plan{Client: &answering{err: answer}, Steps: []step{{Name: "a", Run: says(done, nil)}}}
		if _, _, err := finalizer.Ensure(t.Context(), &answering{}, object("a", true, name), name, p.Run); !apierrors.IsNotFound(err) {
			t.Errorf("Plan: error = %v, want %v", err, answer)
		}
	}
}
