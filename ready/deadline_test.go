package ready_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/ready"
)

func TestDeadline(t *testing.T) {
	progressing := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Progressing", Message: "1 of 2 objects are ready"}
	with := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		c := progressing
		c.Status, c.Reason = status, reason
		return c
	}
	const minute = time.Minute
	tests := []struct {
		name     string
		stored   string // the type of the stored condition
		status   metav1.ConditionStatus
		since    time.Duration
		c        metav1.Condition
		deadline time.Duration
		stalled  bool
		left     time.Duration
	}{
		{name: "new", c: progressing, deadline: 10 * minute, left: 10 * minute},
		{name: "early", stored: "Ready", status: "False", since: 4 * minute, c: progressing, deadline: 10 * minute, left: 6 * minute},
		{name: "late", stored: "Ready", status: "False", since: 10 * minute, c: progressing, deadline: 10 * minute, stalled: true},
		{name: "ready before", stored: "Ready", status: "True", since: 20 * minute, c: progressing, deadline: 10 * minute, left: 10 * minute},
		{name: "unknown before", stored: "Ready", status: "Unknown", since: 20 * minute, c: progressing, deadline: 10 * minute, left: 10 * minute},
		{name: "another type", stored: "Synced", status: "False", since: 20 * minute, c: progressing, deadline: 10 * minute, left: 10 * minute},
		{name: "a clock ahead", stored: "Ready", status: "False", since: -20 * minute, c: progressing, deadline: 10 * minute, left: 10 * minute},
		{name: "failed", stored: "Ready", status: "False", since: 20 * minute, c: with("False", "Failed"), deadline: 10 * minute},
		{name: "unknown", stored: "Ready", status: "False", since: 20 * minute, c: with("Unknown", "Unknown"), deadline: 10 * minute},
		{name: "ready", stored: "Ready", status: "False", since: 20 * minute, c: with("True", "Ready"), deadline: 10 * minute},
		{name: "no deadline", stored: "Ready", status: "False", since: 20 * minute, c: progressing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var conditions []metav1.Condition
				if tt.stored != "" {
					conditions = []metav1.Condition{{Type: "Other", Status: metav1.ConditionFalse}, {Type: tt.stored, Status: tt.status, LastTransitionTime: metav1.NewTime(time.Now())}}
				}
				time.Sleep(max(tt.since, 0))
				if tt.since < 0 {
					conditions[1].LastTransitionTime = metav1.NewTime(time.Now().Add(-tt.since))
				}
				want := tt.c
				if tt.stalled {
					want.Reason, want.Message = "Stalled", "not ready within 10m0s; 1 of 2 objects are ready"
				}
				got, left := ready.Deadline(conditions, tt.c, tt.deadline)
				if diff := cmp.Diff(want, got); diff != "" || left != tt.left {
					t.Errorf("left %v, want %v; the condition (-want +got):\n%s", left, tt.left, diff)
				}
			})
		})
	}
}
