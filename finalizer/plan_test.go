package finalizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit/finalizer"
)

type (
	step     = finalizer.Step[*corev1.ConfigMap]
	plan     = finalizer.Plan[*corev1.ConfigMap]
	progress = finalizer.Progress
)

// deleted is an object whose deletion was asked for some time ago.
func deleted(ago time.Duration) *corev1.ConfigMap {
	obj := object("a", true, name)
	obj.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-ago)}
	return obj
}

// says is a step that always says the same.
func says(p progress, err error) func(context.Context, held) (progress, error) {
	return func(context.Context, held) (progress, error) { return p, err }
}

var done = progress{Done: true}

// pass runs the plan once, as the cleanup of Ensure on an object that the model
// has, and returns what Ensure does.
func pass(ctx context.Context, p plan, m *model, obj *corev1.ConfigMap) error {
	p.Client = m
	_, _, err := finalizer.Ensure(ctx, m, obj, name, p.Run)
	return err
}

func blockedBy(t *testing.T, err error) *finalizer.BlockedError {
	t.Helper()
	blocked, ok := errors.AsType[*finalizer.BlockedError](err)
	if !ok {
		t.Fatalf("error = %v, want a BlockedError", err)
	}
	return blocked
}

// TestPlanOrder proves F8.
func TestPlanOrder(t *testing.T) {
	tests := []struct {
		name    string
		steps   []step         // without Run
		not     map[string]int // passes in which a step is not done yet
		want    []string       // the calls of each pass
		wantBad []string       // who blocks in each pass
	}{
		{
			name: "as declared", steps: []step{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			want: []string{"a b c"},
		},
		{
			name: "each waits for the one before", steps: []step{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			not:  map[string]int{"a": 1, "b": 2},
			want: []string{"a", "a b", "a b c"}, wantBad: []string{"a", "b", ""},
		},
		{
			name: "at once", steps: []step{{Name: "a"}, {Name: "b", AtOnce: true}, {Name: "c"}},
			not:  map[string]int{"a": 1},
			want: []string{"a b c", "a b c"}, wantBad: []string{"a", ""},
		},
		{
			name: "two block", steps: []step{{Name: "a"}, {Name: "b", AtOnce: true}, {Name: "c", After: []string{"a", "b"}}},
			not:  map[string]int{"a": 1, "b": 2},
			want: []string{"a b", "a b", "a b c"}, wantBad: []string{"a b", "b", ""},
		},
		{
			name: "after one of two", steps: []step{{Name: "a"}, {Name: "b", AtOnce: true}, {Name: "c", After: []string{"a"}}, {Name: "d", After: []string{"b"}}},
			not:  map[string]int{"b": 1},
			want: []string{"a b c", "a b c d"}, wantBad: []string{"b", ""},
		},
		{
			name: "a chain behind one that waits", steps: []step{{Name: "a"}, {Name: "b", After: []string{"a"}}, {Name: "c", After: []string{"b"}}, {Name: "d", After: []string{"a"}}},
			not:  map[string]int{"a": 1},
			want: []string{"a", "a b c d"}, wantBad: []string{"a", ""},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &model{live: object("a", true, name, "x/1")}
			var p plan
			var calls []string
			passes := 0
			for _, s := range tt.steps {
				s.Run = func(_ context.Context, h held) (progress, error) {
					calls = append(calls, s.Name)
					if !h.Valid() || !finalizer.Has(m.live, name) {
						t.Errorf("step %s runs with Valid() = %v and stored finalizers %q", s.Name, h.Valid(), stored(m))
					}
					return progress{Done: passes >= tt.not[s.Name]}, nil
				}
				p.Steps = append(p.Steps, s)
			}
			for i, want := range tt.want {
				calls = nil
				err := pass(t.Context(), p, m, object("a", true, name, "x/1"))
				if got := strings.Join(calls, " "); got != want {
					t.Errorf("pass %d called %q, want %q", i, got, want)
				}
				last := i == len(tt.want)-1
				if (err == nil) != last || finalizer.Has(m.live, name) == last {
					t.Fatalf("pass %d: error %v, stored finalizers %q; last is %v", i, err, stored(m), last)
				}
				if !last {
					var names []string
					for _, b := range blockedBy(t, err).Steps {
						names = append(names, b.Name)
					}
					if got := strings.Join(names, " "); got != tt.wantBad[i] {
						t.Errorf("pass %d is blocked by %q, want %q", i, got, tt.wantBad[i])
					}
				}
				passes++
			}
		})
	}
}

// Any plan, whose steps take any number of passes: a pass asks exactly those steps
// that have everything done which they wait for, in their order, and the object goes
// in the first pass in which all are.
//
// Proves F8.
func TestPlanRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "steps")
		m := &model{live: object("a", true, name)}
		var p plan
		waits := make([][]int, n) // for which steps each waits
		takes := make([]int, n)   // how many passes until each is done
		var calls []int
		pass := 0
		for i := range n {
			s := step{Name: fmt.Sprint(i)}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				s.AtOnce = true
			case 1:
				if i > 0 {
					waits[i] = []int{i - 1}
				}
			default:
				for j := range i {
					if rapid.Bool().Draw(t, "after") {
						waits[i] = append(waits[i], j)
						s.After = append(s.After, fmt.Sprint(j))
					}
				}
				s.AtOnce = s.After == nil
			}
			takes[i] = rapid.IntRange(0, 4).Draw(t, "takes")
			s.Run = func(context.Context, held) (progress, error) {
				calls = append(calls, i)
				return progress{Done: pass >= takes[i]}, nil
			}
			p.Steps = append(p.Steps, s)
		}
		p.Client = m
		for ; m.live != nil; pass++ {
			var want []int
			over := true
			is := make([]bool, n)
			for i := range n {
				if !slices.ContainsFunc(waits[i], func(j int) bool { return !is[j] }) {
					want = append(want, i)
					is[i] = pass >= takes[i]
				}
				over = over && is[i]
			}
			calls = nil
			_, _, err := finalizer.Ensure(context.Background(), m, object("a", true, name), name, p.Run)
			if !slices.Equal(calls, want) || (err == nil) != over || (m.live == nil) != over {
				t.Fatalf("pass %d asked %v, error %v, gone %v; want %v, gone %v", pass, calls, err, m.live == nil, want, over)
			}
		}
	})
}

// A step that was done and is not any more blocks again: the world is asked, not a
// memory.
//
// Proves F8.
func TestPlanAsksAgain(t *testing.T) {
	m := &model{live: deleted(0)}
	first := true
	p := plan{Steps: []step{
		{Name: "a", Run: func(context.Context, held) (progress, error) { return progress{Done: first}, nil }},
		{Name: "b", Run: func(context.Context, held) (progress, error) { return progress{Done: !first}, nil }},
	}}
	if b := blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy())); b.Steps[0].Name != "b" {
		t.Errorf("blocked by %s, want b", b.Steps[0].Name)
	}
	first = false
	if b := blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy())); b.Steps[0].Name != "a" {
		t.Errorf("blocked by %s, want a", b.Steps[0].Name)
	}
	if !finalizer.Has(m.live, name) {
		t.Error("the finalizer went although no pass was through")
	}
}

// TestPlanStale proves F9.
func TestPlanStale(t *testing.T) {
	tests := []struct {
		name string
		live *corev1.ConfigMap
	}{
		{name: "gone"},
		{name: "replaced", live: object("b", false, name)},
		{name: "replaced and deleting", live: object("b", true, name)},
		{name: "without the finalizer", live: object("a", true, "x/1")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &model{live: tt.live.DeepCopy()}
			p := plan{Steps: []step{{Name: "a", Run: func(context.Context, held) (progress, error) {
				t.Error("the step runs")
				return done, nil
			}}}}
			if err := pass(t.Context(), p, m, object("a", true, name, "x/1")); err != nil {
				t.Errorf("error = %v, want none", err)
			}
			if diff := cmp.Diff(tt.live, m.live); diff != "" {
				t.Errorf("the live object changed (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("the step gets the newest", func(t *testing.T) {
		m := &model{live: object("a", true, name)}
		m.live.Labels = map[string]string{"is": "new"}
		var got map[string]string
		p := plan{Steps: []step{{Name: "a", Run: func(_ context.Context, h held) (progress, error) {
			got = h.Object().Labels
			return done, nil
		}}}}
		if err := pass(t.Context(), p, m, object("a", true, name, "x/1")); err != nil || got["is"] != "new" {
			t.Errorf("error %v, the step got labels %v", err, got)
		}
	})
}

// What the client of the plan does not find is not gone as long as that of Ensure
// does: nobody else will clean up.
//
// Proves F8.
func TestPlanOtherClient(t *testing.T) {
	tests := []struct {
		name string
		live *corev1.ConfigMap // what the client of the plan sees
	}{
		{name: "nothing there"},
		{name: "another one there", live: object("b", true, name)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &model{live: object("a", true, name)}
			p := plan{Client: &model{live: tt.live}, Steps: []step{{Name: "a", Run: says(done, nil)}}}
			_, _, err := finalizer.Ensure(t.Context(), m, m.live.DeepCopy(), name, p.Run)
			if err == nil || !strings.Contains(err.Error(), `Plan.Client does not find object "one"`) {
				t.Errorf("error = %v, want one about Plan.Client", err)
			}
			if !finalizer.Has(m.live, name) {
				t.Error("the finalizer went although no step was asked")
			}
		})
	}
}

// Run refuses what is no cleanup.
//
// Proves F9.
func TestPlanRefuses(t *testing.T) {
	m := &model{live: object("a", false)}
	p := plan{Client: m, Steps: []step{{Name: "a", Run: func(context.Context, held) (progress, error) {
		t.Error("the step runs")
		return done, nil
	}}}}
	if err := p.Run(t.Context(), held{}); err == nil || m.patches > 0 {
		t.Errorf("zero Held: error %v after %d patches", err, m.patches)
	}
	h, err := finalizer.Add(t.Context(), m, object("a", false), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context(), h); err == nil || !strings.Contains(err.Error(), `"one" is not being deleted`) {
		t.Errorf("live object: error %v", err)
	}
	forbidden := apierrors.NewForbidden(configMaps, "one", errBoom)
	p.Client = &answering{err: forbidden}
	if err := p.Run(t.Context(), h); !apierrors.IsForbidden(err) {
		t.Errorf("failed look: error %v, want Forbidden", err)
	}
}

// What a pass that is not through says.
//
// Proves F12.
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
			name: "bounds of its own", age: 40 * time.Hour,
			steps: []step{{Name: "dns", Run: says(done, errBoom), BaseDelay: 2 * time.Minute, MaxDelay: time.Hour}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: time.Hour, to: 72 * time.Minute},
		},
		{
			name:  "a base over the default limit",
			steps: []step{{Name: "dns", Run: says(done, errBoom), BaseDelay: 2 * time.Minute}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: 2 * time.Minute, to: 144 * time.Second},
		},
		{
			name:  "a base without end",
			steps: []step{{Name: "dns", Run: says(done, errBoom), BaseDelay: math.MaxInt64}},
			want:  want{text: "not finished: step dns: boom", reason: "StepFailed", fails: true, min: math.MaxInt64, to: math.MaxInt64},
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
//
// Proves F12.
func TestPlanDelayGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(0)}
		p := plan{Steps: []step{{Name: "dns", Run: says(progress{}, errBoom), MaxDelay: 10 * time.Minute}}}
		var last time.Duration
		tries := 0
		for start := time.Now(); time.Since(start) < time.Hour; tries++ {
			b := blockedBy(t, pass(t.Context(), p, m, m.live.DeepCopy()))
			if b.After < last/2 || b.After > 12*time.Minute {
				t.Errorf("try %d comes after %v, the one before after %v", tries, b.After, last)
			}
			last = b.After
			time.Sleep(b.After)
		}
		if tries < 12 || tries > 26 {
			t.Errorf("%d tries in the first hour, want 12 to 26", tries)
		}
	})
}

// TestPlanTimeout proves F12.
func TestPlanTimeout(t *testing.T) {
	hangs := func(ctx context.Context, _ held) (progress, error) {
		<-ctx.Done()
		return progress{}, ctx.Err()
	}
	tests := []struct {
		name    string
		step    step
		stop    time.Duration // of the context of the pass; 0 means never
		pass    time.Duration // until the deadline of the context; 0 means none
		took    time.Duration
		timeout bool
		reason  string
		passed  bool
	}{
		{name: "default", step: step{Run: hangs}, took: time.Minute, timeout: true, reason: "StepTimedOut"},
		{name: "own", step: step{Run: hangs, Timeout: 5 * time.Second}, took: 5 * time.Second, timeout: true, reason: "StepTimedOut"},
		{name: "the pass is shorter", step: step{Run: hangs}, pass: 20 * time.Second, took: 18 * time.Second, timeout: true, reason: "StepTimedOut"},
		{name: "the pass is as long", step: step{Run: hangs}, pass: time.Minute, took: 54 * time.Second, timeout: true, reason: "StepTimedOut"},
		{name: "the pass is longer", step: step{Run: hangs}, pass: 2 * time.Minute, took: time.Minute, timeout: true, reason: "StepTimedOut"},
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
				if b.Steps[0].TimedOut != tt.timeout || b.Condition(1).Reason != tt.reason || errors.Is(err, context.DeadlineExceeded) != (tt.stop == 0) {
					t.Errorf("TimedOut = %v, reason %s, error %v; want %v, %s, a deadline if there was one", b.Steps[0].TimedOut, b.Condition(1).Reason, err, tt.timeout, tt.reason)
				}
				after := tt.took.String()
				if tt.took < time.Minute && tt.step.Timeout == 0 {
					after = "most of the time that the pass had left" // the same in each pass, as the condition
				}
				if tt.timeout && !strings.Contains(err.Error(), "step slow: timed out after "+after+": ") {
					t.Errorf("error %q does not name the step and the time", err)
				}
			})
		})
	}
}

// A stop between two steps starts no other, and keeps the finalizer.
//
// Proves F8.
func TestPlanStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	m := &model{live: deleted(0)}
	p := plan{Steps: []step{
		{Name: "a", Run: func(context.Context, held) (progress, error) {
			cancel(errBoom)
			return done, nil
		}},
		{Name: "b", Run: func(context.Context, held) (progress, error) {
			t.Error("b runs after the stop")
			return done, nil
		}},
		{Name: "c", AtOnce: true, Run: func(context.Context, held) (progress, error) {
			t.Error("c runs after the stop")
			return done, nil
		}},
	}}
	err := pass(ctx, p, m, m.live.DeepCopy())
	if b := blockedBy(t, err); b.Steps[0].Name != "b" || !errors.Is(err, errBoom) || b.After <= 0 {
		t.Errorf("error = %v after %v, want b not started because of the cause", err, b.After)
	}
	if !finalizer.Has(m.live, name) {
		t.Error("the finalizer went")
	}
}

// A panic is the caller's to recover, and leaves the finalizer. Metrics are told that
// the call has ended.
//
// Proves F8, F12.
func TestPlanPanics(t *testing.T) {
	synctest.Test(t, testPlanPanics)
}

func testPlanPanics(t *testing.T) {
	m := &model{live: deleted(0)}
	var got observed
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v, want the panic of the step", r)
			}
		}()
		pass(t.Context(), plan{Metrics: &got, Steps: []step{{Name: "a", Run: func(context.Context, held) (progress, error) {
			time.Sleep(time.Second)
			panic("boom")
		}}}}, m, m.live.DeepCopy())
	}()
	if !finalizer.Has(m.live, name) {
		t.Error("the finalizer went")
	}
	want := observed{"started " + name + " a", "failed " + name + " a 1s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
}

// TestPlanGivesUp proves F11.
func TestPlanGivesUp(t *testing.T) {
	tests := []struct {
		name     string
		age      time.Duration
		after    time.Duration
		step     func(context.Context, held) (progress, error)
		gaveUp   error
		wantGone bool
		wantTold int
		wantText string
		wantWait time.Duration // the longest After
	}{
		{name: "never by default", age: 1000 * time.Hour, step: says(progress{}, errBoom), wantText: "boom", wantWait: 72 * time.Second},
		{name: "not yet", age: 59 * time.Minute, after: time.Hour, step: says(progress{After: time.Hour, Message: "3 left"}, nil), wantText: "3 left", wantWait: time.Minute},
		{name: "failing", age: time.Hour, after: time.Hour, step: says(progress{}, errBoom), wantGone: true, wantTold: 1, wantText: "boom"},
		{name: "waiting", age: time.Hour, after: time.Hour, step: says(progress{Message: "3 left"}, nil), wantGone: true, wantTold: 1, wantText: "3 left"},
		{name: "done after all", age: time.Hour, after: time.Hour, step: says(done, nil), wantGone: true},
		{name: "nobody could be told", age: time.Hour, after: time.Hour, step: says(progress{Message: "3 left"}, nil), gaveUp: errors.New("no event"), wantTold: 1, wantText: "3 left; not given up: no event", wantWait: 72 * time.Second},
		{name: "nobody could be told and the step has time", age: time.Hour, after: time.Hour, step: says(progress{After: time.Hour, Message: "3 left"}, nil), gaveUp: errors.New("no event"), wantTold: 1, wantText: "3 left; not given up: no event", wantWait: 72 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{live: deleted(tt.age)}
				told, next := 0, false
				p := plan{
					Steps: []step{
						{Name: "dns", Run: tt.step, GiveUpAfter: tt.after},
						{Name: "next", Run: func(context.Context, held) (progress, error) {
							next = true
							return done, nil
						}},
					},
					GaveUp: func(_ context.Context, h held, step string, cause error) error {
						told++
						if h.Object().UID != "a" || step != "dns" || !strings.Contains(tt.wantText, cause.Error()) || !finalizer.Has(m.live, name) {
							t.Errorf("told about %s of %s: %v; stored finalizers %q", step, h.Object().UID, cause, stored(m))
						}
						return tt.gaveUp
					},
				}
				err := pass(t.Context(), p, m, m.live.DeepCopy())
				if told != tt.wantTold || (m.live == nil) != tt.wantGone || next != tt.wantGone || (err == nil) != tt.wantGone {
					t.Errorf("told %d times, gone %v, next step %v, error %v; want %d, gone: %v", told, m.live == nil, next, err, tt.wantTold, tt.wantGone)
				}
				if err != nil {
					b := blockedBy(t, err)
					if !strings.Contains(err.Error(), tt.wantText) || b.After > tt.wantWait || b.After <= 0 {
						t.Errorf("error %q after %v, want %q after at most %v", err, b.After, tt.wantText, tt.wantWait)
					}
					if s := b.Steps[0]; s.Err != nil && s.Message != "" {
						t.Errorf("Message %q next to the Err %q", s.Message, s.Err)
					}
				}
			})
		})
	}
	t.Run("not because of a stop", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := &model{live: deleted(2 * time.Hour)}
		p := plan{
			Steps: []step{{Name: "dns", GiveUpAfter: time.Hour, Run: func(ctx context.Context, _ held) (progress, error) {
				cancel()
				return progress{}, ctx.Err()
			}}},
			GaveUp: func(context.Context, held, string, error) error {
				t.Error("gave up a step that had no fair try")
				return nil
			},
		}
		if err := pass(ctx, p, m, m.live.DeepCopy()); err == nil || m.live == nil {
			t.Errorf("error = %v, gone: %v", err, m.live == nil)
		}
	})
}

// A step that hangs leaves time for the others, is given up, and does not let one be
// given up that had too little time because of it.
//
// Proves F11.
func TestPlanGivesUpInTime(t *testing.T) {
	hangs := func(ctx context.Context, _ held) (progress, error) {
		<-ctx.Done()
		return progress{}, ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(2 * time.Hour)}
		obj := m.live.DeepCopy()
		var told []string
		healthy := 0
		p := plan{
			Steps: []step{
				{Name: "hangs", GiveUpAfter: time.Hour, Run: hangs},
				{Name: "hangs too", GiveUpAfter: time.Hour, AtOnce: true, Run: hangs},
				{Name: "healthy", AtOnce: true, Run: func(context.Context, held) (progress, error) {
					healthy++
					return done, nil
				}},
			},
			GaveUp: func(_ context.Context, _ held, step string, _ error) error {
				told = append(told, step)
				return nil
			},
		}
		// The context of a pass that package reconcile gives, with a Timeout of a minute.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b := blockedBy(t, pass(ctx, p, m, obj))
		if got := strings.Join(told, ", "); got != "hangs" || healthy != 1 || b.Steps[0].Name != "hangs too" || !b.Steps[0].TimedOut {
			t.Errorf("given up: %s; %d calls of the step behind; error %v", got, healthy, b)
		}
		p.Steps[0].Timeout, p.Steps[1].Timeout = 20*time.Second, 20*time.Second
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := pass(ctx, p, m, obj); err != nil || m.live != nil {
			t.Errorf("with Timeouts that fit into the pass: error %v, gone %v", err, m.live == nil)
		}
	})
}

// A GaveUp that hangs is bounded too.
//
// Proves F11.
func TestPlanGaveUpHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(2 * time.Hour)}
		p := plan{
			Steps: []step{{Name: "dns", Run: says(progress{}, errBoom), GiveUpAfter: time.Hour, Timeout: 10 * time.Second}},
			GaveUp: func(ctx context.Context, _ held, _ string, _ error) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Hour):
					return nil
				}
			},
		}
		start := time.Now()
		err := pass(t.Context(), p, m, m.live.DeepCopy())
		blockedBy(t, err)
		if took := time.Since(start); took != 10*time.Second || !errors.Is(err, errBoom) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v after %v, want what the step said, and a deadline, after 10s", err, took)
		}
	})
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

// TestPlanMetrics proves F12.
func TestPlanMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(time.Minute)}
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
			"started a", "done a 1s", "finished 1m16s",
		}
		for i := range want {
			verb, rest, _ := strings.Cut(want[i], " ")
			want[i] = verb + " " + name + " " + rest
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
	})
}

// patched is a client that answers every patch with itself.
type patched corev1.ConfigMap

func (p *patched) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error) {
	return (*corev1.ConfigMap)(p), nil
}

// A plan may be used for many objects at once; under -race this finds state in it.
func TestPlanConcurrently(t *testing.T) {
	p := plan{Client: (*patched)(deleted(0)), Steps: []step{{Name: "a", Run: says(done, nil)}, {Name: "b", Run: says(progress{}, errBoom)}}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, _, err := finalizer.Ensure(t.Context(), p.Client, deleted(0), name, p.Run); !errors.Is(err, errBoom) {
				t.Errorf("error = %v, want boom", err)
			}
		})
	}
	wg.Wait()
}

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
		{name: "nil pointer as metrics", plan: plan{Client: client, Metrics: (*observed)(nil), Steps: []step{{Name: "a", Run: run}}}, text: []string{"Plan.Metrics is a nil *finalizer_test.observed"}},
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
		{name: "limit below base", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, MaxDelay: time.Millisecond}}}, text: []string{"Plan.Steps[0].MaxDelay", "1ms", "1s"}},
		{name: "gives up in silence", plan: plan{Client: client, Steps: []step{{Name: "a", Run: run, GiveUpAfter: time.Hour}}}, text: []string{"Plan.GaveUp is nil", "step a"}},
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
// Proves F15.
func TestBadInput(t *testing.T) {
	long := "example.com/" + strings.Repeat("a", 64)
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
		{name: "finalizer without a domain", obj: object("a", true), finalizer: "bucket", text: "not a finalizer name"},
		{name: "finalizer too long", obj: object("a", true), finalizer: long, text: "not a finalizer name"},
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
		client finalizer.Patcher[*corev1.ConfigMap]
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
//
// Proves F7.
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
