package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// reports notes the cleanups that are not done, as package debug does.
type reports []string

func (o *reports) Blocked(finalizer string, steps []string, since time.Time) {
	*o = append(*o, fmt.Sprintf("%s %q %v", finalizer, steps, since))
}

// TestBlockedIsReported: Ensure reports each cleanup that is not done to the observer of the call,
// with the steps that block it, and no other.
func TestBlockedIsReported(t *testing.T) {
	obj := object("a", true, name)
	deleted := obj.DeletionTimestamp.Time
	step := func(name string, progress finalizer.Progress, err error) finalizer.Step[*corev1.ConfigMap] {
		return finalizer.Step[*corev1.ConfigMap]{Name: name, AtOnce: true, Run: func(context.Context, held) (finalizer.Progress, error) { return progress, err }}
	}
	done := finalizer.Progress{Done: true}
	for _, tt := range []struct {
		name    string
		cleanup func(*model) func(context.Context, held) error
		live    bool // the object is not being deleted
		want    []string
	}{
		{
			name: "a failed cleanup",
			cleanup: func(*model) func(context.Context, held) error {
				return func(context.Context, held) error { return errBoom }
			},
			want: []string{fmt.Sprintf("%s %q %v", name, []string(nil), deleted)},
		},
		{
			name: "steps",
			cleanup: func(m *model) func(context.Context, held) error {
				return finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: []finalizer.Step[*corev1.ConfigMap]{
					step("waits", finalizer.Progress{}, nil), step("fails", finalizer.Progress{}, errBoom), step("done", done, nil),
				}}.Run
			},
			want: []string{fmt.Sprintf("%s %q %v", name, []string{"waits", "fails"}, deleted)},
		},
		{
			name: "done",
			cleanup: func(m *model) func(context.Context, held) error {
				return finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: []finalizer.Step[*corev1.ConfigMap]{step("done", done, nil)}}.Run
			},
		},
		{
			name: "done, and the removal is forbidden",
			cleanup: func(m *model) func(context.Context, held) error {
				m.refuse = errBoom
				return func(context.Context, held) error { return nil }
			},
			want: []string{fmt.Sprintf("%s %q %v", name, []string{"removal"}, deleted)},
		},
		{
			name: "live",
			live: true,
			cleanup: func(*model) func(context.Context, held) error {
				return func(context.Context, held) error { return errBoom }
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			obj := obj
			if tt.live {
				obj = object("a", false)
			}
			m := &model{live: obj}
			var o reports
			_, _, _ = finalizer.Ensure(context.WithValue(t.Context(), calls.Cleanup{}, &o), m, obj, name, tt.cleanup(m))
			if diff := gocmp.Diff(tt.want, []string(o)); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			_, _, _ = finalizer.Ensure(t.Context(), m, obj, name, tt.cleanup(m)) // without an observer
		})
	}
}

// TestMetricsOfTheController: without Plan.Metrics, the Metrics of the controller gets what blocks
// an object: the steps of a Plan, or else one step for the whole cleanup, until it is done.
func TestMetricsOfTheController(t *testing.T) {
	fails := true
	step := finalizer.Step[*corev1.ConfigMap]{Name: "volume", Run: func(context.Context, held) (finalizer.Progress, error) {
		if fails {
			return finalizer.Progress{}, errBoom
		}
		return finalizer.Progress{Done: true}, nil
	}}
	for _, tt := range []struct {
		name    string
		cleanup func(*model) func(context.Context, held) error
		want    []string
		steps   []string // of FinalizerBlocked
	}{
		{
			name: "an error with steps of its own",
			cleanup: func(*model) func(context.Context, held) error {
				return func(context.Context, held) error {
					if fails {
						return &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "children"}, {Name: "accounts"}}, After: time.Second}
					}
					return nil
				}
			},
			want: []string{"uid [children accounts]", "uid []"}, steps: []string{"children", "accounts"},
		},
		{
			name: "an error without steps",
			cleanup: func(*model) func(context.Context, held) error {
				return func(context.Context, held) error {
					if fails {
						return &finalizer.BlockedError{After: time.Second}
					}
					return nil
				}
			},
			want: []string{"uid [cleanup]", "uid []"},
		},
		{
			name: "a function",
			cleanup: func(*model) func(context.Context, held) error {
				return func(ctx context.Context, h held) error {
					p, err := step.Run(ctx, h)
					if !p.Done && err == nil {
						t.Error("neither done nor failed")
					}
					return err
				}
			},
			want: []string{"uid [cleanup]", "uid []"},
		},
		{
			name: "a plan",
			cleanup: func(m *model) func(context.Context, held) error {
				return finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: []finalizer.Step[*corev1.ConfigMap]{step}}.Run
			},
			want: []string{"uid [volume]", "uid []"}, steps: []string{"volume"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got objectsOf
			obj := object("uid", true, name)
			m := &model{live: obj}
			ctx := context.WithValue(t.Context(), calls.Metrics{}, &got)
			for _, fails = range []bool{true, false} {
				_, _, _ = finalizer.Ensure(ctx, m, obj, name, tt.cleanup(m))
			}
			if diff := gocmp.Diff(tt.want, got.blocked); diff != "" {
				t.Errorf("blocked objects (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tt.steps, got.steps); diff != "" {
				t.Errorf("FinalizerBlocked (-want +got):\n%s", diff)
			}
			for _, none := range []any{nil, 7, (*objectsOf)(nil)} {
				_, _, _ = finalizer.Ensure(context.WithValue(t.Context(), calls.Metrics{}, none), m, obj, name, tt.cleanup(m))
			}
		})
	}
}

// TestMetricsOfAHeldPlan: without Ensure, the end of a plan clears the object.
func TestMetricsOfAHeldPlan(t *testing.T) {
	fails := true
	obj := object("uid", true, name)
	m := &model{live: obj}
	plan := finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: []finalizer.Step[*corev1.ConfigMap]{{Name: "volume", Run: func(context.Context, held) (finalizer.Progress, error) {
		return finalizer.Progress{Done: !fails}, nil
	}}}}
	var got objectsOf
	ctx := context.WithValue(t.Context(), calls.Metrics{}, &got)
	h, err := finalizer.Add(ctx, m, obj, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, fails = range []bool{true, false} {
		if err := plan.Run(ctx, h); (err != nil) != fails {
			t.Errorf("Run = %v", err)
		}
	}
	if diff := gocmp.Diff([]string{"uid [volume]", "uid []"}, got.blocked); diff != "" {
		t.Errorf("blocked objects (-want +got):\n%s", diff)
	}
}

// TestFinishedOnce: if a cleanup has more work than a Plan that is done, the Plan ends once in the metrics.
func TestFinishedOnce(t *testing.T) {
	obj := object("uid", true, name)
	m := &model{live: obj}
	var got, own objectsOf
	done := []finalizer.Step[*corev1.ConfigMap]{{Name: "volume", Run: func(context.Context, held) (progress, error) { return progress{Done: true}, nil }}}
	ctx := context.WithValue(t.Context(), calls.Metrics{}, &got)
	for _, more := range []error{errBoom, errBoom, nil} {
		_, _, err := finalizer.Ensure(ctx, m, obj, name, func(ctx context.Context, h held) error {
			return errors.Join(
				finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: done}.Run(ctx, h),
				finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: done, Metrics: &own}.Run(ctx, h), more)
		})
		if (err != nil) != (more != nil) || more != nil && got.finished+own.finished > 0 {
			t.Errorf("Ensure = %v, with %d and %d ends of a Plan", err, got.finished, own.finished)
		}
	}
	if got.finished != 1 || own.finished != 1 {
		t.Errorf("%d and %d ends of a Plan, want one each", got.finished, own.finished)
	}
}

// objectsOf notes the calls of FinalizerObject, FinalizerBlocked and FinalizerFinished.
type objectsOf struct {
	blocked  []string
	steps    []string // of FinalizerBlocked
	finished int
}

func (*objectsOf) FinalizerStepStarted(string, string)                      {}
func (*objectsOf) FinalizerStepEnded(string, string, string, time.Duration) {}
func (o *objectsOf) FinalizerBlocked(_, step string, _ time.Duration) {
	o.steps = append(o.steps, step)
}
func (o *objectsOf) FinalizerFinished(string, time.Duration) { o.finished++ }
func (o *objectsOf) FinalizerObject(_ string, uid types.UID, steps []string, _, _ time.Duration) {
	o.blocked = append(o.blocked, fmt.Sprint(uid, " ", steps))
}

// termsOf notes the calls of FinalizerTerm, too.
type termsOf struct {
	objectsOf
	t    *testing.T
	term <-chan struct{}
}

func (o *termsOf) FinalizerTerm(_ string, uid types.UID, term <-chan struct{}) {
	if term != o.term {
		o.t.Error("FinalizerTerm got another channel than that of the context's term")
	}
	o.blocked = append(o.blocked, fmt.Sprint(uid, " of the term"))
}

// TestTermOfBlockedObject: Metrics learn in whose term a finalizer blocks an object, from a cleanup and from a Plan.
func TestTermOfBlockedObject(t *testing.T) {
	for _, of := range []string{"a cleanup", "a plan"} {
		t.Run(of, func(t *testing.T) {
			term, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := termsOf{t: t, term: term.Done()}
			obj := object("uid", true, name)
			m := &model{live: obj}
			cleanup := func(context.Context, held) error { return errBoom }
			step := "cleanup"
			if of == "a plan" {
				step = "volume"
				cleanup = finalizer.Plan[*corev1.ConfigMap]{Client: m, Steps: []finalizer.Step[*corev1.ConfigMap]{
					{Name: step, Run: func(context.Context, held) (progress, error) { return progress{}, errBoom }},
				}}.Run
			}
			ctx := context.WithValue(t.Context(), calls.Metrics{}, &got)
			_, _, _ = finalizer.Ensure(ctx, m, obj, name, cleanup) // outside of a term
			_, _, _ = finalizer.Ensure(context.WithValue(ctx, calls.Validity{}, term), m, obj, name, cleanup)
			if diff := gocmp.Diff([]string{"uid [" + step + "]", "uid [" + step + "]", "uid of the term"}, got.blocked); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
