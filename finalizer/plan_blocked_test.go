package finalizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// What a pass that is not through says.
func TestPlanBlocked(t *testing.T) {
	forbidden := apierrors.NewForbidden(configMaps, "child", errBoom)
	conflict := apierrors.NewConflict(configMaps, "child", errBoom)
	type want struct {
		text    string
		reason  string
		fails   bool
		min, to time.Duration // of After
	}
	tests := []struct {
		name  string
		age   time.Duration
		steps []step
		want  want
	}{
		{
			name:  "waits as it says",
			steps: []step{{Name: "pods", Run: says(progress{After: 7 * time.Second, Message: "3 left"}, nil)}},
			want:  want{text: "not finished: step pods: 3 left", reason: "StepWaiting", min: 7 * time.Second, to: 7 * time.Second},
		},
		{
			name:  "waits without a word",
			steps: []step{{Name: "pods", Run: says(progress{}, nil)}},
			want:  want{text: "not finished: step pods: not done", reason: "StepWaiting", min: time.Second, to: 1200 * time.Millisecond},
		},
		{
			name:  "a negative wait is none",
			steps: []step{{Name: "pods", Run: says(progress{After: -1}, nil)}},
			want:  want{text: "not finished: step pods: not done", reason: "StepWaiting", min: time.Second, to: 1200 * time.Millisecond},
		},
		{
			name:  "fails",
			steps: []step{{Name: "dns", Run: says(done, errBoom)}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: time.Second, to: 1200 * time.Millisecond},
		},
		{
			name: "fails for long", age: 40 * time.Second,
			steps: []step{{Name: "dns", Run: says(done, errBoom)}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: 20 * time.Second, to: 24 * time.Second},
		},
		{
			name: "fails for very long", age: 40 * time.Hour,
			steps: []step{{Name: "dns", Run: says(done, errBoom)}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: time.Minute, to: 72 * time.Second},
		},
		{
			name: "a conflict is soon over", age: 40 * time.Hour,
			steps: []step{{Name: "dns", Run: says(done, conflict)}},
			want:  want{text: "step dns: Operation cannot be fulfilled", reason: "StepFailed", fails: true, min: time.Second, to: 1200 * time.Millisecond},
		},
		{
			name: "the shortest delay and all texts",
			steps: []step{
				{Name: "pods", Run: says(progress{After: time.Minute, Message: "3 left"}, nil)},
				{Name: "dns", AtOnce: true, Run: says(progress{}, forbidden)},
				{Name: "ip", AtOnce: true, Run: says(progress{After: 20 * time.Millisecond, Message: "bound"}, nil)},
			},
			want: want{text: "step pods: 3 left; step dns: configmaps \"child\" is forbidden: boom; step ip: bound", reason: "StepFailed", fails: true, min: 20 * time.Millisecond, to: 20 * time.Millisecond},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{live: deleted(tt.age)}
				obj := m.live.DeepCopy()
				err := pass(t.Context(), plan{Steps: tt.steps}, m, obj)
				b := blockedBy(t, err)
				if !strings.Contains(err.Error(), tt.want.text) || !strings.HasPrefix(err.Error(), "finalizer "+name+": cleanup: ") {
					t.Errorf("error %q, want the finalizer and %q in it", err, tt.want.text)
				}
				if b.After < tt.want.min || b.After > tt.want.to {
					t.Errorf("After = %v, want %v to %v", b.After, tt.want.min, tt.want.to)
				}
				if (b.Err != nil) != tt.want.fails {
					t.Errorf("Err = %v, want one: %v", b.Err, tt.want.fails)
				}
				if b.Err != nil && !strings.HasPrefix(b.Err.Error(), "finalizer "+name+": step ") {
					t.Errorf("Err = %q, want finalizer and step in it", b.Err)
				}
				for _, s := range b.Steps {
					if s.Err != nil && !errors.Is(err, s.Err) {
						t.Errorf("error %v has lost %v", err, s.Err)
					}
				}
				got, want := b.Condition(7), metav1.Condition{
					Type: "Terminating", Status: metav1.ConditionTrue, ObservedGeneration: 7,
					LastTransitionTime: *obj.DeletionTimestamp, Reason: tt.want.reason, Message: b.Error(),
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("condition (-want +got):\n%s", diff)
				}
				if errs := metav1validation.ValidateConditions([]metav1.Condition{got}, field.NewPath("conditions")); len(errs) > 0 {
					t.Error(errs.ToAggregate())
				}
				// As long as nothing happens, there is nothing to write, in whichever process.
				time.Sleep(time.Hour)
				again := blockedBy(t, pass(t.Context(), plan{Steps: tt.steps}, m, obj)).Condition(7)
				if diff := cmp.Diff(got, again); diff != "" {
					t.Errorf("condition an hour later (-before +after):\n%s", diff)
				}
			})
		})
	}
}

// A message of any length fits into a condition.
func TestConditionMessage(t *testing.T) {
	b := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "a", Message: strings.Repeat("ü", 30_000)}}}
	got := b.Condition(1).Message
	if len(got) > 32768 || len(got) < 32766 || !strings.HasSuffix(got, "ü") {
		t.Errorf("message of %d bytes that ends in %q", len(got), got[len(got)-2:])
	}
}

// A condition comes back from the API server as it was written, whatever the text
// of an error: otherwise every pass would write it again.
func TestConditionIsStable(t *testing.T) {
	b := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "a", Message: "not \xff\xfe UTF-8"}}}
	want := b.Condition(1)
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got metav1.Condition
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Message != want.Message {
		t.Errorf("message %q comes back as %q", want.Message, got.Message)
	}
}

// Tries get rarer as the deletion gets older, in this process or the next.
func TestPlanDelayGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(0)}
		p := plan{Steps: []step{{Name: "dns", Run: says(progress{}, errBoom)}}}
		var last time.Duration
		tries := 0
		for start := time.Now(); time.Since(start) < time.Hour; tries++ {
			b := blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy()))
			if b.After < last/2 || b.After > 72*time.Second {
				t.Errorf("try %d comes after %v, the one before after %v", tries, b.After, last)
			}
			last = b.After
			time.Sleep(b.After)
		}
		if tries < 55 || tries > 75 {
			t.Errorf("%d tries in the first hour, want 55 to 75", tries)
		}
	})
}

// TestPlanTimeout tests the report of a step whose Timeout is over.
func TestPlanTimeout(t *testing.T) {
	hangs := func(ctx context.Context, _ held) (progress, error) {
		<-ctx.Done()
		return progress{}, ctx.Err()
	}
	tests := []struct {
		name   string
		step   step
		stop   time.Duration // of the context of the pass; 0 means never
		pass   time.Duration // until the deadline of the context; 0 means none
		took   time.Duration
		reason string
		passed bool
	}{
		{name: "default", step: step{Run: hangs}, took: time.Minute, reason: "StepTimedOut"},
		{name: "own", step: step{Run: hangs, Timeout: 5 * time.Second}, took: 5 * time.Second, reason: "StepTimedOut"},
		{name: "the pass is shorter", step: step{Run: hangs}, pass: 20 * time.Second, took: 18 * time.Second, reason: "StepTimedOut"},
		{name: "the pass is as long", step: step{Run: hangs}, pass: time.Minute, took: 54 * time.Second, reason: "StepTimedOut"},
		{name: "the pass is longer", step: step{Run: hangs}, pass: 2 * time.Minute, took: time.Minute, reason: "StepTimedOut"},
		{name: "a stop is no timeout", step: step{Run: hangs}, stop: time.Second, took: time.Second, reason: "StepFailed"},
		{name: "an error in time is no timeout", step: step{Run: says(progress{}, context.DeadlineExceeded)}, reason: "StepFailed"},
		{name: "late but done", took: time.Minute, passed: true, step: step{Run: func(ctx context.Context, _ held) (progress, error) {
			<-ctx.Done()
			return done, nil
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.stop > 0 {
					var cancel context.CancelCauseFunc
					ctx, cancel = context.WithCancelCause(ctx)
					defer time.AfterFunc(tt.stop, func() { cancel(nil) }).Stop()
				}
				if tt.pass > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.pass)
					defer cancel()
				}
				tt.step.Name = "slow"
				m := &model{live: deleted(0)}
				start := time.Now()
				err := pass(ctx, plan{Steps: []step{tt.step}}, m, m.live.DeepCopy())
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if tt.passed {
					if err != nil {
						t.Errorf("error = %v, want none", err)
					}
					return
				}
				b := blockedBy(t, err)
				if b.Condition(1).Reason != tt.reason || errors.Is(err, context.DeadlineExceeded) != (tt.stop == 0) {
					t.Errorf("reason %s, error %v; want %s, a deadline if there was one", b.Condition(1).Reason, err, tt.reason)
				}
				after := tt.took.String()
				if tt.took < time.Minute && tt.step.Timeout == 0 {
					after = "most of the time that the pass had left" // the same in each pass, as the condition
				}
				if tt.reason == "StepTimedOut" && !strings.Contains(err.Error(), "step slow: timed out after "+after+": ") {
					t.Errorf("error %q does not name the step and the time", err)
				}
			})
		})
	}
}

// observed writes down what it is told.
type observed []string

func (o *observed) FinalizerStepStarted(finalizer, step string) {
	*o = append(*o, fmt.Sprint("started ", finalizer, " ", step))
}

func (o *observed) FinalizerStepEnded(finalizer, step, result string, took time.Duration) {
	*o = append(*o, fmt.Sprint(result, " ", finalizer, " ", step, " ", took))
}

func (o *observed) FinalizerBlocked(finalizer, step string, age time.Duration) {
	*o = append(*o, fmt.Sprint("blocked ", finalizer, " ", step, " ", age))
}

func (o *observed) FinalizerFinished(finalizer string, age time.Duration) {
	*o = append(*o, fmt.Sprint("finished ", finalizer, " ", age))
}

func (o *observed) FinalizerObject(finalizer string, uid types.UID, steps []string, age, again time.Duration) {
	*o = append(*o, fmt.Sprint("object ", finalizer, " ", uid, " ", steps, " ", age, " ", again > 0))
}

// TestPlanMetrics tests that the metrics name a step that blocks a Plan, with the age of
// the deletion.
func TestPlanMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(time.Minute)}
		uid := string(m.live.GetUID())
		var got observed
		takes := func(d time.Duration, p progress, err error) func(context.Context, held) (progress, error) {
			return func(context.Context, held) (progress, error) {
				time.Sleep(d)
				return p, err
			}
		}
		p := plan{Metrics: &got, GaveUp: func(context.Context, held, string, error) error { return nil }, Steps: []step{
			{Name: "a", Run: takes(time.Second, done, nil)},
			{Name: "b", AtOnce: true, Run: takes(2*time.Second, progress{}, nil)},
			{Name: "c", AtOnce: true, Run: takes(3*time.Second, progress{}, errBoom)},
			{Name: "d", AtOnce: true, Run: takes(4*time.Second, progress{}, errBoom), Timeout: 3 * time.Second},
			{Name: "e", AtOnce: true, Run: takes(5*time.Second, progress{}, errBoom), GiveUpAfter: time.Minute},
			{Name: "f", After: []string{"b"}, Run: takes(time.Hour, done, nil)},
		}}
		if err := pass(t.Context(), p, m, m.live.DeepCopy()); err == nil {
			t.Fatal("error = nil")
		}
		p.Steps = p.Steps[:1]
		if err := pass(t.Context(), p, m, m.live.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		want := observed{
			"started a", "done a 1s",
			"started b", "waiting b 2s",
			"started c", "failed c 3s",
			"started d", "timed_out d 4s",
			"started e", "gave_up e 5s",
			"blocked b 1m15s", "blocked c 1m15s", "blocked d 1m15s",
			"object uid [b c d] 1m15s true",
			"started a", "done a 1s", "object uid [] 1m16s false",
			"finished 1m16s", // with the cleanup
		}
		for i := range want {
			verb, rest, _ := strings.Cut(want[i], " ")
			want[i] = verb + " " + name + " " + strings.Replace(rest, "uid", uid, 1)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
		for _, none := range []finalizer.Metrics{nil, (*observed)(nil)} {
			p := plan{Metrics: none, Steps: []step{{Name: "a", Run: says(done, nil)}, {Name: "b", Run: says(progress{}, nil)}}}
			m.live = deleted(time.Minute)
			blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy()))
			p.Steps = p.Steps[:1]
			if err := pass(t.Context(), p, m, m.live.DeepCopy()); err != nil {
				t.Errorf("Metrics = %#v: %v", none, err)
			}
		}
	})
}

// againOf notes the delay until the next pass.
type againOf struct {
	observed
	again time.Duration
}

func (a *againOf) FinalizerObject(_ string, _ types.UID, _ []string, _, again time.Duration) {
	a.again = again
}

// TestPlanMetricsOfAFailure: the next pass of a Plan that waits comes after its delay. The class of
// the error delays that of a failed one, for 15 minutes at most.
func TestPlanMetricsOfAFailure(t *testing.T) {
	m := &model{live: deleted(time.Minute)}
	var got againOf
	p := plan{Metrics: &got, Steps: []step{{Name: "a", Run: says(progress{After: 7 * time.Second}, nil)}}}
	blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy()))
	if got.again != 7*time.Second {
		t.Errorf("a step that waits 7s: the next pass comes after %v", got.again)
	}
	p.Steps = append(p.Steps, step{Name: "b", AtOnce: true, Run: says(progress{}, errBoom)})
	blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy()))
	if got.again != 15*time.Minute {
		t.Errorf("beside a step that failed: the next pass comes after %v, want 15m", got.again)
	}
}

// TestMetricsOfARefusedRemoval: if the API server does not let the finalizer go after the cleanup, the step removal blocks
// the object in each pass, until the finalizer is removed.
func TestMetricsOfARefusedRemoval(t *testing.T) {
	steps := []step{{Name: "a", Run: says(done, nil)}}
	for _, tt := range []struct {
		name    string
		own     bool // the Plan has Metrics of its own, and the context has none
		cleanup func(own finalizer.Metrics, m *model) func(context.Context, held) error
	}{
		{name: "a function", cleanup: func(finalizer.Metrics, *model) func(context.Context, held) error {
			return func(context.Context, held) error { return nil }
		}},
		{name: "a plan", cleanup: func(_ finalizer.Metrics, m *model) func(context.Context, held) error {
			return plan{Client: m, Steps: steps}.Run
		}},
		{name: "a plan with Metrics", own: true, cleanup: func(own finalizer.Metrics, m *model) func(context.Context, held) error {
			return plan{Client: m, Steps: steps, Metrics: own}.Run
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{live: deleted(time.Minute), refuse: apierrors.NewForbidden(configMaps, "one", errBoom)}
				uid := m.live.GetUID()
				var got observed
				ctx := t.Context()
				if !tt.own {
					ctx = context.WithValue(ctx, calls.Metrics{}, &got)
				}
				blocks := fmt.Sprint("object ", name, " ", uid, " [removal] 1m0s true")
				over := fmt.Sprint("object ", name, " ", uid, " [] 1m0s false")
				for pass := range 3 {
					got = nil
					_, _, err := finalizer.Ensure(ctx, m, m.live.DeepCopy(), name, tt.cleanup(&got, m))
					got = slices.DeleteFunc(got, func(call string) bool { return !strings.HasPrefix(call, "object ") })
					want := blocks
					if pass == 2 {
						want = over
					}
					if refused := pass < 2; len(got) == 0 || got[len(got)-1] != want || apierrors.IsForbidden(err) != refused {
						t.Errorf("pass %d: observed %q, %v, want %q at last", pass, got, err, want)
					}
					if !tt.own && slices.Contains(got, over) == slices.Contains(got, blocks) {
						t.Errorf("pass %d: observed %q, want one report of the object", pass, got)
					}
					if pass == 1 {
						m.refuse = nil
					}
				}
				if m.live != nil {
					t.Errorf("the object is %v, want it gone", m.live)
				}
			})
		})
	}
}

// TestPlanMetricsOfGoneObject: metrics hear that an object which is gone does not block.
func TestPlanMetricsOfGoneObject(t *testing.T) {
	m := &model{live: deleted(time.Minute)}
	obj := m.live.DeepCopy()
	m.live.Finalizers = nil // somebody has removed it
	var got observed
	p := plan{Metrics: &got, Steps: []step{{Name: "a", Run: says(progress{}, nil)}}}
	_ = pass(t.Context(), p, m, obj)
	if diff := cmp.Diff(observed{fmt.Sprint("object ", name, " ", obj.GetUID(), " [] 0s false")}, got); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
}
