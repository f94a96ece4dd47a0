package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/controllerkit/controllerkit"
)

// resultIndex returns the index of a result in controllerkit.Results. The first one is the most
// frequent, and other texts count as the last.
func resultIndex(result string) int {
	all := controllerkit.Results()
	for n, r := range all {
		if r == result {
			return n
		}
	}
	return len(all) - 1
}

// controller has the series of one controller.
type controller struct {
	name      string // as in controllers
	label     string
	created   time.Time
	started   atomic.Uint64  // calls
	mu        sync.Mutex     // of the histograms, because most calls need two, and of changes of running
	durations [13]*histogram // of the calls that have ended
	settled   *histogram
	waiting   prometheus.Gauge
	parked    prometheus.Gauge
	failing   map[string]prometheus.Gauge // by result
	running   atomic.Int64                // number of Runs
	count     atomic.Pointer[func() int64]
	writes    map[written]prometheus.Counter
	workers   prometheus.Gauge
	held      prometheus.Counter
}

// written is a kind of writes, and whether they were sent or skipped.
type written struct {
	kind string
	sent bool
}

// controllers are the series of all controllers.
type controllers struct {
	all   map[string]*controller // by name
	first []*controller          // some of them, which are found in less time than in the map
}

func (c *controllers) find(name string) *controller {
	for _, one := range c.first {
		if one.name == name {
			return one
		}
	}
	return c.all[name]
}

// with returns the controllers and one more.
func (c *controllers) with(one *controller) *controllers {
	more := controllers{all: map[string]*controller{one.name: one}, first: c.first}
	maps.Copy(more.all, c.all)
	if len(c.first) < 8 {
		more.first = append(slices.Clip(c.first), one)
	}
	return &more
}

// reconciles collects the families that follow from the calls of each controller.
type reconciles struct {
	metrics                          *Metrics
	total, duration, latency, active *prometheus.Desc
	objects                          *prometheus.Desc
}

func newReconciles(m *Metrics) *reconciles {
	return &reconciles{
		metrics:  m,
		total:    prometheus.NewDesc("controller_reconcile_total", "Total number of reconciles by result.", []string{"controller", "result"}, nil),
		duration: prometheus.NewDesc("controller_reconcile_duration_seconds", "Duration of a reconcile in seconds, by result.", []string{"controller", "result"}, nil),
		latency:  prometheus.NewDesc("controller_reconcile_latency_seconds", "Time in seconds from the first event of a key that no reconcile has handled to the end of the one that succeeded.", []string{"controller"}, nil),
		active:   prometheus.NewDesc("controller_active_workers", "Number of workers that are running a key.", []string{"controller"}, nil),
		objects:  prometheus.NewDesc("controller_objects", "Number of objects that the controller reconciles, 0 if it is not running.", []string{"controller"}, nil),
	}
}

func (r *reconciles) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.total
	ch <- r.duration
	ch <- r.latency
	ch <- r.active
	ch <- r.objects
}

// Collect exports the histogram of a result once there was such a result, because it has many
// lines.
func (r *reconciles) Collect(ch chan<- prometheus.Metric) {
	for _, c := range r.metrics.controllers.Load().all {
		var ended uint64
		for n, result := range controllerkit.Results() {
			h := c.durations[n]
			count := h.count()
			ended += count
			ch <- prometheus.MustNewConstMetricWithCreatedTimestamp(r.total, prometheus.CounterValue, float64(count), c.created, c.label, result)
			if count > 0 {
				ch <- h
			}
		}
		ch <- c.settled
		if count := c.count.Load(); count != nil {
			var objects int64
			if c.running.Load() > 0 {
				objects = (*count)()
			}
			ch <- prometheus.MustNewConstMetric(r.objects, prometheus.GaugeValue, float64(objects), c.label)
		}
		ch <- prometheus.MustNewConstMetric(r.active, prometheus.GaugeValue, float64(c.started.Load())-float64(ended), c.label)
	}
}

// ReconcileWorkers sets the number of workers of the controller. Run calls it when it
// starts, which also creates the series of each result with the value 0, so that rates
// include the first error, and with 0 workers when it ends. If several Runs have one name,
// such as those of shards, the last one to end sets 0. See also FinalizerObject.
func (m *Metrics) ReconcileWorkers(controller string, workers int) {
	if m == nil {
		return
	}
	c := m.controller(controller)
	c.mu.Lock()
	switch {
	case workers > 0:
		c.running.Add(1)
	case c.running.Load() > 0:
		c.running.Add(-1)
	}
	if workers > 0 || c.running.Load() == 0 {
		c.workers.Set(float64(workers))
	}
	c.mu.Unlock()
	if workers > 0 {
		return
	}
	last := true
	for _, other := range m.controllers.Load().all {
		last = last && other.running.Load() == 0
	}
	m.forgetObjects(last)
}

// ReconcileObjects sets the function that returns the number of objects that the controller
// reconciles, for controller_objects. While the controller runs, each collection of the metrics
// calls count, which must be safe for concurrent use. A later count of the same controller
// replaces it. Package operator calls ReconcileObjects for its controllers.
func (m *Metrics) ReconcileObjects(controller string, count func() int64) {
	if m == nil || count == nil {
		return
	}
	m.controller(controller).count.Store(&count)
}

// ReconcileFailing sets the number of keys of the controller whose last call ended with the
// result. An unknown result and one that is no failure are ignored.
func (m *Metrics) ReconcileFailing(controller, result string, keys int) {
	if m == nil {
		return
	}
	if gauge, ok := m.controller(controller).failing[result]; ok {
		gauge.Set(float64(keys))
	}
}

// ReconcileStarted counts a worker of the controller that starts a key.
func (m *Metrics) ReconcileStarted(controller string) {
	if m == nil {
		return
	}
	m.controller(controller).started.Add(1)
}

// ReconcileFinished counts the end of a reconcile that took the given time. An unknown result
// counts as "error". latency is the time since the first event that the reconcile has settled.
// It is not counted if it is negative.
func (m *Metrics) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	if m == nil {
		return
	}
	c := m.controller(controller)
	tookExemplar := m.exemplar(ctx, took)
	var latencyExemplar *dto.Exemplar
	if latency >= 0 {
		latencyExemplar = m.exemplar(ctx, latency)
	}
	c.mu.Lock()
	c.durations[resultIndex(result)].observeLocked(took.Seconds(), tookExemplar)
	if latency >= 0 {
		c.settled.observeLocked(latency.Seconds(), latencyExemplar)
	}
	c.mu.Unlock() // not deferred, see histogram.observe
}

// ReconcileHeld counts that the loop began to delay a key that ran too often.
func (m *Metrics) ReconcileHeld(controller string) {
	if m == nil {
		return
	}
	m.controller(controller).held.Inc()
}

// ReconcileKeys sets the number of keys that wait for the Gate, and of the keys
// that MaxAttempts has parked.
func (m *Metrics) ReconcileKeys(controller string, waiting, parked int) {
	if m == nil {
		return
	}
	c := m.controller(controller)
	c.waiting.Set(float64(waiting))
	c.parked.Set(float64(parked))
}

// ReconcileWrote counts an apply or a write of a status that was sent, or skipped as a
// no-op. Another kind is ignored.
func (m *Metrics) ReconcileWrote(controller, kind string, sent bool) {
	if m == nil {
		return
	}
	if n, ok := m.controller(controller).writes[written{kind, sent}]; ok {
		n.Inc()
	}
}

// controller returns the series of a controller. It creates them if necessary.
func (m *Metrics) controller(name string) *controller {
	if len(name) > maxValue { // the map keeps its keys
		name = value(name)
	}
	if c := m.controllers.Load().find(name); c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.controllers.Load()
	if c := known.find(name); c != nil {
		return c
	}
	label := value(name)
	if len(known.all) >= maxNames {
		name, label = other, other
		if c := known.find(other); c != nil {
			return c
		}
	}
	c := &controller{
		name:  name,
		label: label, created: time.Now(),
		waiting: m.keys.WithLabelValues(label, "waiting"),
		parked:  m.keys.WithLabelValues(label, "parked"),
		failing: map[string]prometheus.Gauge{},
		writes: map[written]prometheus.Counter{
			{"apply", true}:   m.writes.WithLabelValues(label, "apply", "sent"),
			{"apply", false}:  m.writes.WithLabelValues(label, "apply", "skipped"),
			{"status", true}:  m.writes.WithLabelValues(label, "status", "sent"),
			{"status", false}: m.writes.WithLabelValues(label, "status", "skipped"),
		},
		workers: m.workers.WithLabelValues(label),
		held:    m.holds.WithLabelValues(label),
	}
	bounds := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	c.settled = newHistogram(&c.mu, m.reconciles.latency, append(slices.Clip(bounds), 600, 1800), label)
	for n, result := range controllerkit.Results() {
		c.durations[n] = newHistogram(&c.mu, m.reconciles.duration, bounds, label, result)
	}
	for _, result := range controllerkit.Results() {
		if result != controllerkit.ResultSuccess && result != controllerkit.ResultRequeue && result != controllerkit.ResultCancelled {
			c.failing[result] = m.failing.WithLabelValues(label, result)
		}
	}
	for _, result := range []string{"visible", "timeout"} { // of its Gate, present before the first wait
		m.waits.WithLabelValues(result)
	}
	m.controllers.Store(known.with(c))
	return c
}
