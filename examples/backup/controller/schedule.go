package controller

import (
	"errors"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/controllerkit/controllerkit/examples/backup/api/v1"
)

// dueAnnotation is on each Job, with the time at which it was due.
const dueAnnotation = "backup.example.com/due"

// schedule returns the time for which a Job must be created now, if there is one, and the time of the
// next Job. last is the time of the newest Job, or zero. The times are the multiples of the
// interval, so after a downtime only the newest missed one is due, and a process that does not know
// the decisions of the last one makes the same.
func schedule(b *v1.Backup, last, now time.Time) (due time.Time, ok bool, next time.Time) {
	interval := b.Spec.Interval.Duration
	due = now.UTC().Truncate(interval)
	return due, due.After(b.CreationTimestamp.Time) && due.After(last), due.Add(interval)
}

// jobName returns the same name for the same time, so that the API server has at most one Job for it.
func jobName(b *v1.Backup, due time.Time) string {
	return fmt.Sprintf("%s-%d", b.Name, due.Unix())
}

// dueTime returns the time at which a Job was due.
func dueTime(job *batchv1.Job) (time.Time, error) {
	due, err := time.Parse(time.RFC3339, job.Annotations[dueAnnotation])
	if err != nil {
		return time.Time{}, fmt.Errorf("annotation %[2]s of Job %[1]s: %[3]w", job.Name, dueAnnotation, err)
	}
	return due, nil
}

// run is a Job with its time.
type run struct {
	*batchv1.Job
	due time.Time
}

// newestFirst returns the Jobs of a backup in the order of their times. A time after limit comes from a clock
// that was wrong, that of this process or of an earlier one: the Job has that of its creation instead, by
// the clock of the API server. The error names the Jobs whose time cannot be read.
func newestFirst(jobs []*batchv1.Job, limit time.Time) ([]run, error) {
	var runs []run
	var errs []error
	for _, job := range jobs {
		due, err := dueTime(job)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if due.After(limit) {
			due = job.CreationTimestamp.Time
		}
		runs = append(runs, run{job, due})
	}
	slices.SortFunc(runs, func(a, b run) int { return b.due.Compare(a.due) })
	return runs, errors.Join(errs...)
}

// finished returns the condition Complete or Failed of a Job, or nil while it runs.
func finished(job *batchv1.Job) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

// beyond returns the Jobs that the retention does not keep. It keeps the Jobs that run, the newest
// successful ones, and the newest failed ones, so that failures never push out a success.
func beyond(runs []run, retention int) (old []run) {
	kept := map[batchv1.JobConditionType]int{}
	for _, r := range runs {
		c := finished(r.Job)
		if c == nil {
			continue
		}
		if kept[c.Type] == retention {
			old = append(old, r)
			continue
		}
		kept[c.Type]++
	}
	return old
}
