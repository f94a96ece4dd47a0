package findings

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/client-go/clientset/versioned"
	typed "sigs.k8s.io/jobset/client-go/clientset/versioned/typed/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

// jobSets runs a JobSet whose Job fails until it may not restart any more, and one that
// succeeds. The defaults of the operator's webhook are in the objects. With two Jobs it would be
// chance which one fails first.
func jobSets() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "jobset",
		Start: managertest.Start(ctrl.Options{}, func(mgr manager.Manager, _ *controllertest.Env) error {
			return errors.Join(
				v1alpha2.AddToScheme(mgr.GetScheme()), // each process has its own
				controllers.SetupJobSetIndexes(context.Background(), mgr.GetFieldIndexer()),
				controllers.NewJobSetReconciler(mgr.GetClient(), mgr.GetScheme(), mgr.GetEventRecorderFor("jobset")).SetupWithManager(mgr),
			)
		}),
		World:  world.Together(world.Cluster{}.Run, start(jobController)),
		CRDs:   []string{filepath.Join(sourceOf(".", "sigs.k8s.io/jobset"), "config", "components", "crd", "bases")},
		Script: []controllertest.Step{createsJobSet("bad", corev1.PodFailed), createsJobSet("good", corev1.PodSucceeded)},
		Converged: func(s *controllertest.State) error {
			for name, want := range map[string]v1alpha2.JobSetConditionType{"bad": v1alpha2.JobSetFailed, "good": v1alpha2.JobSetCompleted} {
				js, err := as[v1alpha2.JobSet](s.Get("jobsets.jobset.x-k8s.io", name))
				if err != nil {
					return err
				}
				if js != nil && js.Status.TerminalState != string(want) {
					return fmt.Errorf("the JobSet %s is %q after %d restarts, want %s: %+v", name, js.Status.TerminalState, js.Status.Restarts, want, js.Status.ReplicatedJobsStatus)
				}
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{Name: "at most one restart", Check: func(s *controllertest.State) error {
			js, err := as[v1alpha2.JobSet](s.Get("jobsets.jobset.x-k8s.io", "bad"))
			if err == nil && js != nil && js.Status.Restarts > 1 {
				err = fmt.Errorf("the JobSet bad has restarted %d times", js.Status.Restarts)
			}
			return err
		}}},
	}
}

func createsJobSet(name string, exit corev1.PodPhase) controllertest.Step {
	return jobSetStep("create "+name, func(ctx context.Context, client typed.JobSetInterface) error {
		_, err := client.Create(ctx, jobSet(name, exit, false), metav1.CreateOptions{})
		return err
	})
}

func jobSetStep(name string, do func(ctx context.Context, client typed.JobSetInterface) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := versioned.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, client.JobsetV1alpha2().JobSets(env.Namespace))
	}}
}

// jobSet returns a JobSet of one Job, whose Pod ends as exit, or runs until it is deleted if exit is "".
func jobSet(name string, exit corev1.PodPhase, suspended bool) *v1alpha2.JobSet {
	t := template(name, corev1.RestartPolicyNever)
	if exit != "" {
		t.Annotations = map[string]string{world.Exit: string(exit)}
	}
	return &v1alpha2.JobSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha2.JobSetSpec{
		SuccessPolicy: &v1alpha2.SuccessPolicy{Operator: v1alpha2.OperatorAll}, FailurePolicy: &v1alpha2.FailurePolicy{MaxRestarts: 1},
		StartupPolicy: &v1alpha2.StartupPolicy{StartupPolicyOrder: v1alpha2.AnyOrder}, Network: &v1alpha2.Network{EnableDNSHostnames: new(true), PublishNotReadyAddresses: new(true)},
		Suspend: &suspended,
		ReplicatedJobs: []v1alpha2.ReplicatedJob{{Name: "w", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
			Template: t, Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(0)), CompletionMode: new(batchv1.IndexedCompletion),
		}}}},
	}}
}

// The programs of the folder internal/jobset: that of go.mod, and that of next.mod.
const (
	formerJobSetProgram = "../../bin/jobset-former"
	nextJobSetProgram   = "../../bin/jobset-next"
)

// jobSetUpgrade lets a JobSet controller take over from the former one, which is another program. One JobSet has
// failed, one runs, and one is suspended. Then the user suspends the second one and resumes the third one.
func jobSetUpgrade() controllertest.Scenario {
	s := jobSets()
	s.Name, s.From = "upgrade/jobset", &controllertest.Former{Command: program(formerJobSetProgram), Steps: 3}
	s.Setup = func(ctx context.Context, _ *rest.Config) error {
		return build(ctx, "internal/jobset", formerJobSetProgram)
	}
	suspends := func(name string, suspended bool) func(context.Context, typed.JobSetInterface) error {
		return func(ctx context.Context, client typed.JobSetInterface) error {
			_, err := client.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspended), metav1.PatchOptions{})
			return err
		}
	}
	s.Script = []controllertest.Step{
		createsJobSet("bad", corev1.PodFailed),
		createsJobSet("run", ""),
		jobSetStep("create later, suspended", func(ctx context.Context, client typed.JobSetInterface) error {
			_, err := client.Create(ctx, jobSet("later", "", true), metav1.CreateOptions{})
			return err
		}),
		jobSetStep("suspend run", suspends("run", true)),
		jobSetStep("resume later", suspends("later", false)),
	}
	s.Converged = func(s *controllertest.State) error {
		for _, u := range s.Objects("jobsets.jobset.x-k8s.io") {
			js, err := as[v1alpha2.JobSet](u)
			if err != nil {
				return err
			}
			have, want := js.Status.ReplicatedJobsStatus, v1alpha2.ReplicatedJobStatus{Name: "w", Ready: 1, Active: 1}
			switch {
			case js.Name == "bad" && js.Status.TerminalState == string(v1alpha2.JobSetFailed):
				continue
			case js.Name == "bad":
				return fmt.Errorf("the JobSet bad is %q after %d restarts", js.Status.TerminalState, js.Status.Restarts)
			case js.Spec.Suspend != nil && *js.Spec.Suspend:
				want = v1alpha2.ReplicatedJobStatus{Name: "w", Suspended: 1}
			}
			if len(have) != 1 || have[0] != want {
				return fmt.Errorf("the Jobs of the JobSet %s are %+v, want %+v", js.Name, have, want)
			}
		}
		return nil
	}
	return s
}

// nextJobSetUpgrade is the same upgrade from the version of package findings to the next one.
func nextJobSetUpgrade() controllertest.Scenario {
	s := jobSetUpgrade()
	s.Name, s.From = "upgrade/next/jobset", &controllertest.Former{Start: s.Start, Steps: s.From.Steps}
	s.Start, s.Command = nil, program(nextJobSetProgram)
	s.CRDs = []string{filepath.Join(sourceOf("internal/jobset", "sigs.k8s.io/jobset@v0.11.0"), "config", "components", "crd", "bases")}
	s.Setup = func(ctx context.Context, _ *rest.Config) error {
		return build(ctx, "internal/jobset", nextJobSetProgram, "-modfile=next.mod")
	}
	return s
}
