package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
)

const (
	// Label of a Job is the uid of its Schedule.
	Label = "jobs.example.com/schedule"

	// timeAnnotation of a Job is the time for which it was made.
	timeAnnotation = "jobs.example.com/time"
)

// A Plan is what a Schedule needs now.
type Plan struct {
	Active   []string
	LastTime *metav1.Time
	Ready    metav1.Condition

	Delete []*batchv1.Job // finished Jobs above the limits of the history
	Create *batchv1.Job   // nil means none
	Wait   time.Duration  // until the next Plan is needed without an event, at most 10m; 0 means never
}

// PlanFor returns the Plan of a Schedule with these Jobs. The newest missed time gets a Job, as
// soon as no former one runs.
func PlanFor(s *v1.Schedule, jobs []batchv1.Job, now time.Time) Plan {
	plan := Plan{LastTime: s.Status.LastTime}
	cron, err := ParseCron(s.Spec.Cron)
	// A time after limit is of a clock that was wrong. Otherwise no Job would be due until that time.
	limit := cron.Next(now) // zero if the expression is not valid
	wrong := func(t time.Time) bool { return !limit.IsZero() && t.After(limit) }
	if plan.LastTime != nil && wrong(plan.LastTime.Time) {
		plan.LastTime = nil
	}
	finished := map[batchv1.JobConditionType][]*batchv1.Job{}
	for i := range jobs {
		job := &jobs[i]
		if !metav1.IsControlledBy(job, s) {
			continue
		}
		if at, err := time.Parse(time.RFC3339, job.Annotations[timeAnnotation]); err == nil {
			if wrong(at) {
				at = job.CreationTimestamp.Time // by the clock of the API server
			}
			if plan.LastTime == nil || at.After(plan.LastTime.Time) {
				plan.LastTime = &metav1.Time{Time: at}
			}
		}
		switch end := ended(job); {
		case end == "":
			plan.Active = append(plan.Active, job.Name)
		case job.DeletionTimestamp == nil:
			finished[end] = append(finished[end], job)
		}
	}
	slices.Sort(plan.Active)
	plan.Delete = append(oldest(finished[batchv1.JobComplete], s.Spec.KeepSuccessful), oldest(finished[batchv1.JobFailed], s.Spec.KeepFailed)...)

	plan.Ready = metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Scheduled", ObservedGeneration: s.Generation}
	switch {
	case err != nil:
		plan.Ready.Status, plan.Ready.Reason, plan.Ready.Message = metav1.ConditionFalse, "InvalidCron", err.Error()
		return plan
	case s.Spec.Suspend:
		plan.Ready.Status, plan.Ready.Reason = metav1.ConditionFalse, "Suspended"
		return plan
	}
	plan.Wait = min(limit.Sub(now), 10*time.Minute) // the wait does not see that the clock is set
	last := s.CreationTimestamp.Time
	if plan.LastTime != nil {
		last = plan.LastTime.Time
	}
	if due := cron.Newest(last, now); !due.IsZero() && len(plan.Active) == 0 {
		plan.Create = newJob(s, due)
	}
	return plan
}

// ended returns the condition by which a Job has ended, or "".
func ended(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// oldest returns all Jobs but the newest ones to keep. Their creation is by the clock of the API server.
func oldest(jobs []*batchv1.Job, keep int32) []*batchv1.Job {
	slices.SortFunc(jobs, func(a, b *batchv1.Job) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Annotations[timeAnnotation], b.Annotations[timeAnnotation]))
	})
	return jobs[:max(0, len(jobs)-int(keep))]
}

// newJob returns the Job for a time. Its name has the time, so a time has one Job.
func newJob(s *v1.Schedule, at time.Time) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       s.Namespace,
			Name:            fmt.Sprintf("%s-%d", s.Name, at.Unix()/60),
			Labels:          map[string]string{Label: string(s.UID)},
			Annotations:     map[string]string{timeAnnotation: at.Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, v1.GroupVersion.WithKind("Schedule"))},
		},
		Spec: *s.Spec.Template.DeepCopy(),
	}
}
