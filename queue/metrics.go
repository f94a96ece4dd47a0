package queue

import (
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// gaugePeriod is the time between two refreshes of the gauges of running keys.
const gaugePeriod = 500 * time.Millisecond

// metrics are the metrics of client-go. Retries counts rate-limited adds only.
type metrics struct {
	depth      workqueue.GaugeMetric // the keys that are ready, or become ready at Done
	adds       workqueue.CounterMetric
	retries    workqueue.CounterMetric
	latency    workqueue.HistogramMetric
	work       workqueue.HistogramMetric
	unfinished workqueue.SettableGaugeMetric
	longest    workqueue.SettableGaugeMetric
}

func newMetrics(name string, p workqueue.MetricsProvider) *metrics {
	if name == "" || kube.IsNil(p) {
		return nil
	}
	return &metrics{
		depth:      made("NewDepthMetric", p.NewDepthMetric(name)),
		adds:       made("NewAddsMetric", p.NewAddsMetric(name)),
		retries:    made("NewRetriesMetric", p.NewRetriesMetric(name)),
		latency:    made("NewLatencyMetric", p.NewLatencyMetric(name)),
		work:       made("NewWorkDurationMetric", p.NewWorkDurationMetric(name)),
		unfinished: made("NewUnfinishedWorkSecondsMetric", p.NewUnfinishedWorkSecondsMetric(name)),
		longest:    made("NewLongestRunningProcessorSecondsMetric", p.NewLongestRunningProcessorSecondsMetric(name)),
	}
}

// made returns a metric that a provider made. It panics if the metric is nil: otherwise an add
// would panic under the lock and lose its key.
func made[M any](by string, metric M) M {
	if any(metric) == nil {
		panic(fmt.Sprintf("queue: Config.MetricsProvider: %s returned nil: return a metric that does nothing", by))
	}
	return metric
}

func (m *metrics) add() {
	m.adds.Inc()
	m.depth.Inc()
}

func (m *metrics) get(waited time.Duration) {
	m.depth.Dec()
	m.latency.Observe(waited.Seconds())
}

// watchGaugesLocked updates the gauges when a key starts or ends. While a key runs, a timer
// refreshes them. If no key runs, they are 0. A stopped queue has no timer: its gauges change
// only when a key starts or ends.
func (q *Queue[K]) watchGaugesLocked() {
	switch {
	case q.stopping || q.running.n == 0 && q.shown:
		q.setGaugesLocked()
	case q.running.n > 0 && !q.ticking:
		q.ticking = true
		if q.gauges == nil {
			q.gauges = time.AfterFunc(gaugePeriod, q.refreshGauges)
		} else {
			q.gauges.Reset(gaugePeriod)
		}
	}
}

// stopGaugesLocked stops the timer when the queue is stopped.
func (q *Queue[K]) stopGaugesLocked() {
	if q.ticking {
		q.gauges.Stop()
		q.ticking = false
	}
}

// refreshGauges runs when the timer fires. The timer is not stopped when the last key ends,
// because the next key mostly starts before it fires.
func (q *Queue[K]) refreshGauges() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ticking {
		return
	}
	if q.ticking = q.running.n > 0; q.ticking {
		q.setGaugesLocked()
		q.gauges.Reset(gaugePeriod)
	}
}

func (q *Queue[K]) setGaugesLocked() {
	now := q.now()
	var total float64 // a Duration would overflow if many keys hang
	var longest time.Duration
	for k := q.running.head; k != 0; k = q.held.At(k).next {
		ran := time.Duration(now - q.held.At(k).order)
		total += ran.Seconds()
		longest = max(longest, ran)
	}
	q.metrics.unfinished.Set(total)
	q.metrics.longest.Set(longest.Seconds())
	q.shown = q.running.n > 0
}
