package controller_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/controller"
)

func TestSchedule(t *testing.T) {
	at := func(clock string) time.Time {
		t.Helper()
		if clock == "" {
			return time.Time{}
		}
		parsed, err := time.Parse(time.DateTime, "2026-03-02 "+clock)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	tests := []struct {
		name               string
		interval           time.Duration
		created, last, now string
		due, next          string // due is "" if no Job is
	}{
		{name: "before the first time", interval: time.Hour, created: "10:20:00", now: "10:50:00", next: "11:00:00"},
		{name: "at the first time", interval: time.Hour, created: "10:20:00", now: "11:00:00", due: "11:00:00", next: "12:00:00"},
		{name: "created at a time", interval: time.Hour, created: "11:00:00", now: "11:00:00", next: "12:00:00"},
		{name: "right after it", interval: time.Hour, created: "10:20:00", last: "11:00:00", now: "11:00:01", next: "12:00:00"},
		{name: "right before the next", interval: time.Hour, created: "10:20:00", last: "11:00:00", now: "11:59:59", next: "12:00:00"},
		{name: "a late process", interval: time.Hour, created: "10:20:00", last: "11:00:00", now: "12:40:00", due: "12:00:00", next: "13:00:00"},
		{name: "only the newest missed one", interval: time.Hour, created: "10:20:00", last: "11:00:00", now: "19:05:00", due: "19:00:00", next: "20:00:00"},
		{name: "a clock that went back", interval: time.Hour, created: "10:20:00", last: "12:00:00", now: "11:30:00", next: "12:00:00"},
		{name: "a shorter interval", interval: 15 * time.Minute, created: "10:20:00", last: "11:00:00", now: "11:20:00", due: "11:15:00", next: "11:30:00"},
		{name: "a longer interval", interval: 6 * time.Hour, created: "10:20:00", last: "13:00:00", now: "13:20:00", next: "18:00:00"},
		{name: "an interval that is no part of an hour", interval: 90 * time.Second, created: "10:20:00", last: "10:21:00", now: "10:23:00", due: "10:22:30", next: "10:24:00"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := &v1.Backup{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: at(test.created)}}}
			b.Spec.Interval.Duration = test.interval
			// The answer does not depend on the zone of the process.
			for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 5*3600+1800)} {
				due, ok, next := controller.Schedule(b, at(test.last), at(test.now).In(zone))
				if ok != (test.due != "") || ok && !due.Equal(at(test.due)) || !next.Equal(at(test.next)) {
					t.Errorf("schedule() = %v, %v, %v, want %q, %q", due, ok, next, test.due, test.next)
				}
			}
		})
	}
}

func TestRetention(t *testing.T) {
	const (
		success = batchv1.JobComplete
		failure = batchv1.JobFailed
		runs    = batchv1.JobConditionType("")
	)
	// The Jobs have the names of their hours, which the order of a cache does not follow.
	history := func(ends ...batchv1.JobConditionType) (jobs []*batchv1.Job) {
		for n, end := range ends {
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + n)), Annotations: map[string]string{
				"backup.example.com/due": begin.Add(time.Duration(n) * time.Hour).Format(time.RFC3339),
			}}}
			if end != runs {
				job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}, {Type: end, Status: corev1.ConditionTrue}}
			}
			jobs = append(jobs, job)
		}
		return jobs
	}
	for _, test := range []struct {
		name      string
		jobs      []*batchv1.Job
		retention int
		old       []string
	}{
		{name: "none", retention: 1},
		{name: "as many as allowed", jobs: history(success, success), retention: 2},
		{name: "too many", jobs: history(success, success, success, success), retention: 2, old: []string{"b", "a"}},
		{name: "failures push out no success", jobs: history(success, failure, failure, failure), retention: 1, old: []string{"c", "b"}},
		{name: "running Jobs do not count", jobs: history(runs, success, runs, success, runs), retention: 1, old: []string{"b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := controller.Beyond(test.jobs, test.retention)
			if diff := cmp.Diff(test.old, got); err != nil || diff != "" {
				t.Errorf("beyond() = %v, error %v (-want +got):\n%s", got, err, diff)
			}
		})
	}
	bad := history(success, success)
	bad[0].Annotations = nil
	if got, err := controller.Beyond(bad, 1); err == nil || !strings.Contains(err.Error(), "annotation backup.example.com/due of Job a") || len(got) > 0 {
		t.Errorf("a Job without a time: %v, error %v, want it kept and named", got, err)
	}
}
