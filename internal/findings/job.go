package findings

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/job"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// jobs runs a Job that succeeds, and then a Job that exceeds its deadline.
func jobs() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "job",
		Start: start(jobController),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			createsJob("done", string(corev1.PodSucceeded), 600),
			createsJob("late", "", 2),
		},
		Converged: func(s *controllertest.State) error {
			for _, name := range []string{"done", "late"} {
				j, err := as[batchv1.Job](s.Get("jobs.batch", name))
				if err != nil {
					return err
				}
				if j != nil && !finished(j) {
					return fmt.Errorf("the Job %s is not finished", name)
				}
				for _, u := range s.Objects("pods") {
					pod, err := as[corev1.Pod](u)
					if err == nil && pod.Labels["app"] == name && slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
						return fmt.Errorf("a Pod of Job %s, which is finished or deleted, has the tracking finalizer", name)
					}
				}
			}
			return nil
		},
	}
}

func jobController(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
	scheduling := shared.Scheduling().V1beta1()
	c, err := job.NewController(ctx, kube, shared.Core().V1().Pods(), shared.Batch().V1().Jobs(), scheduling.Workloads(), scheduling.PodGroups())
	return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, err
}

// createsJob is a step that creates a Job whose Pods end in the phase exit.
func createsJob(name, exit string, deadline int64) controllertest.Step {
	return step("create "+name, func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
		t := template(name, corev1.RestartPolicyNever)
		t.Annotations = map[string]string{world.Exit: exit}
		_, err := kube.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
			Template: t, Parallelism: new(int32(2)), Completions: new(int32(2)), BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: &deadline,
		}}, metav1.CreateOptions{})
		return err
	})
}

func finished(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}
