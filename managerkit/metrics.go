package managerkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/managerkit/internal/families"
	"github.com/controllerkit/controllerkit/metrics"
)

// Metrics feeds the families that controller-runtime has registered, under their names. So
// dashboards and alerts for controller-runtime keep their values. It also registers the
// families of package metrics.
//
//	controller_runtime_reconcile_total{controller,result}              of the loop
//	controller_runtime_reconcile_errors_total{controller}
//	controller_runtime_terminal_reconcile_errors_total{controller}
//	controller_runtime_reconcile_panics_total{controller}
//	controller_runtime_reconcile_timeouts_total{controller}
//	controller_runtime_reconcile_time_seconds{controller}
//	controller_runtime_max_concurrent_reconciles{controller}
//	controller_runtime_active_workers{controller}
//	workqueue_*{name,controller}                                       of the queue
//	leader_election_master_status{name}                                of the Elector
//
// The label result of controller_runtime_reconcile_total is success, requeue_after or error.
// The classes of errors are in controller_reconcile_total of package metrics.
// workqueue_depth has an empty label priority. The families rest_client_* of package metrics are those of
// controller-runtime alone, which does not register the duration of requests by itself: for it, call its
// RegisterRESTClientMetrics. A second collector of the name would make that panic.
//
// A Metrics fits wherever one of package metrics does. [NewMetrics] returns one.
type Metrics struct {
	*metrics.Metrics

	total                                                *prometheus.CounterVec
	failed, terminal, panics, timeouts, adds, retries    *prometheus.CounterVec
	duration, waiting, working                           *prometheus.HistogramVec
	workers, active, leading, depth, unfinished, longest *prometheus.GaugeVec

	known sync.Map // of a controller's name to its *series
}

// series has what a reconcile of one controller needs, so that it needs no lookup.
type series struct {
	success, requeued, failures        prometheus.Counter
	failed, terminal, panics, timeouts prometheus.Counter
	duration                           prometheus.Observer
	active                             prometheus.Gauge
}

// NewMetrics returns a Metrics for the registry of controller-runtime, which a manager serves.
// Each call returns a collector of the same families.
func NewMetrics() (*Metrics, error) {
	own, err := metrics.New(families.Beside{Registerer: crmetrics.Registry})
	if err != nil {
		return nil, fmt.Errorf("managerkit: %w", err)
	}
	m := &Metrics{Metrics: own}
	f := families.Known()
	const of = "controller_runtime_"
	err = errors.Join(
		f.Counter(of+"reconcile_total", &m.total),
		f.Counter(of+"reconcile_errors_total", &m.failed),
		f.Counter(of+"terminal_reconcile_errors_total", &m.terminal),
		f.Counter(of+"reconcile_panics_total", &m.panics),
		f.Counter(of+"reconcile_timeouts_total", &m.timeouts),
		f.Histogram(of+"reconcile_time_seconds", &m.duration),
		f.Gauge(of+"max_concurrent_reconciles", &m.workers),
		f.Gauge(of+"active_workers", &m.active),
		f.Gauge("leader_election_master_status", &m.leading),
		f.Gauge("workqueue_depth", &m.depth),
		f.Counter("workqueue_adds_total", &m.adds),
		f.Counter("workqueue_retries_total", &m.retries),
		f.Histogram("workqueue_queue_duration_seconds", &m.waiting),
		f.Histogram("workqueue_work_duration_seconds", &m.working),
		f.Gauge("workqueue_unfinished_work_seconds", &m.unfinished),
		f.Gauge("workqueue_longest_running_processor_seconds", &m.longest),
	)
	if err != nil {
		return nil, fmt.Errorf("managerkit: %w", err)
	}
	return m, nil
}

// of returns the series of a controller.
func (m *Metrics) of(controller string) *series {
	if s, ok := m.known.Load(controller); ok {
		return s.(*series)
	}
	s, _ := m.known.LoadOrStore(controller, &series{
		success:  m.total.WithLabelValues(controller, "success"),
		requeued: m.total.WithLabelValues(controller, "requeue_after"),
		failures: m.total.WithLabelValues(controller, "error"),
		failed:   m.failed.WithLabelValues(controller),
		terminal: m.terminal.WithLabelValues(controller),
		panics:   m.panics.WithLabelValues(controller),
		timeouts: m.timeouts.WithLabelValues(controller),
		duration: m.duration.WithLabelValues(controller),
		active:   m.active.WithLabelValues(controller),
	})
	return s.(*series)
}

// ReconcileWorkers sets the number of workers of the controller.
func (m *Metrics) ReconcileWorkers(controller string, workers int) {
	m.Metrics.ReconcileWorkers(controller, workers)
	m.of(controller)
	m.workers.WithLabelValues(controller).Set(float64(workers))
}

// ReconcileStarted counts a worker that starts a key.
func (m *Metrics) ReconcileStarted(controller string) {
	m.Metrics.ReconcileStarted(controller)
	m.of(controller).active.Inc()
}

// ReconcileFinished counts the end of a key.
func (m *Metrics) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	m.Metrics.ReconcileFinished(ctx, controller, result, took, latency)
	s := m.of(controller)
	s.active.Dec()
	s.duration.Observe(took.Seconds())
	switch result {
	case controllerkit.ResultSuccess:
		s.success.Inc()
		return
	case controllerkit.ResultRequeue:
		s.requeued.Inc()
		return
	case controllerkit.ResultTerminal:
		s.terminal.Inc()
	case controllerkit.ResultPanic:
		s.panics.Inc()
	case controllerkit.ResultTimeout:
		s.timeouts.Inc()
	}
	s.failures.Inc()
	s.failed.Inc()
}

// LeaderStatus sets whether the process holds the Lease.
func (m *Metrics) LeaderStatus(name string, leading bool) {
	m.Metrics.LeaderStatus(name, leading) // its counters are present before their first event
	m.leading.WithLabelValues(name).Set(map[bool]float64{true: 1}[leading])
}

var _ workqueue.MetricsProvider = (*Metrics)(nil)

// queueLabels are the labels of a family of controller-runtime for a queue.
func queueLabels(name string) prometheus.Labels {
	return prometheus.Labels{"name": name, "controller": name}
}

// NewDepthMetric returns a gauge of workqueue_depth.
func (m *Metrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	g := m.depth.With(prometheus.Labels{"name": name, "controller": name, "priority": ""})
	g.Set(0)
	return g
}

// NewAddsMetric returns a counter of workqueue_adds_total.
func (m *Metrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.With(queueLabels(name))
}

// NewRetriesMetric returns a counter of workqueue_retries_total.
func (m *Metrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.With(queueLabels(name))
}

// NewLatencyMetric returns a histogram of workqueue_queue_duration_seconds.
func (m *Metrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.waiting.With(queueLabels(name))
}

// NewWorkDurationMetric returns a histogram of workqueue_work_duration_seconds.
func (m *Metrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.working.With(queueLabels(name))
}

// NewUnfinishedWorkSecondsMetric returns a gauge of workqueue_unfinished_work_seconds.
func (m *Metrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	g := m.unfinished.With(queueLabels(name))
	g.Set(0)
	return g
}

// NewLongestRunningProcessorSecondsMetric returns a gauge of
// workqueue_longest_running_processor_seconds.
func (m *Metrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	g := m.longest.With(queueLabels(name))
	g.Set(0)
	return g
}

// ForgetQueue removes the gauges of a queue that was shut down. Its counters stay.
func (m *Metrics) ForgetQueue(name string) {
	m.Metrics.ForgetQueue(name)
	for _, vec := range []*prometheus.GaugeVec{m.depth, m.unfinished, m.longest} {
		vec.DeletePartialMatch(queueLabels(name))
	}
}
