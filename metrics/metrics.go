package metrics

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

const (
	maxNames = 1000 // controllers, queues and leases, each
	maxHosts = 100
	maxSteps = 1000 // pairs of a finalizer and a step
	other    = "other"
)

// results are the values of the label result; what is none of them counts as
// "error". Reconcile's table says what each means.
func results() []string {
	return []string{
		"success", "requeue", "conflict", "server_delay", "stale", "terminal",
		"not_found", "forbidden", "timeout", "panic", "cancelled", "error",
	}
}

// Metrics holds the collectors. It satisfies the Metrics interfaces of the packages
// reconcile, leader, consistency and finalizer, and workqueue.MetricsProvider. Only
// [New] makes one; its methods may be called by several goroutines.
type Metrics struct {
	reconciles *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	active     *prometheus.GaugeVec
	workers    *prometheus.GaugeVec

	leading     *prometheus.GaugeVec
	transitions *prometheus.CounterVec
	acquiring   *prometheus.HistogramVec
	renewing    *prometheus.HistogramVec
	slow        *prometheus.CounterVec

	waits *prometheus.HistogramVec

	stepsRunning *prometheus.GaugeVec
	steps        *prometheus.HistogramVec
	blocked      *prometheus.HistogramVec
	finalized    *prometheus.HistogramVec

	depth      *prometheus.GaugeVec
	adds       *prometheus.CounterVec
	retries    *prometheus.CounterVec
	waiting    *prometheus.HistogramVec
	working    *prometheus.HistogramVec
	unfinished *prometheus.GaugeVec
	longest    *prometheus.GaugeVec

	requests  *prometheus.CounterVec
	latencies *prometheus.HistogramVec

	leases, queues, hosts, finalizers, steppers names

	mu sync.Mutex // held to replace controllers, and the gauges of a queue
	// controllers maps a controller's name to its series. The map is never
	// written to once it is stored, so that workers read it without a lock.
	controllers atomic.Pointer[map[string]*controller]
}

var _ workqueue.MetricsProvider = (*Metrics)(nil)

// controller is the series of one controller.
type controller struct {
	results  map[string]prometheus.Counter
	duration prometheus.Observer
	active   prometheus.Gauge
	workers  prometheus.Gauge
}

// New registers the collectors with reg and returns the Metrics that feeds them.
//
// A second call with the same registry returns a Metrics that feeds the same
// collectors. nil is an error, and so is a registry that has a family of one of
// these names with other labels or help, as other libraries register it: give
// each its own registry then. When New fails it has changed nothing.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if v := reflect.ValueOf(reg); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("metrics: New needs a prometheus.Registerer, got a nil %T: for example prometheus.NewRegistry()", reg)
	}
	if reg == nil {
		return nil, errors.New("metrics: New needs a prometheus.Registerer, got nil: for example prometheus.NewRegistry()")
	}
	r := &registration{reg: reg}
	m := &Metrics{
		reconciles: counter(r, "controller_reconcile_total", "Reconciles that ended, by their result.", "controller", "result"),
		durations: histogram(r, "controller_reconcile_duration_seconds", "How long a reconcile takes.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}, "controller"),
		active:  gauge(r, "controller_active_workers", "Workers that are reconciling a key now.", "controller"),
		workers: gauge(r, "controller_workers", "Workers of a running controller; 0 when it does not run.", "controller"),

		leading:     gauge(r, "leader_election_master_status", "1 while this process holds the lease, 0 otherwise.", "name"),
		transitions: counter(r, "controller_leader_transitions_total", "How often this process has acquired the lease.", "name"),
		acquiring: histogram(r, "controller_leader_acquire_duration_seconds", "How long it took to acquire the lease once it was seen to be free.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		renewing: histogram(r, "controller_leader_renewal_duration_seconds", "How long a renewal of the lease takes from its request to its response.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		slow: counter(r, "controller_leader_slow_renewals_total", "Renewals of the lease that came when half of the renew deadline or more had passed since the one before.", "name"),

		waits: histogram(r, "controller_consistency_wait_duration_seconds", "How long a key was held back because the cache did not show its own writes, by what ended it: visible, or timeout.",
			[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "result"),

		stepsRunning: gauge(r, "controller_finalizer_steps_running", "Calls of a cleanup's step that are running now.", "finalizer", "step"),
		steps: histogram(r, "controller_finalizer_step_duration_seconds", "How long a call of a cleanup's step takes, by its result: done, waiting, failed, timed_out or gave_up.",
			[]float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "finalizer", "step", "result"),
		blocked: histogram(r, "controller_finalizer_blocked_age_seconds", "How long ago the deletion was asked for of an object that a step still blocks, once in each pass over the object.",
			ages(), "finalizer", "step"),
		finalized: histogram(r, "controller_finalizer_duration_seconds", "How long after its deletion was asked for an object was cleaned up.", ages(), "finalizer"),

		depth:      gauge(r, "workqueue_depth", "Keys that are ready and not yet handed out.", "name"),
		adds:       counter(r, "workqueue_adds_total", "Keys added to the queue, repeated ones left out.", "name"),
		retries:    counter(r, "workqueue_retries_total", "Keys added with a rate limit; client-go's own queues also count those with a delay.", "name"),
		waiting:    histogram(r, "workqueue_queue_duration_seconds", "How long a key is ready before it is handed out.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		working:    histogram(r, "workqueue_work_duration_seconds", "How long a key is worked on.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		unfinished: gauge(r, "workqueue_unfinished_work_seconds", "Sum of how long the keys that are worked on now have been so.", "name"),
		longest:    gauge(r, "workqueue_longest_running_processor_seconds", "How long the key that is worked on longest has been so.", "name"),

		requests: counter(r, "rest_client_requests_total", "Requests to an API server, by status code; <error> without an answer.", "code", "method", "host"),
		latencies: histogram(r, "rest_client_request_duration_seconds", "Time from a request to the headers of its response, watches left out.",
			[]float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}, "verb", "host"),

		leases: names{limit: maxNames},
		queues: names{limit: maxNames},
		hosts:  names{limit: maxHosts},

		finalizers: names{limit: maxNames},
		steppers:   names{limit: maxSteps},
	}
	m.controllers.Store(&map[string]*controller{})
	if r.err != nil {
		for _, c := range r.added {
			reg.Unregister(c)
		}
		return nil, r.err
	}
	return m, nil
}

// registration collects what New registers, so that it can be taken back.
type registration struct {
	reg   prometheus.Registerer
	added []prometheus.Collector
	err   error
}

func counter(r *registration, name, help string, labels ...string) *prometheus.CounterVec {
	return register(r, name, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func gauge(r *registration, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(r, name, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func histogram(r *registration, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(r, name, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

// register returns c, or the equal collector that the registry already has.
func register[C prometheus.Collector](r *registration, name string, c C) C {
	if r.err != nil {
		return c
	}
	err := r.reg.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		r.err = fmt.Errorf("metrics: registering %s: %w (another library registers this name, or the registry adds a label of this one: give New a registry of its own)", name, err)
		return c
	}
	r.added = append(r.added, c)
	return c
}

// names gives out label values: the first limit names get their own, later ones
// share "other". This bounds the series whatever callers pass.
type names struct {
	limit int
	mu    sync.RWMutex // guards seen
	seen  map[string]struct{}
}

func (n *names) label(name string) string {
	name, ok := n.own(name)
	if ok {
		return name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.seen[name]; !ok {
		if len(n.seen) >= n.limit {
			return other
		}
		if n.seen == nil {
			n.seen = map[string]struct{}{}
		}
		n.seen[name] = struct{}{}
	}
	return name
}

// own returns name as a label value, and whether it was given out as such.
func (n *names) own(name string) (string, bool) {
	name = strings.ToValidUTF8(name, "?") // Prometheus panics on anything else
	n.mu.RLock()
	defer n.mu.RUnlock()
	_, ok := n.seen[name]
	return name, ok
}

// ReconcileWorkers says how many workers the controller runs: once when its Run
// starts, which also creates all of its series, and with 0 when Run ends.
func (m *Metrics) ReconcileWorkers(controller string, workers int) {
	m.controller(controller).workers.Set(float64(workers))
}

// ReconcileStarted says that a worker of the controller has begun with a key.
func (m *Metrics) ReconcileStarted(controller string) {
	m.controller(controller).active.Inc()
}

// ReconcileFinished says that it is done with the key, after d. A result that is
// not one of reconcile's counts as "error".
func (m *Metrics) ReconcileFinished(controller, result string, d time.Duration) {
	c := m.controller(controller)
	n, ok := c.results[result]
	if !ok {
		n = c.results["error"]
	}
	n.Inc()
	c.duration.Observe(d.Seconds())
	c.active.Dec()
}

// controller returns the series of a controller, and creates them if need be.
func (m *Metrics) controller(name string) *controller {
	if c, ok := (*m.controllers.Load())[name]; ok {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.controllers.Load()
	if c, ok := known[name]; ok {
		return c
	}
	value := strings.ToValidUTF8(name, "?")
	if len(known) >= maxNames {
		name, value = other, other
		if c, ok := known[other]; ok {
			return c
		}
	}
	c := &controller{
		results:  map[string]prometheus.Counter{},
		duration: m.durations.WithLabelValues(value),
		active:   m.active.WithLabelValues(value),
		workers:  m.workers.WithLabelValues(value),
	}
	for _, result := range results() {
		c.results[result] = m.reconciles.WithLabelValues(value, result)
	}
	known = maps.Clone(known)
	known[name] = c
	m.controllers.Store(&known)
	return c
}

// LeaderStatus says whether this process holds the Lease, named
// namespace/name.
func (m *Metrics) LeaderStatus(name string, leading bool) {
	v := 0.0
	if leading {
		v = 1
	}
	name = m.leases.label(name)
	m.leading.WithLabelValues(name).Set(v)
	m.transitions.WithLabelValues(name) // present, as 0, before the first one
	m.slow.WithLabelValues(name)
}

// LeaderTransition says that this process has acquired the Lease, and how long
// that took once the Lease was free.
func (m *Metrics) LeaderTransition(name string, took time.Duration) {
	name = m.leases.label(name)
	m.transitions.WithLabelValues(name).Inc()
	m.acquiring.WithLabelValues(name).Observe(took.Seconds())
}

// LeaderRenewal says that this process has renewed the Lease, how long that took,
// and whether it was later than it should be.
func (m *Metrics) LeaderRenewal(name string, took time.Duration, slow bool) {
	name = m.leases.label(name)
	m.renewing.WithLabelValues(name).Observe(took.Seconds())
	if slow {
		m.slow.WithLabelValues(name).Inc()
	}
}

// ConsistencyWaited says that a key was held back for d, until the cache showed its
// writes or, if timedOut, until that had taken too long.
func (m *Metrics) ConsistencyWaited(d time.Duration, timedOut bool) {
	series := m.waits.WithLabelValues("visible")
	late := m.waits.WithLabelValues("timeout") // present before the first one
	if timedOut {
		series = late
	}
	series.Observe(d.Seconds())
}
