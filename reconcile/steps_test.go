package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/reconcile"
)

// TestSteps proves R10, what runs, what does not, and what comes out, for every way in which a list can end.
func TestSteps(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "settings", errors.New("changed"))
	killed := errors.New("leadership lost")
	type outcome struct {
		res *reconcile.Result
		err error
		end bool // ends the context
	}
	tests := []struct {
		name     string
		steps    map[string]outcome // by name: those of a, b, c that are not listed go on
		done     bool               // the context is done from the start
		want     reconcile.Result
		wantRan  []string
		wantErr  error
		wantText string
	}{
		{name: "all go on", wantRan: []string{"a", "b", "c"}},
		{name: "a step waits", steps: map[string]outcome{"b": {res: &reconcile.Result{RequeueAfter: time.Minute}}}, want: reconcile.Result{RequeueAfter: time.Minute}, wantRan: []string{"a", "b"}},
		{name: "a step is the last", steps: map[string]outcome{"a": {res: &reconcile.Result{}}}, wantRan: []string{"a"}},
		{name: "a step fails", steps: map[string]outcome{"b": {err: conflict}}, wantRan: []string{"a", "b"}, wantErr: conflict, wantText: "step b: Operation cannot be fulfilled"},
		{name: "a step fails and says when", steps: map[string]outcome{"c": {res: &reconcile.Result{RequeueAfter: time.Hour}, err: reconcile.ErrTerminal}}, want: reconcile.Result{RequeueAfter: time.Hour}, wantRan: []string{"a", "b", "c"}, wantErr: reconcile.ErrTerminal, wantText: "step c: "},
		{name: "the context ends", steps: map[string]outcome{"a": {end: true}}, wantRan: []string{"a"}, wantErr: killed, wantText: "step b: not started: leadership lost"},
		{name: "the context ends in the last step", steps: map[string]outcome{"c": {end: true}}, wantRan: []string{"a", "b", "c"}},
		{name: "the context is done", done: true, wantErr: killed, wantText: "step a: not started"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.done {
				cancel(killed)
			}
			var steps reconcile.Steps[*[]string]
			for _, name := range []string{"a", "b", "c"} {
				o := tt.steps[name]
				steps = append(steps, reconcile.Step[*[]string]{Name: name, Run: func(_ context.Context, ran *[]string) (*reconcile.Result, error) {
					*ran = append(*ran, name)
					if o.end {
						cancel(killed)
					}
					return o.res, o.err
				}})
			}
			for range 2 { // a list has no memory
				var ran []string
				if !tt.done {
					ctx, cancel = context.WithCancelCause(t.Context())
					defer cancel(nil)
				}
				got, err := steps.Run(ctx, &ran)
				if got != tt.want {
					t.Errorf("Run() = %+v, want %+v", got, tt.want)
				}
				if !errors.Is(err, tt.wantErr) || tt.wantErr == nil && err != nil {
					t.Errorf("error = %v, want %v", err, tt.wantErr)
				}
				if err != nil && !strings.HasPrefix(err.Error(), tt.wantText) {
					t.Errorf("error = %q, want one that begins with %q", err, tt.wantText)
				}
				if apierrors.IsConflict(err) != (tt.wantErr == error(conflict)) {
					t.Errorf("IsConflict(%v) = %v", err, apierrors.IsConflict(err))
				}
				if diff := cmp.Diff(tt.wantRan, ran); diff != "" {
					t.Errorf("steps that ran (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestStepsMisuse(t *testing.T) {
	t.Parallel()
	ran := false
	ok := func(context.Context, string) (*reconcile.Result, error) { ran = true; return nil, nil }
	tests := []struct {
		name  string
		steps reconcile.Steps[string]
		want  string // "" for none
	}{
		{name: "nil"},
		{name: "empty", steps: reconcile.Steps[string]{}},
		{name: "no name", steps: reconcile.Steps[string]{{Name: "a", Run: ok}, {Run: ok}}, want: "Steps[1].Name is empty"},
		{name: "no function", steps: reconcile.Steps[string]{{Name: "a", Run: ok}, {Name: "b"}}, want: "Steps[1].Run is nil: set it to the function of step b"},
		{name: "twice", steps: reconcile.Steps[string]{{Name: "a", Run: ok}, {Name: "b", Run: ok}, {Name: "a", Run: ok}}, want: "Steps[2].Name is a, as that of Steps[0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := tt.steps.Run(t.Context(), "key")
			if res != (reconcile.Result{}) || ran {
				t.Errorf("Run() = %+v, and a step ran: %v; want neither", res, ran)
			}
			if tt.want == "" && err == nil {
				return
			}
			if tt.want == "" || !errors.Is(err, reconcile.ErrTerminal) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want a terminal one with %q", err, tt.want)
			}
		})
	}
}

// A panic is the loop's to handle, with the stack of the step.
func TestStepsPanic(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := recover(); got != "boom" {
			t.Errorf("recovered %v, want boom", got)
		}
	}()
	_, err := reconcile.Steps[int]{{Name: "a", Run: func(context.Context, int) (*reconcile.Result, error) { panic("boom") }}}.Run(t.Context(), 1)
	t.Errorf("Run() = %v, want a panic", err)
}

func BenchmarkSteps(b *testing.B) {
	var steps reconcile.Steps[int]
	for _, name := range []string{"namespace", "role", "quota", "deployment", "service", "status"} {
		steps = append(steps, reconcile.Step[int]{Name: name, Run: func(context.Context, int) (*reconcile.Result, error) { return nil, nil }})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := steps.Run(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}
