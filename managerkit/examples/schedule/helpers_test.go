package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/internal/testserver"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}

// begin is the first minute of a clock.
var begin = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// minuteAnnotation of a Schedule is the minute of its clock. Its change is the event at which the
// controller looks at the clock.
const minuteAnnotation = "test.example.com/minute"

// A clock is what the reconcilers of a test have in place of time.Now.
type clock struct{ minutes atomic.Int64 }

func (c *clock) now() time.Time { return begin.Add(time.Duration(c.minutes.Load()) * time.Minute) }

// clocks are the clocks of runs by namespace, outside of their processes.
type clocks struct{ byNamespace sync.Map }

func (c *clocks) of(namespace string) *clock {
	found, _ := c.byNamespace.LoadOrStore(namespace, &clock{})
	return found.(*clock)
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme))
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// newSchedule is a Schedule of each minute.
func newSchedule(namespace, name string) *v1.Schedule {
	s := &v1.Schedule{Spec: v1.ScheduleSpec{Cron: "* * * * *", KeepSuccessful: 1, KeepFailed: 1}}
	s.Namespace, s.Name, s.Annotations = namespace, name, map[string]string{minuteAnnotation: "0"}
	s.Spec.Template.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "work", Image: "work:1"}},
	}
	return s
}

// setMinute shows the minute of the clock to the controller.
func setMinute(ctx context.Context, c client.Client, namespace, name string, n int64) error {
	s := &v1.Schedule{}
	s.Namespace, s.Name = namespace, name
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, minuteAnnotation, n)
	return c.Patch(ctx, s, client.RawPatch(types.MergePatchType, patch))
}

// jobName is the name of the Job for a minute of a clock.
func jobName(schedule string, minute int) string {
	return fmt.Sprintf("%s-%d", schedule, begin.Unix()/60+int64(minute))
}

// finish does what the controller of Jobs does when the Pods have ended.
func finish(ctx context.Context, c client.Client, namespace, name string, ok bool) error {
	job := &batchv1.Job{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, job); err != nil {
		return err
	}
	now := metav1.Now()
	job.Status.StartTime = &now
	conditions := []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}
	if ok {
		conditions = []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
		job.Status.CompletionTime, job.Status.Succeeded = &now, 1
	}
	for _, condition := range conditions {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return c.Status().Update(ctx, job)
}

// running reports whether a Job has not ended.
func running(job *batchv1.Job) bool { return len(job.Status.Conditions) == 0 }
