package metrics_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/controllerkit/controllerkit/metrics"
)

// TestNamesAndLabels proves M2.
func TestNamesAndLabels(t *testing.T) {
	m, reg := newMetrics(t)
	use(t, m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = fmt.Sprint(strings.ToLower(f.GetType().String()), " ", strings.Join(labels, ","))
	}
	want := map[string]string{
		"controller_reconcile_total":                   "counter controller,result",
		"controller_reconcile_duration_seconds":        "histogram controller,result",
		"controller_keys":                              "gauge controller,state",
		"controller_writes_total":                      "counter controller,kind,result",
		"controller_events_total":                      "counter outcome",
		"controller_shutdown_duration_seconds":         "gauge part,result",
		"controller_finalizer_blocked_objects":         "gauge finalizer,step",
		"controller_finalizer_blocked_oldest_seconds":  "gauge finalizer,step",
		"controller_leader_absent_seconds_total":       "counter name",
		"controller_shards_owned":                      "gauge name",
		"controller_shards_began_total":                "counter name",
		"controller_shards_ownerless":                  "gauge name",
		"controller_shards_ownerless_seconds_total":    "counter name",
		"controller_shards_surplus":                    "gauge name",
		"controller_reconcile_held_total":              "counter controller",
		"controller_active_workers":                    "gauge controller",
		"controller_reconcile_latency_seconds":         "histogram controller",
		"controller_workers":                           "gauge controller",
		"controller_consistency_wait_duration_seconds": "histogram result",
		"controller_finalizer_steps_running":           "gauge finalizer,step",
		"controller_finalizer_step_duration_seconds":   "histogram finalizer,result,step",
		"controller_finalizer_blocked_age_seconds":     "histogram finalizer,step",
		"controller_finalizer_duration_seconds":        "histogram finalizer",
		"controller_leader_transitions_total":          "counter name",
		"controller_leader_acquire_duration_seconds":   "histogram name",
		"controller_leader_renewal_duration_seconds":   "histogram name",
		"controller_leader_slow_renewals_total":        "counter name",
		"controller_not_ready_objects":                 "gauge resource",
		"controller_not_ready_oldest_seconds":          "gauge resource",
		"controller_object_conditions":                 "gauge condition,reason,resource,status",
		"controller_paused_objects":                    "gauge resource",
		"informer_processing_latency_seconds":          "histogram group,name,resource,version",
		"informer_queued_items":                        "gauge group,name,resource,version",
		"informer_store_resource_version":              "gauge group,name,resource,version",
		"leader_election_master_status":                "gauge name",
		"workqueue_depth":                              "gauge name",
		"workqueue_adds_total":                         "counter name",
		"workqueue_retries_total":                      "counter name",
		"workqueue_queue_duration_seconds":             "histogram name",
		"workqueue_work_duration_seconds":              "histogram name",
		"workqueue_unfinished_work_seconds":            "gauge name",
		"workqueue_longest_running_processor_seconds":  "gauge name",
		"rest_client_requests_total":                   "counter code,host,method",
		"rest_client_request_duration_seconds":         "histogram host,verb",
		"controller_informer_last_event_age_seconds":   "gauge name",
		"controller_informer_objects":                  "gauge name",
		"controller_informer_bytes":                    "gauge name",
		"controller_informer_malformed_objects":        "gauge name",
		"controller_informer_served":                   "gauge name",
		"controller_failing_keys":                      "gauge controller,result",
		"controller_objects":                           "gauge controller",
		"controller_leader_seen":                       "gauge name",
		"controller_migration_objects":                 "gauge definition,state",
		"controller_migration_complete":                "gauge definition",
		"controller_mistakes_total":                    "counter mistake",
		"controller_informer_mutations_total":          "counter name",
		"reflector_lists_total":                        "counter name",
		"reflector_list_duration_seconds":              "histogram name",
		"reflector_watches_total":                      "counter name",
		"reflector_watch_duration_seconds":             "histogram name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("families (-want +got):\n%s", diff)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
}

// The bounds of the buckets are part of the interface: queries and stored series name them.
func TestBuckets(t *testing.T) {
	m, reg := newMetrics(t)
	use(t, m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			var bounds []float64
			for _, b := range h.GetBucket() {
				bounds = append(bounds, b.GetUpperBound())
			}
			got[f.GetName()] = strings.Trim(fmt.Sprint(bounds), "[]")
		}
	}
	const queue = "1e-08 1e-07 1e-06 9.999999999999999e-06 9.999999999999999e-05 0.001 0.01 0.1 1 10" // client-go's
	const ages = "0.1 0.5 1 5 15 60 300 900 3600 21600 86400 604800"
	want := map[string]string{
		"controller_reconcile_latency_seconds":         "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300 600 1800",
		"controller_reconcile_duration_seconds":        "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300",
		"controller_consistency_wait_duration_seconds": "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120",
		"controller_finalizer_step_duration_seconds":   "0.005 0.025 0.1 0.25 0.5 1 2.5 5 10 30 60 300",
		"controller_finalizer_blocked_age_seconds":     ages,
		"controller_finalizer_duration_seconds":        ages,
		"controller_leader_acquire_duration_seconds":   "0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30",
		"controller_leader_renewal_duration_seconds":   "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30",
		"workqueue_queue_duration_seconds":             queue,
		"workqueue_work_duration_seconds":              queue,
		"informer_processing_latency_seconds":          "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10",
		"reflector_list_duration_seconds":              "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60",
		"reflector_watch_duration_seconds":             "0.1 1 10 30 60 120 180 300 600 900",
		"rest_client_request_duration_seconds":         "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bounds of the buckets (-want +got):\n%s", diff)
	}
}

// TestReconcile tests that if a controller's Run starts, each of its results is exported as
// 0, so that rates include the first error.
func TestReconcile(t *testing.T) {
	m, reg := newMetrics(t)
	m.ReconcileWorkers("widgets", 3)
	header := "# HELP controller_reconcile_total Total number of reconciles by result.\n# TYPE controller_reconcile_total counter\n"
	line := func(result string, n int) string {
		return fmt.Sprintf("controller_reconcile_total{controller=\"widgets\",result=%q} %d\n", result, n)
	}
	all := func(n map[string]int) string {
		s := header
		for _, r := range []string{"success", "requeue", "conflict", "server_delay", "stale", "terminal", "not_found", "rejected", "forbidden", "timeout", "panic", "cancelled", "error"} {
			s += line(r, n[r])
		}
		return s
	}
	compare := func(want string, names ...string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	}
	compare(all(nil), "controller_reconcile_total") // all results are there before the first reconcile

	for range 3 {
		m.ReconcileStarted("widgets")
	}
	m.ReconcileFinished(t.Context(), "widgets", "conflict", 3*time.Second, -1)
	m.ReconcileFinished(t.Context(), "widgets", "no such result", 20*time.Millisecond, 5*time.Minute)
	compare(all(map[string]int{"conflict": 1, "error": 1}), "controller_reconcile_total")
	if n := testutil.CollectAndCount(reg, "controller_reconcile_latency_seconds"); n != 1 {
		t.Errorf("%d series of the latency, want 1", n)
	}
	_, body := scrape(t, m.Handler())
	for _, want := range []string{
		"controller_reconcile_latency_seconds_bucket{controller=\"widgets\",le=\"120\"} 0\n",
		"controller_reconcile_latency_seconds_bucket{controller=\"widgets\",le=\"300\"} 1\n",
		"controller_reconcile_latency_seconds_sum{controller=\"widgets\"} 300\n",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	m.ReconcileHeld("widgets")
	compare(`# HELP controller_reconcile_held_total Total number of times that a key was delayed because it ran too often.
# TYPE controller_reconcile_held_total counter
controller_reconcile_held_total{controller="widgets"} 1
`, "controller_reconcile_held_total")
	compare(`# HELP controller_active_workers Number of workers that are running a key.
# TYPE controller_active_workers gauge
controller_active_workers{controller="widgets"} 1
# HELP controller_workers Number of workers of the controller, 0 if it is not running.
# TYPE controller_workers gauge
controller_workers{controller="widgets"} 3
`, "controller_active_workers", "controller_workers")
	_, body = scrape(t, m.Handler())
	var durations []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "controller_reconcile_duration_seconds") && !strings.Contains(line, " 0\n") {
			durations = append(durations, strings.TrimPrefix(line, "controller_reconcile_duration_seconds"))
		}
	}
	var wantDurations []string
	for _, d := range []struct{ result, buckets, sum string }{
		{"conflict", "5 10 30 60 120 300 +Inf", "3"},
		{"error", "0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300 +Inf", "0.02"},
	} { // no series for the results that never came
		for le := range strings.FieldsSeq(d.buckets) {
			wantDurations = append(wantDurations, fmt.Sprintf("_bucket{controller=\"widgets\",result=%q,le=%q} 1\n", d.result, le))
		}
		wantDurations = append(wantDurations,
			fmt.Sprintf("_sum{controller=\"widgets\",result=%q} %s\n", d.result, d.sum),
			fmt.Sprintf("_count{controller=\"widgets\",result=%q} 1\n", d.result))
	}
	if diff := cmp.Diff(wantDurations, durations); diff != "" {
		t.Errorf("durations (-want +got):\n%s", diff)
	}

	m.ReconcileWorkers("widgets", 0)
	compare(`# HELP controller_workers Number of workers of the controller, 0 if it is not running.
# TYPE controller_workers gauge
controller_workers{controller="widgets"} 0
`, "controller_workers")
}

func TestLeader(t *testing.T) {
	m, reg := newMetrics(t)
	want := func(status, transitions, slow int) {
		t.Helper()
		err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`# HELP controller_leader_slow_renewals_total Total number of renewals of the Lease that came after half of the renew deadline.
# TYPE controller_leader_slow_renewals_total counter
controller_leader_slow_renewals_total{name="ns/widgets"} %d
# HELP controller_leader_transitions_total Total number of times that this process has acquired the Lease.
# TYPE controller_leader_transitions_total counter
controller_leader_transitions_total{name="ns/widgets"} %d
# HELP leader_election_master_status 1 if this process holds the Lease, otherwise 0.
# TYPE leader_election_master_status gauge
leader_election_master_status{name="ns/widgets"} %d
`, slow, transitions, status)), "controller_leader_slow_renewals_total", "controller_leader_transitions_total", "leader_election_master_status")
		if err != nil {
			t.Error(err)
		}
	}
	m.LeaderStatus("ns/widgets", false)
	want(0, 0, 0)
	m.LeaderTransition("ns/widgets", 30*time.Millisecond)
	m.LeaderStatus("ns/widgets", true)
	want(1, 1, 0)
	m.LeaderRenewal("ns/widgets", 3*time.Millisecond, false)
	m.LeaderRenewal("ns/widgets", 6*time.Second, true)
	want(1, 1, 1)
	m.LeaderStatus("ns/widgets", false)
	want(0, 1, 1)

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			sums[f.GetName()] = fmt.Sprintf("%d in %gs", h.GetSampleCount(), h.GetSampleSum())
		}
	}
	if diff := cmp.Diff(map[string]string{
		"controller_leader_acquire_duration_seconds": "1 in 0.03s",
		"controller_leader_renewal_duration_seconds": "2 in 6.003s",
	}, sums); diff != "" {
		t.Errorf("histograms (-want +got):\n%s", diff)
	}
}

// TestFinalizer: calls, what they came to, and what blocks for how long.
func TestFinalizer(t *testing.T) {
	m, reg := newMetrics(t)
	m.FinalizerStepStarted("example.com/f", "drain")
	m.FinalizerStepStarted("example.com/f", "drain")
	m.FinalizerStepEnded("example.com/f", "drain", "waiting", 2*time.Second)
	m.FinalizerBlocked("example.com/f", "drain", time.Hour)
	m.FinalizerFinished("example.com/f", 2*time.Hour)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := fmt.Sprint(s.GetGauge().GetValue())
			if h := s.GetHistogram(); h != nil {
				value = fmt.Sprintf("%d in %gs", h.GetSampleCount(), h.GetSampleSum())
			}
			got[f.GetName()] += strings.Join(labels, " ") + ": " + value
		}
	}
	if diff := cmp.Diff(map[string]string{
		"controller_finalizer_steps_running":         "example.com/f drain: 1",
		"controller_finalizer_step_duration_seconds": "example.com/f waiting drain: 1 in 2s",
		"controller_finalizer_blocked_age_seconds":   "example.com/f drain: 1 in 3600s",
		"controller_finalizer_duration_seconds":      "example.com/f: 1 in 7200s",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInformer: each call has its own series, and the time is now.
func TestInformer(t *testing.T) {
	m, reg := newMetrics(t)
	m.InformerListed("pods", 20*time.Millisecond)
	m.InformerWatched("pods", 5*time.Minute)
	m.InformerWatched("pods", 3*time.Minute)
	m.InformerReceived("pods")
	m.InformerLast("pods", func() time.Time { return time.Time{} })
	m.InformerLast("pods", func() time.Time { return time.Now().Add(-time.Hour) })
	m.InformerLast("services", nil)
	m.InformerLast("jobs", func() time.Time { return time.Time{} }) // has no data
	m.InformerHolds("pods", func() (objects, bytes int64) { return 1, 2 })
	m.InformerHolds("pods", func() (objects, bytes int64) { return 3, 4096 })
	m.InformerHolds("services", nil)
	m.InformerMutated("pods", 2)
	m.InformerMutated("pods", -1)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		s := f.GetMetric()[0]
		switch {
		case s.GetLabel()[0].GetValue() != "pods":
			t.Errorf("label %v, want pods", s.GetLabel())
		case s.GetHistogram() != nil:
			got[f.GetName()] = fmt.Sprintf("%d in %gs", s.GetHistogram().GetSampleCount(), s.GetHistogram().GetSampleSum())
		case s.GetCounter() != nil:
			got[f.GetName()] = fmt.Sprint(s.GetCounter().GetValue())
		case f.GetName() != "controller_informer_last_event_age_seconds":
			got[f.GetName()] = fmt.Sprint(s.GetGauge().GetValue())
		case s.GetGauge().GetValue() < 3600 || s.GetGauge().GetValue() > 3700:
			t.Errorf("%s = %v, want an hour", f.GetName(), s.GetGauge().GetValue())
		}
	}
	if diff := cmp.Diff(map[string]string{
		"controller_informer_mutations_total": "2",
		"reflector_lists_total":               "1",
		"reflector_list_duration_seconds":     "1 in 0.02s",
		"reflector_watches_total":             "2",
		"reflector_watch_duration_seconds":    "2 in 480s",
		"controller_informer_objects":         "3",
		"controller_informer_bytes":           "4096",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConsistency(t *testing.T) {
	m, reg := newMetrics(t)
	m.ConsistencyWaited(20*time.Millisecond, false)
	got := func() string {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, f := range families {
			for _, s := range f.GetMetric() {
				lines = append(lines, fmt.Sprintf("%s %d in %gs", s.GetLabel()[0].GetValue(), s.GetHistogram().GetSampleCount(), s.GetHistogram().GetSampleSum()))
			}
		}
		return strings.Join(lines, ", ")
	}
	if got, want := got(), "timeout 0 in 0s, visible 1 in 0.02s"; got != want {
		t.Errorf("after one wait: %s, want %s", got, want)
	}
	m.ConsistencyWaited(2*time.Minute, true)
	if got, want := got(), "timeout 1 in 120s, visible 1 in 0.02s"; got != want {
		t.Errorf("after a timeout: %s, want %s", got, want)
	}
}

// TestRegistry tests that a second New with a registry returns the same Metrics, and that a
// New that fails leaves the registry unchanged.
func TestRegistry(t *testing.T) {
	t.Run("nil", func(t *testing.T) {
		m, err := metrics.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		m.ReconcileHeld("c")
		code, body := scrape(t, m.Handler())
		for _, want := range []string{"\nprocess_start_time_seconds ", "\ngo_goroutines ", "controller_reconcile_held_total{controller=\"c\"} 1\n"} {
			if code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("the handler responds %d without %q", code, want)
			}
		}
		if other, err := metrics.New(nil); err != nil || other == m {
			t.Errorf("a second New(nil) = %p, %v, want one with a registry of its own", other, err)
		}
	})
	t.Run("handler", func(t *testing.T) {
		m, reg := newMetrics(t)
		m.ReconcileHeld("c")
		if code, body := scrape(t, m.Handler()); code != http.StatusOK || !strings.Contains(body, "controller_reconcile_held_total") {
			t.Errorf("the handler responds %d %q", code, body)
		}
		wrapped, err := metrics.New(prometheus.WrapRegistererWithPrefix("x_", reg))
		if err != nil {
			t.Fatal(err)
		}
		if code, body := scrape(t, wrapped.Handler()); code != http.StatusNotImplemented || !strings.Contains(body, "serve the registry that it wraps") {
			t.Errorf("the handler of a wrapped registry responds %d %q", code, body)
		}
	})
	t.Run("typed nil", func(t *testing.T) {
		want := "metrics: New got a nil *prometheus.Registry: pass a prometheus.Registerer, for example prometheus.NewRegistry()"
		var reg *prometheus.Registry
		if m, err := metrics.New(reg); m != nil || err == nil || err.Error() != want {
			t.Errorf("New() = %v, %v, want error %q", m, err, want)
		}
	})
	t.Run("a label that is one of ours", func(t *testing.T) {
		reg := prometheus.WrapRegistererWith(prometheus.Labels{"controller": "x"}, prometheus.NewPedanticRegistry())
		if _, err := metrics.New(reg); err == nil || !strings.Contains(err.Error(), "remove the label that the registry adds") {
			t.Errorf("New() = %v, want an error that says so", err)
		}
	})
	for _, tc := range []struct {
		name string
		wrap func(prometheus.Registerer) prometheus.Registerer
		want string
	}{
		{name: "twice", wrap: func(r prometheus.Registerer) prometheus.Registerer { return r }, want: "controller_active_workers"},
		{name: "twice, wrapped", wrap: func(r prometheus.Registerer) prometheus.Registerer {
			return prometheus.WrapRegistererWithPrefix("p_", r)
		}, want: "p_controller_active_workers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			a, err := metrics.New(tc.wrap(reg))
			if err != nil {
				t.Fatal(err)
			}
			b, err := metrics.New(tc.wrap(reg))
			if err != nil {
				t.Fatalf("second New() = %v, want the same collectors", err)
			}
			a.ReconcileStarted("x")
			b.ReconcileStarted("x")
			b.ReconcileStarted("y")
			if got, err := testutil.GatherAndCount(reg, tc.want); err != nil || got != 2 {
				t.Errorf("%d series, %v; want 2, shared", got, err)
			}
			families, _ := reg.Gather()
			for _, f := range families {
				if f.GetName() == tc.want && f.GetMetric()[0].GetGauge().GetValue() != 2 {
					t.Errorf("x has %v active workers, want 2 together", f.GetMetric()[0].GetGauge().GetValue())
				}
			}
		})
	}
	t.Run("somebody else's family", func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		theirs := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth", Help: "theirs"}, []string{"name", "controller", "priority"})
		reg.MustRegister(theirs)
		m, err := metrics.New(reg)
		if m != nil || err == nil || !strings.HasPrefix(err.Error(), "metrics: ") || !strings.Contains(err.Error(), "workqueue_depth") {
			t.Fatalf("New() = %v, %v, want an error that names workqueue_depth", m, err)
		}
		// Nothing of ours may be left: the other families must be free again.
		reg.Unregister(theirs)
		for _, name := range []string{"controller_reconcile_total", "controller_active_workers"} {
			if err := reg.Register(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "Total number of reconciles by result."}, []string{"controller", "result"})); errors.As(err, new(prometheus.AlreadyRegisteredError)) {
				t.Errorf("%s is still registered after New failed", name)
			}
		}
	})
	t.Run("same descriptor, other kind", func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_workers", Help: "Number of workers of the controller, 0 if it is not running."}, []string{"controller"}))
		if _, err := metrics.New(reg); err == nil || !strings.Contains(err.Error(), `"controller_workers"`) {
			t.Errorf("New() = %v, want an error, as a counter cannot be a gauge", err)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	m, reg := newMetrics(t)
	var wg sync.WaitGroup
	const workers, each = 8, 500
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				name := fmt.Sprint("c", (i+w)%20)
				m.ReconcileWorkers(name, workers)
				m.ReconcileStarted(name)
				m.ReconcileFinished(t.Context(), name, "success", time.Millisecond, time.Second)
				m.LeaderStatus(name, i%2 == 0)
				m.NewDepthMetric(name).Inc()
				m.ForgetQueue(name)
				_, _ = m.Transport(status(200)).RoundTrip(request("GET", "https://api/x"))
			}
		})
	}
	wg.Wait()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		sum := 0.0
		for _, x := range f.GetMetric() {
			sum += x.GetGauge().GetValue() + x.GetCounter().GetValue()
		}
		switch f.GetName() {
		case "controller_reconcile_total", "rest_client_requests_total":
			if sum != workers*each {
				t.Errorf("%s sums up to %v, want %d", f.GetName(), sum, workers*each)
			}
		case "controller_active_workers":
			if sum != 0 {
				t.Errorf("active workers sum up to %v when none is, want 0", sum)
			}
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	m, _ := newMetrics(t)
	m.Exemplar = labelsOf // none for this context
	m.ReconcileWorkers("widgets", 1)
	for _, result := range []string{"success", "conflict", "unknown"} {
		if n := testing.AllocsPerRun(1000, func() {
			m.ReconcileStarted("widgets")
			m.ReconcileFinished(t.Context(), "widgets", result, time.Millisecond, time.Second)
			m.ReconcileKeys("widgets", 1, 0)
			m.ReconcileWrote("widgets", "apply", false)
		}); n != 0 {
			t.Errorf("a reconcile with result %q allocates %v times, want 0", result, n)
		}
	}
	depth, latency := m.NewDepthMetric("q"), m.NewLatencyMetric("q")
	if n := testing.AllocsPerRun(1000, func() { depth.Inc(); latency.Observe(1); depth.Dec() }); n != 0 {
		t.Errorf("a queue operation allocates %v times, want 0", n)
	}
}

func scrape(t *testing.T, h http.Handler) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	return w.Code, w.Body.String()
}
