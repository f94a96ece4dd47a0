package metrics_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/metrics"
)

var randomNames = flag.Int("names", 20_000, "random names for each metric in TestSeriesDoNotGrowWithNames")

// TestSeriesDoNotGrowWithResults proves M1.
func TestSeriesDoNotGrowWithResults(t *testing.T) {
	m, reg := newMetrics(t)
	use(t, m)
	before := series(t, reg)
	r := rand.New(rand.NewPCG(1, 2))
	rt := m.Transport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: r.IntN(1000) + 1000, Body: http.NoBody}, nil
	}))
	n := 5 * *randomNames
	for range n {
		s := randomString(r)
		m.ReconcileStarted("c")
		m.ReconcileFinished(t.Context(), "c", s, time.Second, -1)
		m.FinalizerStepStarted("example.com/f", "step")
		m.FinalizerStepEnded("example.com/f", "step", s, time.Second)
		req := request("GET", "https://api/x")
		req.Method = "X" + s
		if _, err := rt.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	// New are only: requests with code other and method other, their duration, steps
	// that failed, and the duration of errors.
	if got, want := series(t, reg), before+4; got != want {
		t.Errorf("%d series after %d random results, methods and codes, want %d", got, n, want)
	}
	want := fmt.Sprintf(`# HELP rest_client_requests_total Total number of requests to an API server, by status code, or <error> without a response.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="api",method="GET"} 1
rest_client_requests_total{code="other",host="api",method="other"} %d
`, n)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rest_client_requests_total"); err != nil {
		t.Error(err)
	}
}

// TestSeriesDoNotGrowWithNames proves M1.
func TestSeriesDoNotGrowWithNames(t *testing.T) {
	m, reg := newMetrics(t)
	r := rand.New(rand.NewPCG(3, 4))
	for range *randomNames {
		name := randomString(r)
		useName(t, m, name)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, f := range families {
		counts[f.GetName()] = len(f.GetMetric())
	}
	for name, limit := range map[string]int{
		"controller_reconcile_held_total":             101,
		"controller_active_workers":                   101,
		"leader_election_master_status":               101,
		"controller_leader_transitions_total":         101,
		"controller_leader_slow_renewals_total":       101,
		"controller_leader_acquire_duration_seconds":  101,
		"controller_leader_renewal_duration_seconds":  101,
		"controller_finalizer_steps_running":          101,
		"controller_finalizer_step_duration_seconds":  101,
		"controller_finalizer_blocked_age_seconds":    101,
		"controller_finalizer_duration_seconds":       101,
		"controller_finalizer_blocked_objects":        101,
		"controller_finalizer_blocked_oldest_seconds": 101,
		"controller_keys":                             202,
		"controller_failing_keys":                     1010,
		"controller_objects":                          101,
		"controller_leader_seen":                      101,
		"controller_object_conditions":                101,
		"controller_not_ready_objects":                101,
		"informer_queued_items":                       101,
		"informer_processing_latency_seconds":         101,
		"informer_store_resource_version":             101,
		"controller_not_ready_oldest_seconds":         101,
		"controller_paused_objects":                   101,
		"controller_writes_total":                     404,
		"controller_reconcile_duration_seconds":       101,
		"controller_leader_absent_seconds_total":      101,
		"controller_shards_owned":                     101,
		"controller_shards_began_total":               101,
		"controller_shards_ownerless":                 101,
		"controller_shards_ownerless_seconds_total":   101,
		"controller_shards_surplus":                   101,
		"controller_shutdown_duration_seconds":        101,
		"controller_migration_objects":                202,
		"controller_migration_complete":               101,
		"controller_events_total":                     1,
		"workqueue_depth":                             101,
		"workqueue_adds_total":                        101,
		"rest_client_requests_total":                  102, // 100, other, and none for an empty host
		"reflector_lists_total":                       101,
		"reflector_list_duration_seconds":             101,
		"reflector_watches_total":                     101,
		"reflector_watch_duration_seconds":            101,
		"controller_informer_last_event_age_seconds":  101,
		"controller_informer_objects":                 101,
		"controller_informer_bytes":                   101,
		"controller_informer_mutations_total":         101,
		"controller_informer_served":                  101,
		"controller_mistakes_total":                   101,
	} {
		if got := counts[name]; got > limit || got < limit*9/10 {
			t.Errorf("%s has %d series after %d random names, want about %d and not more", name, got, *randomNames, limit)
		}
	}
}

// useName calls each method with the name.
func useName(t *testing.T, m *metrics.Metrics, name string) {
	t.Helper()
	m.ReconcileStarted(name)
	m.ReconcileFinished(t.Context(), name, "success", time.Second, time.Second)
	m.LeaderStatus(name, true)
	m.LeaderSeen(name, true)
	m.LeaderTransition(name, time.Second)
	m.LeaderRenewal(name, time.Second, true)
	m.InformerListed(name, time.Second)
	m.InformerWatched(name, time.Second)
	m.InformerReceived(name)
	m.InformerLast(name, time.Now)
	m.InformerMutated(name, 1)
	m.InformerServed(name, true)
	m.Mistakes(name, 1)
	m.InformerHolds(name, func() (objects, bytes int64) { return 1, 2 })
	m.FinalizerStepStarted(name, name)
	m.FinalizerStepEnded(name, name, "done", time.Second)
	m.FinalizerBlocked(name, name, time.Second)
	m.FinalizerFinished(name, time.Second)
	m.FinalizerObject(name, types.UID(name), []string{name}, time.Second, time.Second)
	m.ReconcileKeys(name, 1, 1)
	m.ReconcileFailing(name, "rejected", 1)
	m.ReconcileObjects(name, func() int64 { return 1 })
	m.FleetObjects(name, func(yield func(condition, status, reason string, objects int)) { yield("Ready", name, name, 1) }, func() (int, time.Time) { return 0, time.Time{} })
	m.InformerQueue(name, name, name, name).Set(1)
	m.InformerLatency(name, name, name, name).Observe(1)
	m.InformerVersion(name, name, name, name).Set(1)
	m.FleetPaused(name, func() int { return 1 })
	m.ReconcileWrote(name, "apply", true)
	m.LeaderAbsent(name, time.Second)
	m.ShardsOwned(name, 2, 1)
	m.ShardsOwnerless(name, 1, time.Second)
	m.ShardsSurplus(name, 1)
	m.EventsRecorded(name, 1)
	m.PartStopped(name, time.Second, false)
	m.MigrationProgress(name, 3, 1, true)
	use := m.NewDepthMetric(name)
	use.Inc()
	m.NewAddsMetric(name).Inc()
	m.NewRetriesMetric(name).Inc()
	m.NewLatencyMetric(name).Observe(1)
	m.NewWorkDurationMetric(name).Observe(1)
	m.NewUnfinishedWorkSecondsMetric(name).Set(1)
	m.NewLongestRunningProcessorSecondsMetric(name).Set(1)
	req := request("GET", "https://api/x")
	req.URL.Host = name
	if _, err := m.Transport(status(200)).RoundTrip(req); err != nil {
		t.Fatal(err)
	}
}

// TestSeriesOfAScrape holds the sizes in the documentation of Metrics: of a scrape with all
// names, results, methods and codes, and of one of ten controllers that have run for a while.
//
// Proves M1.
func TestSeriesOfAScrape(t *testing.T) {
	methods := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"}
	results := controllerkit.Results()
	var codes []int
	for code := range 1000 {
		codes = append(codes, code)
	}
	stepResults := []string{"done", "waiting", "failed", "timed_out", "gave_up"}
	for _, tt := range []struct {
		name    string
		names   int
		hosts   int
		results []string
		steps   []string
		methods []string
		codes   []int
		lines   int
		bytes   int
	}{
		{"all", 300, 120, results[:], stepResults, methods, codes, 93_000, 8 << 20},
		{"ten controllers", 10, 1, results[:4], stepResults[:2], methods[:5], []int{200, 101, 404, 409}, 3_500, 400 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, reg := newMetrics(t)
			for host := range tt.hosts {
				for _, code := range tt.codes {
					for _, method := range tt.methods {
						req := request(method, fmt.Sprintf("https://controller-%d/x", host))
						if _, err := m.Transport(status(code)).RoundTrip(req); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			for i := range tt.names {
				name := fmt.Sprintf("controller-%d", i)
				useName(t, m, name)
				for _, result := range tt.results {
					m.ReconcileStarted(name)
					m.ReconcileFinished(t.Context(), name, result, time.Second, time.Second)
					m.ReconcileFailing(name, result, 1)
				}
				for _, result := range tt.steps {
					m.FinalizerStepStarted(name, name)
					m.FinalizerStepEnded(name, name, result, time.Second)
				}
			}
			w := httptest.NewRecorder()
			promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			lines := 0
			for line := range strings.Lines(w.Body.String()) {
				if !strings.HasPrefix(line, "#") {
					lines++
				}
			}
			t.Logf("%d lines, %d bytes", lines, w.Body.Len())
			if lines > tt.lines || w.Body.Len() > tt.bytes || lines < tt.lines*3/4 {
				t.Errorf("a scrape has %d lines and %d bytes, want about %d and at most %d", lines, w.Body.Len(), tt.lines, tt.bytes)
			}
		})
	}
}

// All calls of New with one registry return the same Metrics, with one bound.
//
// Proves M1.
func TestMetricsOfOneRegistryShareTheBounds(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for i := range 30 {
		m, err := metrics.New(reg)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 100 {
			name := fmt.Sprint(i, "-", j)
			m.ReconcileStarted(name)
			m.LeaderStatus(name, true)
			m.NewDepthMetric(name)
			m.FinalizerStepStarted(name, "step")
		}
	}
	for _, family := range []string{"controller_active_workers", "leader_election_master_status", "workqueue_depth", "controller_finalizer_steps_running"} {
		if got, err := testutil.GatherAndCount(reg, family); err != nil || got != 101 {
			t.Errorf("%s has %d series, %v; want 100 and other", family, got, err)
		}
	}
}

// Names of a mebibyte differ only at their end, and names hold what a terminal obeys.
//
// Proves M1.
func TestHostileNames(t *testing.T) {
	m, reg := newMetrics(t)
	long := strings.Repeat("é", 1<<19)
	names := []string{"\x1b[2J\r\nroot", "a\xffb", "a\xfeb", "a\ufffdb", strings.Repeat("x", 128), strings.Repeat("x", 129), long + "a", long + "b"}
	for _, name := range names {
		m.ReconcileStarted(name)
		m.ReconcileFinished(t.Context(), name, "success", time.Second, time.Second)
		m.LeaderStatus(name, true)
		m.FinalizerStepStarted(name, name)
		m.FinalizerFinished(name, time.Second)
		m.FinalizerObject(name, types.UID(name), []string{name}, time.Second, time.Second)
		m.ReconcileKeys(name, 1, 1)
		m.LeaderAbsent(name, time.Second)
		m.ShardsOwned(name, 2, 1)
		m.ShardsOwnerless(name, 1, time.Second)
		m.ShardsSurplus(name, 1)
		m.PartStopped(name, time.Second, true)
		m.NewAddsMetric(name).Inc()
		m.NewDepthMetric(name).Inc()
		req := request("GET", "https://api/x")
		req.URL.Host = name
		if _, err := m.Transport(status(200)).RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]map[string]bool{}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			for _, label := range series.GetLabel() {
				v := label.GetValue()
				if len(v) > 128 || strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s: %s has %d bytes: %.200q", f.GetName(), label.GetName(), len(v), v)
				}
				if values[f.GetName()] == nil {
					values[f.GetName()] = map[string]bool{}
				}
				values[f.GetName()][v] = true
			}
		}
	}
	for _, family := range []string{"controller_active_workers", "leader_election_master_status", "workqueue_depth", "workqueue_adds_total", "controller_finalizer_steps_running", "controller_finalizer_duration_seconds", "controller_finalizer_blocked_objects", "controller_leader_absent_seconds_total", "controller_shards_owned", "controller_shards_ownerless", "controller_shards_surplus"} {
		if got := len(values[family]); got != len(names) {
			t.Errorf("%s has %d names, want one for each of %d", family, got, len(names))
		}
	}
	if !values["controller_active_workers"][names[4]] {
		t.Error("a name of 128 bytes was changed")
	}
	// A queue that is forgotten is found by its whole name.
	m.ForgetQueue(long + "a")
	if got, err := testutil.GatherAndCount(reg, "workqueue_depth"); err != nil || got != len(names)-1 {
		t.Errorf("workqueue_depth has %d series, %v; want %d after ForgetQueue", got, err, len(names)-1)
	}
}
