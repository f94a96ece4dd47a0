package metrics_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/metrics"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// The interfaces as the packages reconcile and leader declare them.
type (
	reconcileMetrics interface {
		ReconcileWorkers(controller string, workers int)
		ReconcileStarted(controller string)
		ReconcileFinished(controller, result string, d time.Duration)
		ReconcileHeld(controller string)
	}
	leaderMetrics interface {
		LeaderStatus(name string, leading bool)
		LeaderTransition(name string, took time.Duration)
		LeaderRenewal(name string, took time.Duration, slow bool)
	}
)

var (
	_ reconcileMetrics          = (*metrics.Metrics)(nil)
	_ leaderMetrics             = (*metrics.Metrics)(nil)
	_ workqueue.MetricsProvider = (*metrics.Metrics)(nil)
	_ transport.WrapperFunc     = (*metrics.Metrics)(nil).Transport
	_                           = (*rest.Config).Wrap
)

func newMetrics(t testing.TB) (*metrics.Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	return m, reg
}

// use touches every family once.
func use(t testing.TB, m *metrics.Metrics) {
	t.Helper()
	m.ReconcileWorkers("c", 2)
	m.LeaderStatus("ns/lease", true)
	m.LeaderTransition("ns/lease", time.Second)
	m.LeaderRenewal("ns/lease", time.Second, true)
	m.ConsistencyWaited(time.Second, false)
	m.FinalizerStepStarted("example.com/f", "step")
	m.FinalizerStepEnded("example.com/f", "step", "done", time.Second)
	m.FinalizerBlocked("example.com/f", "step", time.Second)
	m.FinalizerFinished("example.com/f", time.Second)
	m.NewDepthMetric("q").Inc()
	m.NewAddsMetric("q").Inc()
	m.NewRetriesMetric("q").Inc()
	m.NewLatencyMetric("q").Observe(1)
	m.NewWorkDurationMetric("q").Observe(1)
	m.NewUnfinishedWorkSecondsMetric("q").Set(1)
	m.NewLongestRunningProcessorSecondsMetric("q").Set(1)
	if _, err := m.Transport(status(200)).RoundTrip(request("GET", "https://api/x")); err != nil {
		t.Fatal(err)
	}
}

// TestNamesAndLabels proves M4.
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
		"controller_reconcile_duration_seconds":        "histogram controller",
		"controller_reconcile_held_total":              "counter controller",
		"controller_active_workers":                    "gauge controller",
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

// TestReconcile proves M2.
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
	m.ReconcileFinished("widgets", "conflict", 3*time.Second)
	m.ReconcileFinished("widgets", "no such result", 20*time.Millisecond)
	compare(all(map[string]int{"conflict": 1, "error": 1}), "controller_reconcile_total")
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
	compare(`# HELP controller_reconcile_duration_seconds Duration of a reconcile in seconds.
# TYPE controller_reconcile_duration_seconds histogram
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.005"} 0
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.01"} 0
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.025"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.05"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.1"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.25"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="0.5"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="1"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="2.5"} 1
controller_reconcile_duration_seconds_bucket{controller="widgets",le="5"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="10"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="30"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="60"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="120"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="300"} 2
controller_reconcile_duration_seconds_bucket{controller="widgets",le="+Inf"} 2
controller_reconcile_duration_seconds_sum{controller="widgets"} 3.02
controller_reconcile_duration_seconds_count{controller="widgets"} 2
`, "controller_reconcile_duration_seconds")

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

// TestRegistry proves M1.
func TestRegistry(t *testing.T) {
	t.Run("nil", func(t *testing.T) {
		want := "metrics: New got nil: pass a prometheus.Registerer, for example prometheus.NewRegistry()"
		if m, err := metrics.New(nil); m != nil || err == nil || err.Error() != want {
			t.Errorf("New(nil) = %v, %v, want error %q", m, err, want)
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

func series(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	n, err := testutil.GatherAndCount(reg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSeriesDoNotGrowWithResults proves M3.
func TestSeriesDoNotGrowWithResults(t *testing.T) {
	m, reg := newMetrics(t)
	use(t, m)
	before := series(t, reg)
	r := rand.New(rand.NewPCG(1, 2))
	rt := m.Transport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: r.IntN(1000) + 1000, Body: http.NoBody}, nil
	}))
	const n = 100_000
	for range n {
		s := randomString(r)
		m.ReconcileStarted("c")
		m.ReconcileFinished("c", s, time.Second)
		m.FinalizerStepStarted("example.com/f", "step")
		m.FinalizerStepEnded("example.com/f", "step", s, time.Second)
		req := request("GET", "https://api/x")
		req.Method = "X" + s
		if _, err := rt.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	// New are only: requests with code other and method other, their duration, and
	// steps that failed.
	if got, want := series(t, reg), before+3; got != want {
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

// TestSeriesDoNotGrowWithNames proves M3.
func TestSeriesDoNotGrowWithNames(t *testing.T) {
	m, reg := newMetrics(t)
	r := rand.New(rand.NewPCG(3, 4))
	const n = 20_000
	for range n {
		name := randomString(r)
		m.ReconcileStarted(name)
		m.ReconcileFinished(name, "success", time.Second)
		m.LeaderStatus(name, true)
		m.LeaderTransition(name, time.Second)
		m.LeaderRenewal(name, time.Second, true)
		m.FinalizerStepStarted(name, name)
		m.FinalizerStepEnded(name, name, "done", time.Second)
		m.FinalizerBlocked(name, name, time.Second)
		m.FinalizerFinished(name, time.Second)
		use := m.NewDepthMetric(name)
		use.Inc()
		m.NewAddsMetric(name).Inc()
		req := request("GET", "https://api/x")
		req.URL.Host = name
		if _, err := m.Transport(status(200)).RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	for name, limit := range map[string]int{
		"controller_reconcile_held_total":            1001,
		"controller_active_workers":                  1001,
		"leader_election_master_status":              1001,
		"controller_leader_renewal_duration_seconds": 1001,
		"controller_finalizer_steps_running":         1001,
		"controller_finalizer_step_duration_seconds": 1001,
		"controller_finalizer_blocked_age_seconds":   1001,
		"controller_finalizer_duration_seconds":      1001,
		"workqueue_depth":                            1001,
		"workqueue_adds_total":                       1001,
		"rest_client_requests_total":                 102, // 100, other, and none for an empty host
	} {
		if got, err := testutil.GatherAndCount(reg, name); err != nil || got > limit || got < limit*9/10 {
			t.Errorf("%s has %d series (%v) after %d random names, want about %d and not more", name, got, err, n, limit)
		}
	}
}

// All calls of New with one registry return the same Metrics, with one bound.
//
// Proves M3.
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
		if got, err := testutil.GatherAndCount(reg, family); err != nil || got != 1001 {
			t.Errorf("%s has %d series, %v; want 1000 and other", family, got, err)
		}
	}
}

// Names of a mebibyte differ only at their end, and names hold what a terminal obeys.
//
// Proves M3.
func TestHostileNames(t *testing.T) {
	m, reg := newMetrics(t)
	long := strings.Repeat("é", 1<<19)
	names := []string{"\x1b[2J\r\nroot", "a\xffb", "a\xfeb", "a\ufffdb", strings.Repeat("x", 128), strings.Repeat("x", 129), long + "a", long + "b"}
	for _, name := range names {
		m.ReconcileStarted(name)
		m.ReconcileFinished(name, "success", time.Second)
		m.LeaderStatus(name, true)
		m.FinalizerStepStarted(name, name)
		m.FinalizerFinished(name, time.Second)
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
	for _, family := range []string{"controller_active_workers", "leader_election_master_status", "workqueue_depth", "workqueue_adds_total", "controller_finalizer_steps_running", "controller_finalizer_duration_seconds"} {
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

// randomString holds bytes that no label may have.
func randomString(r *rand.Rand) string {
	b := make([]byte, 1+r.IntN(20))
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return string(b)
}

// TestRequestLabels proves M3, M4.
func TestRequestLabels(t *testing.T) {
	for _, tc := range []struct {
		name     string
		req      *http.Request
		resp     roundTripper
		want     string // the requests series
		duration bool
	}{
		{name: "get", req: request("GET", "https://api:6443/api/v1/pods?limit=1"), resp: status(200), want: `code="200",host="api:6443",method="GET"`, duration: true},
		{name: "no method means GET", req: request("", "https://api/x"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "apply", req: request("PATCH", "https://api/x"), resp: status(409), want: `code="409",host="api",method="PATCH"`, duration: true},
		{name: "unknown method", req: request("PROPFIND", "https://api/x"), resp: status(405), want: `code="405",host="api",method="other"`, duration: true},
		{name: "no answer", req: request("DELETE", "https://api/x"), resp: func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") },
			want: `code="<error>",host="api",method="DELETE"`, duration: true},
		{name: "credentials in the URL", req: request("GET", "https://user:secret@api/x"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "credentials in the host", req: &http.Request{Method: "GET", URL: &url.URL{Scheme: "https", Host: "user:secret@api"}}, resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "no host", req: &http.Request{Method: "GET", URL: &url.URL{Path: "/"}}, resp: status(200), want: `code="200",host="none",method="GET"`, duration: true},
		{name: "watch", req: request("GET", "https://api/api/v1/pods?watch=true"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "watch among others", req: request("GET", "https://api/api/v1/pods?resourceVersion=1&watch=1"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "watch without a value", req: request("GET", "https://api/api/v1/pods?watch"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "no watch", req: request("GET", "https://api/api/v1/pods?limit=1&watch=False"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "no watch, as a number", req: request("GET", "https://api/api/v1/pods?watch=0"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "neither answer nor error", req: request("GET", "https://api/x"), resp: func(*http.Request) (*http.Response, error) { return nil, nil },
			want: `code="<error>",host="api",method="GET"`, duration: true},
		{name: "a label named watch", req: request("GET", "https://api/api/v1/pods?labelSelector=watch%3Dyes"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, reg := newMetrics(t)
			wantResp, wantErr := tc.resp(tc.req)
			resp, err := m.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
				if r != tc.req {
					t.Error("the request was copied or replaced, want it passed on untouched")
				}
				return wantResp, wantErr
			})).RoundTrip(tc.req)
			if resp != wantResp || err != wantErr {
				t.Errorf("RoundTrip() = %v, %v, want what the next one gave", resp, err)
			}
			want := `# HELP rest_client_requests_total Total number of requests to an API server, by status code, or <error> without a response.
# TYPE rest_client_requests_total counter
rest_client_requests_total{` + tc.want + "} 1\n"
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rest_client_requests_total"); err != nil {
				t.Error(err)
			}
			n, err := testutil.GatherAndCount(reg, "rest_client_request_duration_seconds")
			if err != nil || (n == 1) != tc.duration {
				t.Errorf("%d duration series, %v; want one: %v", n, err, tc.duration)
			}
		})
	}
}

func TestTransportCanBeUnwrapped(t *testing.T) {
	m, _ := newMetrics(t)
	base := &http.Transport{}
	u, ok := m.Transport(base).(interface{ WrappedRoundTripper() http.RoundTripper })
	if !ok || u.WrappedRoundTripper() != base {
		t.Error("WrappedRoundTripper does not give the transport below, which exec and port-forward need")
	}
	u = m.Transport(nil).(interface{ WrappedRoundTripper() http.RoundTripper })
	if u.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("Transport(nil) does not use http.DefaultTransport")
	}
}

// TestIdleConnectionsCanBeClosed: http.Client looks for the method on its
// transport only.
func TestIdleConnectionsCanBeClosed(t *testing.T) {
	m, _ := newMetrics(t)
	base := &closer{roundTripper: status(200)}
	client := &http.Client{Transport: m.Transport(base)}
	client.CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("the transport below was told %d times to close idle connections, want once", base.closed)
	}
	client = &http.Client{Transport: m.Transport(status(200))} // has no such method
	client.CloseIdleConnections()
}

type closer struct {
	roundTripper
	closed int
}

func (c *closer) CloseIdleConnections() { c.closed++ }

// TestQueuesWithoutANameOfTheirOwn: they share gauges, which neither a new one
// nor ForgetQueue takes from the others; and forgetting takes no name.
//
// Proves M3.
func TestQueuesWithoutANameOfTheirOwn(t *testing.T) {
	m, reg := newMetrics(t)
	depth := func(name string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				if f.GetName() == "workqueue_depth" && x.GetLabel()[0].GetValue() == name {
					return x.GetGauge().GetValue()
				}
			}
		}
		return -1
	}
	for i := range 1000 {
		m.ForgetQueue(fmt.Sprint("never made ", i))
	}
	for i := range 1000 {
		m.NewDepthMetric(fmt.Sprint("q", i)).Inc()
	}
	if got := depth("q999"); got != 1 {
		t.Errorf("depth of the 1000th queue = %v, want 1: it has a name of its own", got)
	}
	m.NewDepthMetric("x").Inc()
	m.NewDepthMetric("y").Inc()
	if got := depth("other"); got != 2 {
		t.Errorf("depth of the 1001st and 1002nd together = %v, want 2", got)
	}
	m.ForgetQueue("x")
	if got := depth("other"); got != 2 {
		t.Errorf("depth of others = %v after ForgetQueue of one of them, want 2", got)
	}
	m.ForgetQueue("q0")
	if got := depth("q0"); got != -1 {
		t.Errorf("depth of q0 = %v after ForgetQueue, want no series", got)
	}
}

// TestQueueOfClientGo proves M5.
func TestQueueOfClientGo(t *testing.T) {
	m, reg := newMetrics(t)
	newQueue := func() workqueue.TypedRateLimitingInterface[string] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Millisecond, time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "widgets", MetricsProvider: m})
	}
	value := func(name string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				if len(f.GetMetric()) != 1 {
					t.Errorf("%s has %d series, want 1", name, len(f.GetMetric()))
				}
				x := f.GetMetric()[0]
				return x.GetGauge().GetValue() + x.GetCounter().GetValue() + float64(x.GetHistogram().GetSampleCount())
			}
		}
		return -1
	}
	q := newQueue()
	q.Add("a")
	q.Add("a")
	q.Add("b")
	q.AddRateLimited("c")
	k, _ := q.Get()
	q.Done(k)
	for name, want := range map[string]float64{
		"workqueue_adds_total":             2,
		"workqueue_retries_total":          1,
		"workqueue_queue_duration_seconds": 1,
		"workqueue_work_duration_seconds":  1,
	} {
		if got := value(name); got < want { // c may have become ready meanwhile
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := value("workqueue_depth"); got < 1 {
		t.Errorf("depth = %v, want b in it", got)
	}

	// The queue is shut down with keys in it: client-go leaves the gauge as it is.
	q.ShutDown()
	next := newQueue()
	defer next.ShutDown()
	if got := value("workqueue_depth"); got != 0 {
		t.Errorf("depth = %v after a new queue was made under the name, want 0", got)
	}
	for {
		k, down := q.Get() // the old queue's keys, still handed out
		if down {
			break
		}
		q.Done(k)
	}
	if got := value("workqueue_depth"); got != 0 {
		t.Errorf("depth = %v, the old queue still counts", got)
	}
	next.Add("x")
	if got := value("workqueue_depth"); got != 1 {
		t.Errorf("depth = %v, want 1", got)
	}
	m.ForgetQueue("widgets")
	for _, name := range []string{"workqueue_depth", "workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"} {
		if got := value(name); got != -1 {
			t.Errorf("%s = %v after ForgetQueue, want no series", name, got)
		}
	}
	if got := value("workqueue_adds_total"); got < 3 {
		t.Errorf("adds = %v after ForgetQueue, want the counter to stay", got)
	}
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
				m.ReconcileFinished(name, "success", time.Millisecond)
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

// TestHotPathDoesNotAllocate proves M6.
func TestHotPathDoesNotAllocate(t *testing.T) {
	m, _ := newMetrics(t)
	m.ReconcileWorkers("widgets", 1)
	for _, result := range []string{"success", "conflict", "unknown"} {
		if n := testing.AllocsPerRun(1000, func() {
			m.ReconcileStarted("widgets")
			m.ReconcileFinished("widgets", result, time.Millisecond)
		}); n != 0 {
			t.Errorf("a reconcile with result %q allocates %v times, want 0", result, n)
		}
	}
	depth, latency := m.NewDepthMetric("q"), m.NewLatencyMetric("q")
	if n := testing.AllocsPerRun(1000, func() { depth.Inc(); latency.Observe(1); depth.Dec() }); n != 0 {
		t.Errorf("a queue operation allocates %v times, want 0", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func status(code int) roundTripper {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Body: http.NoBody}, nil
	}
}

func request(method, target string) *http.Request {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return &http.Request{Method: method, URL: u}
}
