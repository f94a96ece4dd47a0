package queue

import (
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
		depth:      p.NewDepthMetric(name),
		adds:       p.NewAddsMetric(name),
		retries:    p.NewRetriesMetric(name),
		latency:    p.NewLatencyMetric(name),
		work:       p.NewWorkDurationMetric(name),
		unfinished: p.NewUnfinishedWorkSecondsMetric(name),
		longest:    p.NewLongestRunningProcessorSecondsMetric(name),
	}
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
	if q.running.n == 0 || q.stopping {
		q.stopGaugesLocked()
		q.setGaugesLocked()
		return
	}
	if q.ticking {
		return
	}
	q.ticking = true
	if q.gauges == nil {
		q.gauges = time.AfterFunc(gaugePeriod, q.refreshGauges)
	} else {
		q.gauges.Reset(gaugePeriod)
	}
}

func (q *Queue[K]) stopGaugesLocked() {
	if q.ticking {
		q.gauges.Stop()
		q.ticking = false
	}
}

// refreshGauges is called by the timer.
func (q *Queue[K]) refreshGauges() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ticking {
		q.setGaugesLocked()
		q.gauges.Reset(gaugePeriod)
	}
}

func (q *Queue[K]) setGaugesLocked() {
	now := q.now()
	var total, longest time.Duration
	for k := q.running.head; k != 0; k = q.held.at(k).next {
		ran := time.Duration(now - q.held.at(k).order)
		total += ran
		longest = max(longest, ran)
	}
	q.metrics.unfinished.Set(total.Seconds())
	q.metrics.longest.Set(longest.Seconds())
}
