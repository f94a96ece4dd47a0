package findings

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/client-go/clientset/versioned"
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
	return controllertest.Step{Name: "create " + name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := versioned.NewForConfig(cfg)
		if err != nil {
			return err
		}
		t := template(name, corev1.RestartPolicyNever)
		t.Annotations = map[string]string{world.Exit: string(exit)}
		_, err = client.JobsetV1alpha2().JobSets(env.Namespace).Create(ctx, &v1alpha2.JobSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha2.JobSetSpec{
			SuccessPolicy: &v1alpha2.SuccessPolicy{Operator: v1alpha2.OperatorAll}, FailurePolicy: &v1alpha2.FailurePolicy{MaxRestarts: 1},
			StartupPolicy: &v1alpha2.StartupPolicy{StartupPolicyOrder: v1alpha2.AnyOrder}, Network: &v1alpha2.Network{EnableDNSHostnames: new(true), PublishNotReadyAddresses: new(true)},
			ReplicatedJobs: []v1alpha2.ReplicatedJob{{Name: "w", Replicas: 1, Template: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				Template: t, Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(0)), CompletionMode: new(batchv1.IndexedCompletion),
			}}}},
		}}, metav1.CreateOptions{})
		return err
	}}
}
