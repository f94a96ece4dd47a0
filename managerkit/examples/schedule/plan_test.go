package schedule_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/managerkit/examples/schedule"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		panic(err)
	}
	return t
}

// TestCron: Next and Newest find the times that match, also at the ends of months and years.
func TestCron(t *testing.T) {
	for _, test := range []struct{ cron, now, next, newest string }{
		{"* * * * *", "2026-11-28 21:25:10", "2026-11-28 21:26:00", "2026-11-28 21:25:00"},
		{"*/15 * * * *", "2026-11-28 21:30:00", "2026-11-28 21:45:00", "2026-11-28 21:30:00"},
		{"0 3 * * *", "2026-12-31 04:00:00", "2027-01-01 03:00:00", "2026-12-31 03:00:00"},
		{"30 5 1 1,7 *", "2026-06-30 12:00:00", "2026-07-01 05:30:00", "2026-01-01 05:30:00"},
		{"0 0 29 2 *", "2097-01-01 00:00:00", "2104-02-29 00:00:00", "2096-02-29 00:00:00"},
		{"0 9 * * 1-5", "2026-11-28 10:00:00", "2026-11-30 09:00:00", "2026-11-27 09:00:00"}, // a Saturday
		{"0 9 * * 7", "2026-11-28 10:00:00", "2026-11-29 09:00:00", "2026-11-22 09:00:00"},
		{"0 0 13 * 5", "2026-11-28 10:00:00", "2026-12-04 00:00:00", "2026-11-27 00:00:00"}, // either day
		{"0 0 */2 * 5", "2026-11-28 10:00:00", "2026-12-11 00:00:00", "2026-11-27 00:00:00"},
		{"10-20/5,50/5 22 * * *", "2026-11-28 22:20:59", "2026-11-28 22:50:00", "2026-11-28 22:20:00"},
	} {
		cron, err := schedule.ParseCron(test.cron)
		if err != nil {
			t.Errorf("ParseCron(%q) = %v", test.cron, err)
			continue
		}
		now := at(test.now)
		if got := cron.Next(now); !got.Equal(at(test.next)) {
			t.Errorf("%q: Next(%s) = %v, want %s", test.cron, test.now, got, test.next)
		}
		newest := at(test.newest)
		if got := cron.Newest(newest.Add(-time.Second), now); !got.Equal(newest) {
			t.Errorf("%q: Newest(%s) = %v, want %s", test.cron, test.now, got, test.newest)
		}
		if got := cron.Newest(newest, now); !got.IsZero() {
			t.Errorf("%q: Newest since the newest = %v, want none", test.cron, got)
		}
	}
	for _, text := range []string{
		"", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "-1 * * * *", "5-1 * * * *",
		"*/0 * * * *", "*/x * * * *", "a * * * *", "1-b * * * *", ", * * * *", "0 0 30 2 *", "*/9223372036854775808 * * * *",
	} {
		if _, err := schedule.ParseCron(text); err == nil {
			t.Errorf("ParseCron(%q) has no error", text)
		}
	}
	if _, err := schedule.ParseCron("*/9223372036854775807 * * * *"); err != nil {
		t.Errorf("a long step: %v", err)
	}
}

// TestPlan: PlanFor keeps the newest finished Jobs, and makes a Job for the newest missed time.
func TestPlan(t *testing.T) {
	s := newSchedule("shop", "report")
	s.UID, s.CreationTimestamp, s.Spec.Cron, s.Spec.KeepSuccessful = "1", metav1.Time{Time: at("2026-11-28 10:00:30")}, "*/10 * * * *", 2
	first := schedule.PlanFor(s, nil, at("2026-11-28 10:35:00")).Create
	if first == nil || first.Name != fmt.Sprintf("report-%d", at("2026-11-28 10:30:00").Unix()/60) || !metav1.IsControlledBy(first, s) {
		t.Fatalf("after three times, the Job is %+v, want that of the last one", first)
	}
	job := func(minute int, end batchv1.JobConditionType) batchv1.Job {
		due := at(fmt.Sprintf("2026-11-28 10:%02d:00", minute))
		made := schedule.PlanFor(s, nil, due).Create
		if end != "" {
			made.Status.Conditions = []batchv1.JobCondition{{Type: end, Status: corev1.ConditionTrue}}
		}
		return *made
	}
	// ahead is a Job that a clock a year ahead has made in the minute.
	ahead := func(minute int) batchv1.Job {
		due := at(fmt.Sprintf("2026-11-28 10:%02d:00", minute))
		made := schedule.PlanFor(s, nil, due.AddDate(1, 0, 0)).Create
		made.Name = job(minute, "").Name // by which a row names it
		made.CreationTimestamp.Time, made.Status.Conditions = due, []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		return *made
	}
	created := func(job batchv1.Job, clock string) batchv1.Job {
		job.CreationTimestamp.Time = at("2026-11-28 " + clock)
		return job
	}
	other := job(30, "")
	other.OwnerReferences[0].UID = "2"
	for _, test := range []struct {
		name   string
		jobs   []batchv1.Job
		change func(*v1.Schedule)
		now    string
		create int // the minute, or 0
		delete []int
		wait   time.Duration
		reason string
	}{
		{name: "before the first time", now: "10:09:00", wait: time.Minute},
		{name: "a Job runs", jobs: []batchv1.Job{job(10, "")}, now: "10:25:00", wait: 5 * time.Minute},
		{name: "a Job of another Schedule", jobs: []batchv1.Job{other}, now: "10:35:00", create: 30, wait: 5 * time.Minute},
		{name: "a Job has ended", jobs: []batchv1.Job{job(10, batchv1.JobComplete)}, now: "10:25:00", create: 20, wait: 5 * time.Minute},
		{name: "the time has its Job", jobs: []batchv1.Job{job(20, batchv1.JobComplete)}, now: "10:25:00", wait: 5 * time.Minute},
		{name: "the Job is deleted already", change: func(s *v1.Schedule) { s.Status.LastTime = &metav1.Time{Time: at("2026-11-28 10:20:00")} }, now: "10:25:00", wait: 5 * time.Minute},
		{
			name: "the oldest are deleted", now: "10:55:00", wait: 5 * time.Minute,
			jobs: []batchv1.Job{
				job(50, batchv1.JobComplete), job(10, batchv1.JobComplete), job(20, batchv1.JobFailed), job(30, batchv1.JobComplete), job(40, batchv1.JobFailed),
			},
			delete: []int{10, 20},
		},
		{name: "the clock was ahead", change: func(s *v1.Schedule) { s.Status.LastTime = &metav1.Time{Time: at("2100-01-01 00:00:00")} }, now: "10:25:00", create: 20, wait: 5 * time.Minute},
		{name: "the clock was ahead, and its Job is there", jobs: []batchv1.Job{ahead(20)}, now: "10:25:00", wait: 5 * time.Minute},
		{name: "the next Job after a clock that was ahead", jobs: []batchv1.Job{ahead(20)}, now: "10:35:00", create: 30, wait: 5 * time.Minute},
		{
			name: "the oldest are deleted after a clock that was ahead", now: "10:45:00", wait: 5 * time.Minute,
			jobs: []batchv1.Job{
				created(job(40, batchv1.JobComplete), "10:40:00"), ahead(20), created(job(30, batchv1.JobComplete), "10:30:00"),
			},
			delete: []int{20},
		},
		{name: "the clock of another leader is ahead of this one by seconds", jobs: []batchv1.Job{job(20, batchv1.JobComplete)}, now: "10:19:58", wait: 2 * time.Second},
		{name: "the clock is behind", jobs: []batchv1.Job{created(job(20, batchv1.JobComplete), "10:20:00")}, now: "10:15:00", wait: 5 * time.Minute},
		{name: "the next time is far", change: func(s *v1.Schedule) { s.Spec.Cron = "0 3 * * *" }, now: "10:35:00", wait: 10 * time.Minute},
		{name: "suspended", change: func(s *v1.Schedule) { s.Spec.Suspend = true }, now: "10:35:00", reason: "Suspended"},
		{name: "no cron", change: func(s *v1.Schedule) { s.Spec.Cron = "often" }, now: "10:35:00", reason: "InvalidCron"},
	} {
		s := s.DeepCopy()
		if test.change != nil {
			test.change(s)
		}
		plan := schedule.PlanFor(s, test.jobs, at("2026-11-28 "+test.now))
		name := func(minute int) string { return job(minute, "").Name }
		var deleted, want []string
		for _, job := range plan.Delete {
			deleted = append(deleted, job.Name)
		}
		for _, minute := range test.delete {
			want = append(want, name(minute))
		}
		if !slices.Equal(deleted, want) {
			t.Errorf("%s: the plan deletes %q, want %q", test.name, deleted, want)
		}
		if (plan.Create != nil) != (test.create != 0) || plan.Create != nil && plan.Create.Name != name(test.create) {
			t.Errorf("%s: the plan creates %+v, want the Job of minute %d", test.name, plan.Create, test.create)
		}
		if reason := cmp.Or(test.reason, "Scheduled"); plan.Ready.Reason != reason || plan.Wait != test.wait {
			t.Errorf("%s: the reason is %s, and the next run in %v, want %s and %v", test.name, plan.Ready.Reason, plan.Wait, reason, test.wait)
		}
	}
}
