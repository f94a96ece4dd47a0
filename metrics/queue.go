package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// The methods of workqueue.MetricsProvider. A new queue calls each of them once.

// NewDepthMetric returns the gauge workqueue_depth of a new queue. The gauges of a queue
// begin at 0, also if an earlier queue of the name had keys.
func (m *Metrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	if m == nil {
		return none{}
	}
	return m.fresh(m.depth, name)
}

// NewAddsMetric returns the counter workqueue_adds_total of the queue.
func (m *Metrics) NewAddsMetric(name string) workqueue.CounterMetric {
	if m == nil {
		return none{}
	}
	return m.adds.WithLabelValues(m.queues.label(name))
}

// NewLatencyMetric returns the histogram workqueue_queue_duration_seconds of
// the queue.
func (m *Metrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	if m == nil {
		return none{}
	}
	return m.waiting.WithLabelValues(m.queues.label(name))
}

// NewWorkDurationMetric returns the histogram workqueue_work_duration_seconds of
// the queue.
func (m *Metrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	if m == nil {
		return none{}
	}
	return m.working.WithLabelValues(m.queues.label(name))
}

// NewUnfinishedWorkSecondsMetric returns the gauge
// workqueue_unfinished_work_seconds of a new queue.
func (m *Metrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	if m == nil {
		return none{}
	}
	return m.fresh(m.unfinished, name)
}

// NewLongestRunningProcessorSecondsMetric returns the gauge
// workqueue_longest_running_processor_seconds of a new queue.
func (m *Metrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	if m == nil {
		return none{}
	}
	return m.fresh(m.longest, name)
}

// NewRetriesMetric returns the counter workqueue_retries_total of the queue.
func (m *Metrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	if m == nil {
		return none{}
	}
	return m.retries.WithLabelValues(m.queues.label(name))
}

// fresh returns a gauge at 0 for a new queue. An earlier queue of that name keeps its own
// gauge, which is not exported any more, so that its remaining keys do not add to the new
// queue's depth. The queues that share the value "other" share one gauge, which stays.
func (m *Metrics) fresh(vec *prometheus.GaugeVec, name string) prometheus.Gauge {
	label := m.queues.label(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues.has(value(name)) {
		vec.DeleteLabelValues(label)
	}
	return vec.WithLabelValues(label)
}

// ForgetQueue removes the gauges of a queue that was shut down, which otherwise keep their
// last values. Its counters stay. If the queue is still in use, its gauges are not
// exported any more. An unknown name is ignored, and so is a name that counts as "other".
func (m *Metrics) ForgetQueue(name string) {
	if m == nil {
		return
	}
	name = value(name)
	if !m.queues.has(name) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, vec := range []*prometheus.GaugeVec{m.depth, m.unfinished, m.longest} {
		vec.DeleteLabelValues(name)
	}
}

// none is a metric of a nil Metrics.
type none struct{}

func (none) Inc()            {}
func (none) Dec()            {}
func (none) Set(float64)     {}
func (none) Observe(float64) {}
