package recorder_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/recorder"
)

// Odd input is cut, or dropped and counted; nothing panics.
func TestBadInput(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	good := configMapRef("a")
	for _, tt := range []struct {
		name                            string
		regarding                       corev1.ObjectReference
		eventType, reason, action, note string
		want                            *eventsv1.Event // nil if it is invalid
	}{
		{name: "no object", eventType: "Normal", reason: "R", action: "A"},
		{name: "nil object", regarding: recorder.Reference(nil, configMapKind), eventType: "Normal", reason: "R", action: "A"},
		{name: "nil pointer", regarding: recorder.Reference((*corev1.ConfigMap)(nil), configMapKind), eventType: "Normal", reason: "R", action: "A"},
		{name: "no kind", regarding: recorder.Reference(&metav1.ObjectMeta{Name: "a"}, schema.GroupVersionKind{}), eventType: "Normal", reason: "R", action: "A"},
		{name: "no type", regarding: good, reason: "R", action: "A"},
		{name: "unknown type", regarding: good, eventType: "Error", reason: "R", action: "A"},
		{name: "no reason", regarding: good, eventType: "Normal", action: "A"},
		{name: "no action", regarding: good, eventType: "Normal", reason: "R"},
		{
			name: "long text", regarding: good, eventType: "Warning", reason: "R" + long, action: long, note: "x" + long,
			want: &eventsv1.Event{Type: "Warning", Reason: "R" + strings.Repeat("ä", 63), Action: strings.Repeat("ä", 64), Note: "x" + strings.Repeat("ä", 511)},
		},
		{
			name: "no text", regarding: good, eventType: "Warning", reason: "\xff", action: "A\xffB", note: long[:1025],
			want: &eventsv1.Event{Type: "Warning", Reason: "?", Action: "A?B", Note: strings.Repeat("ä", 512)},
		},
		{
			name: "a name that Events cannot have, and no namespace", regarding: corev1.ObjectReference{Kind: "ClusterRole", Name: "system:" + long}, eventType: "Normal", reason: "R", action: "A",
			want: &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "event."}, Type: "Normal", Reason: "R", Action: "A"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				r.Event(tt.regarding, corev1.ObjectReference{Kind: "Pod"}, tt.eventType, tt.reason, tt.action, tt.note)
				runEvents(t, t.Context(), r)()
				events := store.list()
				if tt.want == nil {
					wantCounts(t, r, recorder.Counts{Dropped: map[string]uint64{"invalid": 1}})
					return
				}
				if len(events) != 1 {
					t.Fatalf("%d Events, want 1; Counts = %v", len(events), r.Counts())
				}
				got := events[0]
				if got.Type != tt.want.Type || got.Reason != tt.want.Reason || got.Action != tt.want.Action || got.Note != tt.want.Note || got.Related.Kind != "Pod" {
					t.Errorf("Event = %v, want %v", got, tt.want)
				}
				if tt.want.Namespace != "" && (got.Namespace != tt.want.Namespace || !strings.HasPrefix(got.Name, tt.want.GenerateName)) {
					t.Errorf("Event is %s/%s, want %s/%s...", got.Namespace, got.Name, tt.want.Namespace, tt.want.GenerateName)
				}
			})
		})
	}
}

// A Func needs no recorder in its tests.
func TestNilRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *recorder.Recorder
		say(r, "a", "copied")
		if diff := cmp.Diff(recorder.Counts{}, r.Counts()); diff != "" {
			t.Errorf("Counts (-want +got):\n%s", diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := r.Run(ctx); err != nil || time.Since(start) != time.Minute {
			t.Errorf("Run = %v after %v, want nil after 1m, as its context", err, time.Since(start))
		}
	})
}

func TestRecorderFields(t *testing.T) {
	var store eventStore
	err := (&recorder.Recorder{Controller: "no good", Interval: -1, MaxSeries: -1, QPS: -1, StopTimeout: -1}).Run(t.Context())
	for _, field := range []string{"Client", "Controller", "Interval", "MaxSeries", "QPS", "StopTimeout"} {
		if err == nil || !strings.Contains(err.Error(), "recorder: Recorder."+field+" is ") {
			t.Errorf("Run = %v, want it to name %s", err, field)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		synctest.Wait()
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "already running") {
			t.Errorf("a second Run = %v, want an error", err)
		}
		stop()
	})
}

// outcomes is a Metrics. A Recorder calls it with its lock held.
type outcomes map[string]int

func (o outcomes) EventsRecorded(outcome string, n int) { o[outcome] += n }

// TestNilMetrics: a nil pointer is no Metrics.
func TestNilMetrics(t *testing.T) {
	r := newRecorder(&eventStore{})
	r.Metrics = (*nilMetrics)(nil)
	r.Event(corev1.ObjectReference{}, corev1.ObjectReference{}, "", "", "", "")
	if got := r.Counts().Dropped["invalid"]; got != 1 {
		t.Errorf("%d Events dropped as invalid, want 1", got)
	}
}

type nilMetrics struct{ n int }

func (m *nilMetrics) EventsRecorded(_ string, n int) { m.n += n }
