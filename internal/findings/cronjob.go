package findings

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/cronjob"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// cronJob runs a Job once and keeps no history. Its only run was due on the last day of
// February in 2024, so that it is due at once, and not again during the exploration.
func cronJob() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "cronjob",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			c, err := cronjob.NewControllerV2(ctx, shared.Batch().V1().Jobs(), shared.Batch().V1().CronJobs(), kube)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, err
		}),
		World: world.Together(world.Cluster{}.Run, start(jobController)),
		Script: []controllertest.Step{step("create a suspended CronJob and start it", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
			t := template("report", corev1.RestartPolicyNever)
			t.Annotations = map[string]string{world.Exit: string(corev1.PodSucceeded)}
			api := kube.BatchV1().CronJobs(namespace)
			report, err := api.Create(ctx, &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "report"}, Spec: batchv1.CronJobSpec{
				Schedule: "0 0 29 2 *", TimeZone: new("Etc/UTC"), Suspend: new(true), SuccessfulJobsHistoryLimit: new(int32(0)),
				JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: t}},
			}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			report.Status.LastScheduleTime = &metav1.Time{Time: time.Date(2024, time.February, 28, 0, 0, 0, 0, time.UTC)}
			if _, err := api.UpdateStatus(ctx, report, metav1.UpdateOptions{}); err != nil {
				return err
			}
			_, err = api.Patch(ctx, "report", types.MergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{})
			return err
		})},
		Converged: func(s *controllertest.State) error {
			report, err := as[batchv1.CronJob](s.Get("cronjobs.batch", "report"))
			if err != nil || report == nil || *report.Spec.Suspend || report.Status.LastScheduleTime == nil {
				return err // nothing is due; a user who creates it again does not write the status
			}
			switch have := report.Status; {
			case have.LastScheduleTime.Day() != 29:
				return fmt.Errorf("the last run is of %v", have.LastScheduleTime)
			case len(s.Objects("jobs.batch")) > 0 || len(have.Active) > 0:
				return fmt.Errorf("%d Jobs and %d active ones, want none", len(s.Objects("jobs.batch")), len(have.Active))
			case have.LastSuccessfulTime == nil:
				return fmt.Errorf("the status has no lastSuccessfulTime")
			}
			return nil
		},
	}
}
