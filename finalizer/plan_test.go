package finalizer_test

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/types"
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

// TestPlanOrder proves F7.
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
// Proves F7.
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
// Proves F7.
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

// TestPlanStale proves F8.
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
// Proves F7.
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
// Proves F8.
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

// A stop between two steps starts no other, and keeps the finalizer.
//
// Proves F7.
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

// An object that is forced away, or forced away and made again, while a step runs has no
// further step.
//
// Proves F8.
func TestPlanReadsAgain(t *testing.T) {
	tests := []struct {
		name    string
		then    func(*model) // during the first step
		fail    error        // of the second read
		want    []string     // the started steps
		reads   int          // patches in dry run
		blocked string       // the step that blocks; "" if Ensure returns nil
	}{
		{name: "unchanged", want: []string{"one", "two"}, reads: 2},
		{name: "gone", then: func(m *model) { m.live = nil }, want: []string{"one"}, reads: 3},
		{name: "replaced", then: func(m *model) { m.live = object("b", false) }, want: []string{"one"}, reads: 4},
		{name: "without the finalizer", then: func(m *model) { m.live.Finalizers = []string{"x/1"} }, want: []string{"one"}, reads: 3},
		{name: "unreadable", fail: errBoom, want: []string{"one"}, reads: 2, blocked: "two"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{live: deleted(0)}
				var got []string
				c := &reads{model: m}
				p := plan{Client: c, Steps: []step{
					{Name: "one", Run: func(context.Context, held) (progress, error) {
						got = append(got, "one")
						if tt.then != nil {
							tt.then(m)
						}
						c.fail = tt.fail
						return done, nil
					}},
					{Name: "two", Run: func(context.Context, held) (progress, error) {
						got = append(got, "two")
						return done, nil
					}},
				}}
				_, _, err := finalizer.Ensure(t.Context(), c, m.live.DeepCopy(), name, p.Run)
				if tt.blocked != "" {
					if b := blockedBy(t, err); len(b.Steps) != 1 || b.Steps[0].Name != tt.blocked || b.After <= 0 || !errors.Is(err, tt.fail) {
						t.Errorf("error = %v after %v, want %s not started because of %v", err, b.After, tt.blocked, tt.fail)
					}
				} else if err != nil {
					t.Errorf("error = %v", err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("started steps (-want +got):\n%s", diff)
				}
				if c.dry != tt.reads {
					t.Errorf("%d reads, want %d", c.dry, tt.reads)
				}
			})
		})
	}
}

// reads counts the reads of a model, and fails each with fail.
type reads struct {
	*model
	dry  int
	fail error
}

func (r *reads) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.ConfigMap, error) {
	if len(opts.DryRun) > 0 {
		r.dry++
		if r.fail != nil {
			return nil, r.fail
		}
	}
	return r.model.Patch(ctx, name, pt, data, opts, subresources...)
}

// A panic is the caller's to recover, and leaves the finalizer. Metrics are told that
// the call has ended.
//
// Proves F7.
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
