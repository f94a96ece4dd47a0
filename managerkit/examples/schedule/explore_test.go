package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/examples/schedule/after"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
	"github.com/controllerkit/controllerkit/managerkit/examples/schedule/before"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

// startBefore runs the version with the usual patterns.
func (c *clocks) startBefore(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	return managertest.Start(ctrl.Options{}, func(mgr ctrl.Manager, env *controllertest.Env) error {
		r := &before.Reconciler{Client: mgr.GetClient(), Now: c.of(env.Namespace).now}
		return errors.Join(v1.AddToScheme(mgr.GetScheme()), r.SetupWithManager(mgr))
	})(ctx, cfg, env)
}

// startAfter runs the version with managerkit.
func (c *clocks) startAfter(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	writes, options := managerkit.NewWrites(consistency.Config{}), ctrl.Options{}
	if err := writes.Install(cfg, &options); err != nil {
		return err
	}
	return managertest.Start(options, func(mgr ctrl.Manager, env *controllertest.Env) error {
		r := &after.Reconciler{Client: mgr.GetClient(), Now: c.of(env.Namespace).now, Writes: writes}
		return errors.Join(v1.AddToScheme(mgr.GetScheme()), r.SetupWithManager(mgr))
	})(ctx, cfg, env)
}

// scenario is the life of a Schedule.
func (c *clocks) scenario(start func(context.Context, *rest.Config, *controllertest.Env) error) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "schedule",
		CRDs:  []string{"config"},
		Start: start,
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, k client.Client, namespace string) error {
				return k.Create(ctx, newSchedule(namespace, "report"))
			}),
			c.minute(1), // the first Job still runs
			finishJob(0, true),
			c.minute(2),
			finishJob(1, true), // the first Job is deleted
			c.minute(3),
			finishJob(2, false),
		},
		Converged:   converged,
		Invariants:  []controllertest.Invariant{{Name: "a Schedule has one running Job", Check: oneRuns}},
		UserObjects: []string{"schedules.jobs.example.com/report"},
	}
}

func step(name string, do func(ctx context.Context, k client.Client, namespace string) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		k, err := newClient(cfg)
		if err != nil {
			return err
		}
		return do(ctx, k, env.Namespace)
	}}
}

// minute is the step into a minute of the clock. It needs the Job of the minute before, because
// only the newest missed time gets a Job.
func (c *clocks) minute(n int) controllertest.Step {
	return step(fmt.Sprintf("minute %d", n), func(ctx context.Context, k client.Client, namespace string) error {
		former := types.NamespacedName{Namespace: namespace, Name: jobName("report", n-1)}
		if err := k.Get(ctx, former, &batchv1.Job{}); err != nil {
			return missing(ctx, k, namespace, err)
		}
		c.of(namespace).minutes.Store(int64(n))
		return setMinute(ctx, k, namespace, "report", int64(n))
	})
}

// finishJob is the step in which the Job of a minute ends.
func finishJob(minute int, ok bool) controllertest.Step {
	return step(fmt.Sprintf("finish the Job of minute %d", minute), func(ctx context.Context, k client.Client, namespace string) error {
		if err := finish(ctx, k, namespace, jobName("report", minute), ok); err != nil {
			return missing(ctx, k, namespace, err)
		}
		return nil
	})
}

// missing returns the error of a step about a Job. If the plan has deleted the Schedule, it is a
// NotFound, which is no finding.
func missing(ctx context.Context, k client.Client, namespace string, err error) error {
	if err := k.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "report"}, &v1.Schedule{}); err != nil {
		return err
	}
	return fmt.Errorf("the Schedule exists: %v", err) // without the type of the error
}

// read returns the Schedule, or nil, and the Jobs in the order of their times.
func read(s *controllertest.State) (*v1.Schedule, []*batchv1.Job, error) {
	var jobs []*batchv1.Job
	for _, obj := range s.Objects("jobs.batch") {
		job := &batchv1.Job{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, job); err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, job)
	}
	obj := s.Get("schedules.jobs.example.com", "report")
	if obj == nil {
		return nil, jobs, nil
	}
	found := &v1.Schedule{}
	return found, jobs, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, found)
}

// converged returns nil if one Job runs, at most one of each result is kept, and the status has
// both; or if nothing is left of a Schedule that is gone.
func converged(s *controllertest.State) error {
	found, jobs, err := read(s)
	switch {
	case err != nil:
		return err
	case found == nil && len(jobs) > 0:
		return fmt.Errorf("the Schedule is gone, but %d Jobs are left", len(jobs))
	case found == nil:
		return nil
	case found.DeletionTimestamp != nil:
		return errors.New("the Schedule is being deleted")
	}
	var active []string
	successful, failed := 0, 0
	var last string
	for _, job := range jobs {
		last = max(last, job.Annotations["jobs.example.com/time"])
		switch {
		case !metav1.IsControlledBy(job, found):
			return fmt.Errorf("Job %s is of another Schedule", job.Name)
		case running(job):
			active = append(active, job.Name)
		case job.Status.Succeeded > 0:
			successful++
		default:
			failed++
		}
	}
	ready := meta.FindStatusCondition(found.Status.Conditions, "Ready")
	switch {
	case len(active) != 1 || successful > 1 || failed > 1:
		return fmt.Errorf("the Jobs %q run, and %d and %d are kept, want one and at most 1 and 1", active, successful, failed)
	case !slices.Equal(found.Status.Active, active):
		return fmt.Errorf("the active Jobs are %q in the status, want %q", found.Status.Active, active)
	case found.Status.LastTime == nil || found.Status.LastTime.UTC().Format(time.RFC3339) != last:
		return fmt.Errorf("the last time is %v in the status, want %s", found.Status.LastTime, last)
	case ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != found.Generation:
		return fmt.Errorf("the condition Ready is %+v", ready)
	}
	return nil
}

// oneRuns finds two running Jobs of a Schedule.
func oneRuns(s *controllertest.State) error {
	_, jobs, err := read(s)
	if err != nil {
		return err
	}
	runs := map[types.UID]string{}
	for _, job := range jobs {
		owner := metav1.GetControllerOf(job)
		if owner == nil || !running(job) {
			continue
		}
		if other := runs[owner.UID]; other != "" {
			return fmt.Errorf("the Jobs %s and %s run at once", other, job.Name)
		}
		runs[owner.UID] = job.Name
	}
	return nil
}

// TestUpgrade lets the version with managerkit take over from the version before, under faults, while a
// Job runs: the move changes no object.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	installSchedules(t)
	var all clocks
	s := all.scenario(all.startAfter)
	s.Name = "schedule-upgrade"
	s.From = &controllertest.Former{Start: all.startBefore, Steps: 2}
	controllertest.Explore(t, s, controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second, Parallel: 16, Sample: 8,
		Faults: withoutRecreate(),
	})
}

// TestExplore: under the same faults, the version with the usual patterns has findings, and the
// version with managerkit has none. The findings have one cause: a run between the creation of a
// Job and its event in the cache creates another Job. EXPLORE_BUDGET, for example 5m, injects
// every kind of fault at every operation, in place of some at the creation of Jobs.
func TestExplore(t *testing.T) {
	t.Parallel()
	installSchedules(t)
	first, second := "create jobs.batch "+jobName("report", 0)+"#1", "create jobs.batch "+jobName("report", 1)+"#1"
	options := controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second, Parallel: 16, Confirm: 1,
		Plans: []string{
			"next-step(jobs.batch)@" + first, "next-step(jobs.batch)@" + second,
			"crash-after@" + first, "crash-after@" + second, "lost-response@" + first, "lost-response@" + second,
		},
	}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Plans, options.Confirm = nil, 0
		options.Faults = withoutRecreate()
	}
	var all clocks
	for _, version := range []struct {
		name  string
		start func(context.Context, *rest.Config, *controllertest.Env) error
		finds bool
	}{{"before", all.startBefore, true}, {"after", all.startAfter, false}} {
		report, err := controllertest.Run(t.Context(), all.scenario(version.start), options)
		if err != nil {
			t.Fatalf("%s: %v", version.name, err)
		}
		t.Logf("%s: %s", version.name, report)
		for _, f := range report.Failures {
			if version.finds && f.Plan != "" {
				t.Logf("%s: %s: %s", version.name, f.Plan, f.Findings[0].Text)
			} else {
				t.Errorf("%s: %s", version.name, f)
			}
		}
		if version.finds && len(report.Failures) == 0 {
			t.Errorf("%s has no finding", version.name)
		}
		if report.Valid == 0 {
			t.Errorf("%s: no plan was valid: %v", version.name, report.Invalid)
		}
	}
}

// withoutRecreate returns the faults that fit: a new Schedule makes no Jobs for former minutes.
func withoutRecreate() []controllertest.Kind {
	return slices.DeleteFunc(controllertest.AllFaults(), func(k controllertest.Kind) bool { return k == controllertest.UserRecreate })
}
