package queue

import (
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// gaugePeriod is how often the gauges of running keys are refreshed.
const gaugePeriod = 500 * time.Millisecond

// metrics are client-go's, with client-go's meanings, except that retries
// counts rate-limited adds only. Without a name or a provider there are none.
type metrics struct {
	depth      workqueue.GaugeMetric // ready, or running and to run again after Done
	adds       workqueue.CounterMetric
	retries    workqueue.CounterMetric
	latency    workqueue.HistogramMetric
	work       workqueue.HistogramMetric
	unfinished workqueue.SettableGaugeMetric
	longest    workqueue.SettableGaugeMetric
}

func newMetrics(name string, p workqueue.MetricsProvider) *metrics {
	if name == "" || p == nil {
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

// made returns a metric that a provider made. Without one an add would fail half
// way and lose its key.
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

// watchGaugesLocked is called when a key starts or stops running: the gauges are
// refreshed by a timer while any runs, and are 0 when none does. A stopped queue
// has no timer; its gauges change when a key starts or is done.
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

// stopGaugesLocked is called when the queue is stopped.
func (q *Queue[K]) stopGaugesLocked() {
	if q.ticking {
		q.gauges.Stop()
		q.ticking = false
	}
}

// refreshGauges is called by the timer. It is not stopped when no key runs any
// more, as the next one mostly comes before it fires.
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
	var total float64 // a duration of many keys that hang would run over
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
