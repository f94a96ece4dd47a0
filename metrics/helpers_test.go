package metrics_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/metrics"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// The interfaces as the packages reconcile, leader and shard declare them.
type (
	reconcileMetrics interface {
		ReconcileWorkers(controller string, workers int)
		ReconcileStarted(controller string)
		ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration)
		ReconcileHeld(controller string)
		ReconcileKeys(controller string, waiting, parked int)
		ReconcileFailing(controller, result string, keys int)
		ReconcileWrote(controller, kind string, sent bool)
	}
	leaderMetrics interface {
		LeaderStatus(name string, leading bool)
		LeaderSeen(name string, seen bool)
		LeaderTransition(name string, took time.Duration)
		LeaderRenewal(name string, took time.Duration, slow bool)
		LeaderAbsent(name string, d time.Duration)
	}
	shardMetrics interface {
		ShardsOwned(name string, owned, began int)
		ShardsOwnerless(name string, shards int, total time.Duration)
		ShardsSurplus(name string, shards int)
	}
)

var (
	_ reconcileMetrics          = (*metrics.Metrics)(nil)
	_ leaderMetrics             = (*metrics.Metrics)(nil)
	_ shardMetrics              = (*metrics.Metrics)(nil)
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
	m.ReconcileStarted("c")
	m.ReconcileFinished(t.Context(), "c", "success", time.Second, time.Second)
	m.ReconcileFailing("c", "rejected", 1)
	m.ReconcileObjects("c", func() int64 { return 10 })
	m.FleetObjects("websites.example.com", func(yield func(condition, status, reason string, objects int)) { yield("Ready", "True", "Ready", 3) }, func() (int, time.Time) { return 1, time.Now().Add(-time.Minute) })
	m.InformerQueue("widgets", "", "v1", "pods").Set(1)
	m.InformerLatency("widgets", "", "v1", "pods").Observe(0.001)
	m.InformerVersion("widgets", "", "v1", "pods").Set(42)
	m.FleetPaused("websites.example.com", func() int { return 2 })
	m.EventsRecorded("written", 1)
	m.PartStopped("informers", time.Second, false)
	m.MigrationProgress("websites.example.com", 3, 1, false)
	m.FinalizerObject("example.com/f", "uid", []string{"step"}, time.Second, time.Second)
	m.LeaderStatus("ns/lease", true)
	m.LeaderSeen("ns/lease", true)
	m.LeaderTransition("ns/lease", time.Second)
	m.LeaderRenewal("ns/lease", time.Second, true)
	m.ShardsOwned("ns/group", 2, 1)
	m.ShardsOwnerless("ns/group", 1, time.Second)
	m.ShardsSurplus("ns/group", 1)
	m.ConsistencyWaited(time.Second, false)
	m.InformerListed("pods", time.Second)
	m.InformerWatched("pods", time.Second)
	m.InformerLast("pods", time.Now)
	m.InformerMutated("pods", 0)
	m.InformerServed("pods", true)
	m.Mistakes("changing_child", 1)
	m.InformerMalformed("pods", func() int { return 1 })
	m.InformerHolds("pods", func() (objects, bytes int64) { return 3, 4096 })
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

func series(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	n, err := testutil.GatherAndCount(reg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// randomString holds bytes that no label may have.
func randomString(r *rand.Rand) string {
	b := make([]byte, 1+r.IntN(20))
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return string(b)
}

type closer struct {
	roundTripper
	closed int
}

func (c *closer) CloseIdleConnections() { c.closed++ }

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
