package findings

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"

	"github.com/controllerkit/controllerkit/controllertest"
)

// ttlAfterFinished ends two Jobs. One is to be deleted a second later, and the other one after a
// user has shortened its time. Then the user creates a Job of the first name again.
func ttlAfterFinished() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "ttlafterfinished",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			c := ttlafterfinished.New(ctx, shared.Batch().V1().Jobs(), kube)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		Script: []controllertest.Step{
			step("create Jobs", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := createJob(ctx, kube, namespace, "soon", 1); err != nil {
					return err
				}
				return createJob(ctx, kube, namespace, "later", 3600)
			}),
			step("end the Jobs", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				for _, name := range []string{"soon", "later"} {
					job, err := kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
					if err != nil {
						return err
					}
					now := metav1.Now()
					job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
					for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
						job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
					}
					if _, err := kube.BatchV1().Jobs(namespace).UpdateStatus(ctx, job, metav1.UpdateOptions{}); err != nil {
						return err
					}
				}
				return nil
			}),
			step("shorten the time", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.BatchV1().Jobs(namespace).Patch(ctx, "later", types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":1}}`), metav1.PatchOptions{})
				return err
			}),
			step("create a Job again", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				err := createJob(ctx, kube, namespace, "soon", 1)
				if apierrors.IsAlreadyExists(err) { // a user of the plan has created it
					return nil
				}
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			for _, u := range s.Objects("jobs.batch") {
				job, err := as[batchv1.Job](u)
				if err != nil {
					return err
				}
				if job.Status.CompletionTime != nil && time.Duration(*job.Spec.TTLSecondsAfterFinished)*time.Second < time.Minute {
					return fmt.Errorf("the Job %s has ended, and its time has passed", job.Name)
				}
			}
			return nil
		},
	}
}

// createJob creates a Job that no controller runs.
func createJob(ctx context.Context, kube kubernetes.Interface, namespace, name string, ttl int32) error {
	_, err := kube.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		TTLSecondsAfterFinished: &ttl, Template: template(name, corev1.RestartPolicyNever),
	}}, metav1.CreateOptions{})
	return err
}
