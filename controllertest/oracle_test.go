package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestOracles: each oracle fires for the bug that it is for, and no other does.
func TestOracles(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	tests := []struct {
		name   string
		copier copier
		with   func(s *controllertest.Scenario, o *controllertest.Options)
		plan   string
		oracle controllertest.Oracle // "" means none
		also   controllertest.Oracle // may fire too
		want   []string              // parts of what is found
	}{
		{
			name: "correct", plan: dropped,
		}, {
			name: "end state", plan: dropped, oracle: controllertest.EndState,
			copier: copier{failed: func(_ context.Context, c *copying) error {
				c.note = map[string]string{"second": "attempt"}
				return nil
			}},
			want: []string{`after step "create a" the state differs from that without faults`, "+ configmaps/a-copy .metadata.annotations.second: attempt"},
		}, {
			name: "events", plan: "lost-response@create configmaps a-copy#1", oracle: controllertest.Events,
			copier: copier{failed: func(ctx context.Context, c *copying) error {
				_ = c.configMaps.Delete(ctx, "a-copy", metav1.DeleteOptions{})
				return c.create(ctx, map[string]string{"k": "v"})
			}},
			want: []string{"configmaps/a-copy was created 2 times, without faults 1 times"},
		}, {
			name: "invariant", plan: dropped, oracle: controllertest.Invariance,
			copier: copier{failed: func(ctx context.Context, c *copying) error {
				if err := c.create(ctx, nil); err != nil {
					return err
				}
				_, err := c.configMaps.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a-copy"}, Data: map[string]string{"k": "v"}}, metav1.UpdateOptions{})
				return err
			}},
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Invariants = []controllertest.Invariant{{Name: "a copy has data", Check: func(s *controllertest.State) error {
					if o := s.Get("configmaps", "a-copy"); o != nil && o.Object["data"] == nil {
						return errors.New("it is empty")
					}
					return nil
				}}}
			},
			want: []string{"a copy has data: it is empty (at version "},
		}, {
			name: "liveness", plan: dropped, oracle: controllertest.Liveness,
			copier: copier{failed: func(context.Context, *copying) error { return errStop }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 3 * time.Second },
			want:   []string{"not converged 3s after the last fault or step: a is there: true, a-copy is there: false"},
		}, {
			name: "quiescence by writes", plan: dropped, oracle: controllertest.Quiescence,
			copier: copier{failed: func(ctx context.Context, c *copying) error {
				for n := 0; ctx.Err() == nil; n++ {
					_ = c.create(ctx, nil)
					_ = c.annotate(ctx, "a-copy", fmt.Sprint(n))
				}
				return nil
			}},
			with: func(_ *controllertest.Scenario, o *controllertest.Options) {
				o.QuietPeriod, o.ConvergeTimeout = time.Second, 4*time.Second // no pause of a busy machine is a rest
			},
			want: []string{"no rest of 1s within 4s", "the last writes: ", "patch configmaps a-copy metadata.annotations#"},
		}, {
			name: "quiescence by a queue", plan: dropped, oracle: controllertest.Quiescence,
			copier: copier{failed: func(_ context.Context, c *copying) error { c.env.Queue(queueOf(2)); return nil }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 3 * time.Second },
			want:   []string{"a queue is not empty at rest: Len() is 2"},
		}, {
			name: "an error of Start is a restart", plan: dropped,
			copier: copier{failed: func(context.Context, *copying) error { return errors.New("lost heart") }},
		}, {
			name: "errors of Start without end", plan: dropped, oracle: controllertest.Health,
			copier: func() copier {
				var broken sync.Map // what a file that was spoilt would be
				return copier{
					begin: func(_ context.Context, c *copying) error {
						if _, ok := broken.Load(c.env.Namespace); ok {
							return errors.New("spoilt")
						}
						return nil
					},
					failed: func(_ context.Context, c *copying) error {
						broken.Store(c.env.Namespace, true)
						return errors.New("lost heart")
					},
				}
			}(),
			with: func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 6 * time.Second },
			also: controllertest.Liveness,
			want: []string{"the process ended 20 times by itself, the last time with: spoilt"},
		}, {
			name: "a panic in Start", plan: dropped, oracle: controllertest.Health,
			copier: copier{failed: func(context.Context, *copying) error { panic("out of order") }},
			want:   []string{"panic: out of order", "oracle_test.go"},
		}, {
			name: "a panic in a worker of client-go", plan: dropped, oracle: controllertest.Health,
			copier: copier{failed: panicking},
			want:   []string{"panic: in a worker of client-go", "helpers_test.go"},
		}, {
			name: "Start does not return", plan: dropped, oracle: controllertest.Health,
			copier: func() copier {
				var failed sync.Map
				return copier{
					failed: func(_ context.Context, c *copying) error { failed.Store(c.env.Namespace, true); return nil },
					end: func(c *copying) {
						if _, ok := failed.Load(c.env.Namespace); ok {
							<-forever
						}
					},
				}
			}(),
			with: func(_ *controllertest.Scenario, o *controllertest.Options) { o.StopTimeout = time.Second },
			want: []string{"Start has not returned 1s after its context was done; its goroutines are", "oracle_test.go"},
		}, {
			name: "a goroutine is left", plan: dropped, oracle: controllertest.Health,
			copier: copier{failed: func(context.Context, *copying) error { go func() { <-forever }(); return nil }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.StopTimeout = time.Second },
			want:   []string{"goroutines are left 1s after the run:", "oracle_test.go"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, o := test.copier.scenario(), quick(t, test.plan)
			if test.with != nil {
				test.with(&s, &o)
			}
			report := run(t, s, o)
			if report.Plans != 1 || report.Valid != 1 || len(report.Invalid) != 0 {
				t.Errorf("%d plans, %d valid, invalid %v; want 1 valid", report.Plans, report.Valid, report.Invalid)
			}
			if test.oracle == "" {
				for _, f := range report.Failures {
					t.Errorf("a finding for a correct controller: %s", f)
				}
				return
			}
			if len(report.Failures) == 0 {
				t.Fatalf("nothing is found, want %s", test.oracle)
			}
			text := ""
			for _, f := range report.Failures {
				if f.Plan != test.plan || f.Replay != "CONTROLLERTEST_REPLAY='copier: "+test.plan+"'" {
					t.Errorf("the failure is of plan %q, with the replay %q", f.Plan, f.Replay)
				}
				for _, finding := range f.Findings {
					if finding.Oracle != test.oracle && finding.Oracle != test.also {
						t.Errorf("found also by %s: %s", finding.Oracle, finding.Text)
					}
				}
				text += f.String()
			}
			if slices.ContainsFunc(test.want, func(part string) bool { return !strings.Contains(text, part) }) {
				t.Errorf("what is found does not say %q: %s", test.want, text)
			}
		})
	}
}

// TestTimeline holds that a failure tells the story.
func TestTimeline(t *testing.T) {
	t.Parallel()
	c := copier{failed: func(_ context.Context, c *copying) error { c.note = map[string]string{"second": "attempt"}; return nil }}
	report := run(t, c.scenario(), quick(t, dropped))
	if len(report.Failures) != 1 {
		t.Fatalf("%d failures", len(report.Failures))
	}
	timeline := report.Failures[0].Timeline
	// Events are told by a watch of the explorer's own, which can be later than the
	// controller's.
	if _, after, _ := strings.Cut(timeline, "user: create configmaps a"); !strings.Contains(after, "event: added configmaps/") {
		t.Errorf("the timeline does not tell of the event:\n%s", timeline)
	}
	for _, part := range []string{
		"process 1 starts", "user: create a", "user: create configmaps a", "process 1: create configmaps a-copy#1",
		"FAULT " + dropped, "user: the user deletes the created objects", "FINDING end state: ",
	} {
		_, rest, found := strings.Cut(timeline, part)
		if !found {
			t.Errorf("the timeline does not say %q at its place:\n%s", part, report.Failures[0].Timeline)
		}
		timeline = rest
	}
}

// TestFaultKinds: every kind of fault happens to a correct controller as often as
// it is asked for, and none is held against it.
//
// Proves X1.
func TestFaultKinds(t *testing.T) {
	t.Parallel()
	var plans []string
	for _, kind := range controllertest.AllFaults() {
		switch kind {
		case controllertest.SlowRenewal, controllertest.NextStep, controllertest.StepBefore, controllertest.TwoSteps, controllertest.Conflict: // it writes no Lease and no resource version, and there is one step
			continue
		case controllertest.Outage:
			plans = append(plans, "outage(create configmaps 500 x5)@create configmaps a-copy#1", "outage(configmaps 503 x5)@create configmaps a-copy#1",
				"outage(all reset 2s)@create configmaps a-copy#1", "outage(configmaps hang 1s)@create configmaps a-copy#1", "outage(configmaps 429 2s)@create configmaps a-copy#1")
		case controllertest.DriftDelete, controllertest.DriftEdit:
			plans = append(plans, string(kind)+"(configmaps/a-copy)@rest#1")
		case controllertest.TimeTravel:
			plans = append(plans, "time-travel(configmaps<start)@create configmaps a-copy#1")
		case controllertest.Hold, controllertest.HoldRelist, controllertest.Gone, controllertest.GoneAtStart, controllertest.NoBookmark, controllertest.Stall:
			plans = append(plans, string(kind)+"(configmaps)@create configmaps a-copy#1")
		case controllertest.UserDelete, controllertest.UserEdit, controllertest.UserRecreate:
			plans = append(plans, string(kind)+"(configmaps/a)@create configmaps a-copy#1")
		default:
			plans = append(plans, string(kind)+"@create configmaps a-copy#1")
		}
	}
	o := quick(t, plans...)
	o.Parallel = 16
	o.ConvergeTimeout = 20 * time.Second
	s := (&copier{}).scenario()
	s.Pause = 300 * time.Millisecond
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != len(plans) || len(report.Invalid) > 0 {
		t.Errorf("%d of %d plans are valid; not: %v", report.Valid, len(plans), report.Invalid)
	}
	if !report.Complete {
		t.Error("the report says that there were more")
	}
}

// TestUnfired: a plan whose faults do not happen is invalid, and not passed.
//
// Proves X2.
func TestUnfired(t *testing.T) {
	t.Parallel()
	plans := []string{
		"500@create configmaps nobody#1",
		"drop-request@create configmaps a-copy#1 + 500@create configmaps nobody#1",
		"hold(secrets)@create configmaps a-copy#1",
		"user-delete(configmaps/b)@create configmaps a-copy#1",
	}
	s := (&copier{}).scenario()
	report := run(t, s, quick(t, append(plans, dropped)...))
	slices.Sort(plans)
	if !slices.Equal(report.Invalid, plans) || report.Valid != 1 || report.Plans != 5 || len(report.Failures) > 0 {
		t.Errorf("%d plans, %d valid, invalid %q; want %q", report.Plans, report.Valid, report.Invalid, plans)
	}
	if text := report.String(); !strings.Contains(text, "5 plans in ") || !strings.Contains(text, "1 valid, 0 failing, 4 invalid") {
		t.Errorf("the table says\n%s", text)
	}
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, quick(t, plans[0])) })
	if !rec.failed || !strings.Contains(rec.errors(), plans[0]) || !strings.Contains(rec.errors(), "did not happen") {
		t.Errorf("Explore reports %q", rec.errors())
	}
}

// TestStepWaits: a step that waits by its context for what the controller has lost is a finding, long
// before the end of the budget.
func TestStepWaits(t *testing.T) {
	t.Parallel()
	c := copier{failed: func(context.Context, *copying) error { return errStop }}
	s := c.scenario()
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		_, err := createsAndAwaits(ctx, cfg, env)
		return err
	}
	for _, test := range []struct{ name, plan, want string }{
		{"lost work", dropped, `step "create a": it was not over in time, 3s after its begin, its last write and the last fault: mend the controller if the step waits for it, or set`},
		{"the user of the plan takes it away", "user-delete(configmaps/a)@create configmaps a-copy#1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := quick(t, test.plan)
			o.ConvergeTimeout, o.Budget = 3*time.Second, 2*time.Minute
			report := run(t, s, o)
			if text := fmt.Sprint(report.Failures); (len(report.Failures) == 1) != (test.want != "") || !strings.Contains(text, test.want) {
				t.Errorf("the failures are %s, want %q\n%s", text, test.want, report)
			}
		})
	}
}

// TestReplay: the variable of a failure makes Explore run that plan and no other.
func TestReplay(t *testing.T) {
	var mu sync.Mutex
	started := map[string]bool{}
	c := copier{
		begin: func(_ context.Context, c *copying) error {
			mu.Lock()
			defer mu.Unlock()
			started[c.env.Namespace] = true
			return nil
		},
		failed: func(_ context.Context, c *copying) error { c.note = map[string]string{"second": "attempt"}; return nil },
	}
	report := run(t, c.scenario(), quick(t, dropped))
	if len(report.Failures) != 1 {
		t.Fatalf("%d failures", len(report.Failures))
	}
	name, value, _ := strings.Cut(report.Failures[0].Replay, "=")
	if name != "CONTROLLERTEST_REPLAY" {
		t.Fatalf("the variable is %s", name)
	}
	t.Setenv(name, strings.Trim(value, "'"))
	clear(started)
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, c.scenario(), quick(t)) }) // all plans, but for the variable
	if !rec.failed || !strings.Contains(rec.errors(), dropped) || !strings.Contains(rec.logs(), "copier: 1 plans in ") {
		t.Errorf("Explore reports %q and logs %q", rec.errors(), rec.logs())
	}
	if len(started) != 5 {
		t.Errorf("there were %d runs, want 4 without faults and the plan", len(started))
	}
	other := c.scenario()
	other.Name = "another"
	clear(started)
	rec = record(t, func(tb testing.TB) { controllertest.Explore(tb, other, quick(t)) })
	if rec.failed || !rec.skipped || len(started) > 0 {
		t.Errorf("another scenario: failed %t, skipped %t, %d runs", rec.failed, rec.skipped, len(started))
	}
	t.Setenv(name, "copier: nonsense")
	rec = record(t, func(tb testing.TB) { controllertest.Explore(tb, c.scenario(), quick(t)) })
	if !rec.failed || !strings.Contains(rec.errors(), "write kind@operation#occurrence") {
		t.Errorf("a broken variable: %q", rec.errors())
	}
}

// TestShrink: of a plan with several faults those remain that matter, and a test
// fails for it although no other plan begins with that kind.
func TestShrink(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	long := "slow@create configmaps a-copy#1 + 500@delete configmaps a-copy#1"
	spoil := copier{failed: func(ctx context.Context, c *copying) error {
		_, err := c.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{})
		return err
	}}
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, spoil.scenario(), quick(t, long)) })
	if want := "500@delete configmaps a-copy#1\nend state: "; !rec.failed || !strings.Contains(rec.errors(), want) || strings.Contains(rec.errors(), "replay: CONTROLLERTEST_REPLAY='copier: slow") {
		t.Errorf("Explore reports %q", rec.errors())
	}
}

// TestExternal: calls of the cloud and of Env.External are operations, and what
// they change is state.
//
// Proves X3.
func TestExternal(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	outside := map[string]int{}
	c := copier{begin: func(ctx context.Context, c *copying) error {
		return c.env.External(ctx, "ring the (bell)", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			outside[c.env.Namespace]++
			return nil
		})
	}}
	report := run(t, c.scenario(), quick(t, "crash-after@external ring the [bell]#1", "drop-request@external ring the [bell]#1"))
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 2 || !slices.Contains(report.Operations, "external ring the [bell]#1") {
		t.Errorf("%d valid, operations %q", report.Valid, report.Operations)
	}
	twice := 0
	for _, n := range outside {
		if n == 2 {
			twice++
		}
	}
	if len(outside) != 6 || twice != 1 {
		t.Errorf("calls by run: %v; want 1, and 2 where the process was killed after the first", outside)
	}
	var env controllertest.Env // of a user: there is nothing to go through
	if err := env.External(t.Context(), "x", func(context.Context) error { return errStop }); !errors.Is(err, errStop) {
		t.Error(err)
	}
	env.Queue(queueOf(1))
}

// TestUserCloud: what the user does at the external service is a state for the invariants.
func TestUserCloud(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	s := (&copier{}).scenario()
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		made, err := env.Cloud.Create(ctx, cloud.Resource{Name: "of the user"})
		if err == nil {
			err = env.Cloud.Delete(ctx, made.ID)
		}
		return errors.Join(err, createsA(ctx, cfg, env))
	}
	s.Invariants = append(s.Invariants, controllertest.Invariant{Name: "empty", Check: func(s *controllertest.State) error {
		if n := len(s.Cloud()); n > 0 {
			return fmt.Errorf("the service has %d", n)
		}
		return nil
	}})
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, quick(t, dropped)) })
	if !strings.Contains(rec.errors(), "empty: the service has 1") {
		t.Errorf("Explore reports %q", rec.errors())
	}
}

// TestLeftByAUser: what is left after the user of the plan has deleted the only object of the script is compared
// with the end of the runs without faults.
//
// Proves X1.
func TestLeftByAUser(t *testing.T) {
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		configMaps := f.kube.CoreV1().ConfigMaps(f.namespace)
		if a.DeletionTimestamp != nil {
			if err := configMaps.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			a.Finalizers = nil
			_, err := configMaps.Update(ctx, a, metav1.UpdateOptions{})
			return err
		}
		if len(a.Finalizers) > 0 {
			return nil
		}
		b := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		if _, err := configMaps.Create(ctx, b, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		a.Finalizers = []string{"example.com/copy"} // too late
		_, err := configMaps.Update(ctx, a, metav1.UpdateOptions{})
		return err
	}}
	report := run(t, f.scenario(), quick(t, "user-delete(configmaps/a)@create configmaps b#1"))
	if report.Valid != 1 || len(report.Failures) != 1 || !strings.Contains(report.Failures[0].String(), "+ configmaps/b: exists") {
		t.Errorf("the object that is left is no finding: %s", report)
	}
}

// TestNestedExternal: an external call inside another one is a part of it.
func TestNestedExternal(t *testing.T) {
	t.Parallel()
	c := copier{begin: func(ctx context.Context, c *copying) error {
		return c.env.External(ctx, "outer", func(ctx context.Context) error {
			return c.env.External(ctx, "inner", func(context.Context) error { return nil })
		})
	}}
	if report := run(t, c.scenario(), quick(t, dropped)); report.Valid != 1 || len(report.Failures) > 0 {
		t.Errorf("%s", report)
	}
}
