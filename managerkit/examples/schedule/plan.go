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
	Wait   time.Duration  // until the next Plan is needed without an event; 0 means never
}

// PlanFor returns the Plan of a Schedule with these Jobs. The newest missed time gets a Job, as
// soon as no former one runs.
func PlanFor(s *v1.Schedule, jobs []batchv1.Job, now time.Time) Plan {
	plan := Plan{LastTime: s.Status.LastTime}
	finished := map[batchv1.JobConditionType][]*batchv1.Job{}
	for i := range jobs {
		job := &jobs[i]
		if !metav1.IsControlledBy(job, s) {
			continue
		}
		if at, err := time.Parse(time.RFC3339, job.Annotations[timeAnnotation]); err == nil && (plan.LastTime == nil || at.After(plan.LastTime.Time)) {
			plan.LastTime = &metav1.Time{Time: at}
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
	cron, err := ParseCron(s.Spec.Cron)
	switch {
	case err != nil:
		plan.Ready.Status, plan.Ready.Reason, plan.Ready.Message = metav1.ConditionFalse, "InvalidCron", err.Error()
		return plan
	case s.Spec.Suspend:
		plan.Ready.Status, plan.Ready.Reason = metav1.ConditionFalse, "Suspended"
		return plan
	}
	plan.Wait = cron.Next(now).Sub(now)
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

// oldest returns all Jobs but the newest ones to keep.
func oldest(jobs []*batchv1.Job, keep int32) []*batchv1.Job {
	slices.SortFunc(jobs, func(a, b *batchv1.Job) int {
		return cmp.Compare(a.Annotations[timeAnnotation], b.Annotations[timeAnnotation])
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
