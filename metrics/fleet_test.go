package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/status/fleet"
)

var _ fleet.Metrics = (*metrics.Metrics)(nil)

// site returns an object with the condition Ready.
func site(name, status, reason string, since time.Time) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "shop", "name": name},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": since.UTC().Format(time.RFC3339)},
		}},
	}}
}

// TestFleet: the series of the objects of a resource, as they come and go.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reg := newMetrics(t)
		sites := &fleet.Tracker{Resource: "websites.example.com"}
		sites.Report(m)
		paused := &pause.Set{}
		m.FleetPaused("websites.example.com", paused.Len)
		families := []string{"controller_object_conditions", "controller_not_ready_objects", "controller_not_ready_oldest_seconds", "controller_paused_objects"}
		want := func(conditions string, objects int, oldest float64, paused int) {
			t.Helper()
			text := conditions + fmt.Sprintf(`# HELP controller_not_ready_objects Number of objects of the resource that are not ready, without paused ones.
# TYPE controller_not_ready_objects gauge
controller_not_ready_objects{resource="websites.example.com"} %d
# HELP controller_not_ready_oldest_seconds Time in seconds for which the oldest of these objects has not been ready, 0 if there are none.
# TYPE controller_not_ready_oldest_seconds gauge
controller_not_ready_oldest_seconds{resource="websites.example.com"} %v
# HELP controller_paused_objects Number of objects of the resource that an annotation pauses, without those that are being deleted.
# TYPE controller_paused_objects gauge
controller_paused_objects{resource="websites.example.com"} %d
`, objects, oldest, paused)
			if err := testutil.GatherAndCompare(reg, strings.NewReader(text), families...); err != nil {
				t.Error(err)
			}
		}
		want("", 0, 0, 0)
		begin := time.Now()
		sites.OnAdd(site("a", "False", "NoQuota", begin), true)
		sites.OnAdd(site("b", "True", "Ready", begin), true)
		brake := site("b", "True", "Ready", begin)
		brake.SetAnnotations(map[string]string{"controllerkit.github.io/paused": ""})
		paused.OnAdd(brake, true)
		time.Sleep(90 * time.Second)
		const head = "# HELP controller_object_conditions Number of objects of the resource by each of their conditions.\n# TYPE controller_object_conditions gauge\n"
		want(head+`controller_object_conditions{condition="Ready",reason="NoQuota",resource="websites.example.com",status="False"} 1
controller_object_conditions{condition="Ready",reason="Ready",resource="websites.example.com",status="True"} 1
`, 1, 90, 1)
		sites.OnDelete(site("a", "", "", begin))
		want(head+`controller_object_conditions{condition="Ready",reason="NoQuota",resource="websites.example.com",status="False"} 0
controller_object_conditions{condition="Ready",reason="Ready",resource="websites.example.com",status="True"} 1
`, 0, 0, 1)
		sites.OnUpdate(nil, site("b", "False", "Late", begin.Add(time.Hour))) // by a clock that is ahead
		if n, err := testutil.GatherAndCount(reg, "controller_object_conditions"); err != nil || n != 3 {
			t.Errorf("%d series, %v, want 3", n, err)
		}
		if _, body := scrape(t, m.Handler()); !strings.Contains(body, `controller_not_ready_oldest_seconds{resource="websites.example.com"} 0`) {
			t.Error("the age of an object from the future is not 0")
		}
	})
}

// TestFleetBounds: the series of a resource stay bounded, also for a source that is not.
//
// Proves M1.
func TestFleetBounds(t *testing.T) {
	m, reg := newMetrics(t)
	const n = 10_000
	m.FleetObjects("odd", func(yield func(condition, status, reason string, objects int)) {
		for i := range n {
			yield(fmt.Sprint("type", i), "\xff\n", strings.Repeat("x", 1000)+fmt.Sprint(i), 1)
		}
	}, func() (int, time.Time) { return 0, time.Time{} })
	sites := &fleet.Tracker{Resource: "websites.example.com"}
	sites.Report(m)
	for i := range n {
		sites.OnAdd(site(fmt.Sprint(i), "False", fmt.Sprint("Reason", i), metav1.Now().Time), true)
	}
	for range 2 {
		if got, err := testutil.GatherAndCount(reg, "controller_object_conditions"); err != nil || got != 601+21 {
			t.Errorf("%d series, %v, want 601 and 21", got, err)
		}
	}
	if _, body := scrape(t, m.Handler()); !strings.Contains(body, fmt.Sprintf(`controller_object_conditions{condition="other",reason="other",resource="odd",status="other"} %d`, n-600)) {
		t.Error("the rest is not counted as other")
	}
}

// TestFleetReplaced: later functions of a resource replace the earlier ones and their series, so that
// the series stay bounded also if they are replaced often.
//
// Proves M1.
func TestFleetReplaced(t *testing.T) {
	m, reg := newMetrics(t)
	for _, resource := range []string{"sites", "shops"} {
		for i := range 10 {
			m.FleetObjects(resource, func(yield func(condition, status, reason string, objects int)) {
				for j := range 100 {
					yield("Ready", "False", fmt.Sprint("Reason", i, "of", j), 1)
				}
			}, func() (int, time.Time) { return 0, time.Time{} })
			for range 2 {
				want := 100
				if resource == "shops" {
					want = 200
				}
				if n, err := testutil.GatherAndCount(reg, "controller_object_conditions"); err != nil || n != want {
					t.Errorf("%s, functions %d: %d series, %v, want %d", resource, i, n, err, want)
				}
			}
		}
	}
}
