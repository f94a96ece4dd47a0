package metrics

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

const (
	maxNames = 1000 // controllers, queues and leases, each
	maxHosts = 100
	maxSteps = 1000 // pairs of a finalizer and a step
	maxValue = 128  // bytes of a label value
	other    = "other"
)

// results are the values of the label result; what is none of them counts as
// "error". Reconcile's table says what each means.
func results() []string {
	return []string{
		"success", "requeue", "conflict", "server_delay", "stale", "terminal",
		"not_found", "rejected", "forbidden", "timeout", "panic", "cancelled", "error",
	}
}

// Metrics holds the collectors. It satisfies the Metrics interfaces of the packages
// reconcile, leader, consistency and finalizer, and workqueue.MetricsProvider. Only
// [New] makes one; its methods may be called by several goroutines.
type Metrics struct {
	reconciles *prometheus.CounterVec
	holds      *prometheus.CounterVec
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
	held     prometheus.Counter
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
	var all collectors
	m := &Metrics{
		reconciles: all.counter("controller_reconcile_total", "Reconciles that ended, by their result.", "controller", "result"),
		durations: all.histogram("controller_reconcile_duration_seconds", "How long a reconcile takes.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}, "controller"),
		holds:   all.counter("controller_reconcile_held_total", "Total number of times that a key was delayed because it ran too often.", "controller"),
		active:  all.gauge("controller_active_workers", "Workers that are reconciling a key now.", "controller"),
		workers: all.gauge("controller_workers", "Workers of a running controller; 0 when it does not run.", "controller"),

		leading:     all.gauge("leader_election_master_status", "1 while this process holds the lease, 0 otherwise.", "name"),
		transitions: all.counter("controller_leader_transitions_total", "How often this process has acquired the lease.", "name"),
		acquiring: all.histogram("controller_leader_acquire_duration_seconds", "How long it took to acquire the lease once it was seen to be free.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		renewing: all.histogram("controller_leader_renewal_duration_seconds", "How long a renewal of the lease takes from its request to its response.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		slow: all.counter("controller_leader_slow_renewals_total", "Renewals of the lease that came when half of the renew deadline or more had passed since the one before.", "name"),

		waits: all.histogram("controller_consistency_wait_duration_seconds", "How long a key was held back because the cache did not show its own writes, by what ended it: visible, or timeout.",
			[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "result"),

		stepsRunning: all.gauge("controller_finalizer_steps_running", "Calls of a cleanup's step that are running now.", "finalizer", "step"),
		steps: all.histogram("controller_finalizer_step_duration_seconds", "How long a call of a cleanup's step takes, by its result: done, waiting, failed, timed_out or gave_up.",
			[]float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "finalizer", "step", "result"),
		blocked: all.histogram("controller_finalizer_blocked_age_seconds", "How long ago the deletion was asked for of an object that a step still blocks, once in each pass over the object.",
			ages(), "finalizer", "step"),
		finalized: all.histogram("controller_finalizer_duration_seconds", "How long after its deletion was asked for an object was cleaned up.", ages(), "finalizer"),

		depth:      all.gauge("workqueue_depth", "Keys that are ready and not yet handed out.", "name"),
		adds:       all.counter("workqueue_adds_total", "Keys added to the queue, repeated ones left out.", "name"),
		retries:    all.counter("workqueue_retries_total", "Keys added with a rate limit; client-go's own queues also count those with a delay.", "name"),
		waiting:    all.histogram("workqueue_queue_duration_seconds", "How long a key is ready before it is handed out.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		working:    all.histogram("workqueue_work_duration_seconds", "How long a key is worked on.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		unfinished: all.gauge("workqueue_unfinished_work_seconds", "Sum of how long the keys that are worked on now have been so.", "name"),
		longest:    all.gauge("workqueue_longest_running_processor_seconds", "How long the key that is worked on longest has been so.", "name"),

		requests: all.counter("rest_client_requests_total", "Requests to an API server, by status code; <error> without an answer.", "code", "method", "host"),
		latencies: all.histogram("rest_client_request_duration_seconds", "Time from a request to the headers of its response, watches left out.",
			[]float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}, "verb", "host"),

		leases: names{limit: maxNames},
		queues: names{limit: maxNames},
		hosts:  names{limit: maxHosts},

		finalizers: names{limit: maxNames},
		steppers:   names{limit: maxSteps},
	}
	m.controllers.Store(&map[string]*controller{})
	all.metrics = m
	err := reg.Register(&all)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if first, ok := already.ExistingCollector.(*collectors); ok {
			return first.metrics, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: New cannot register its collectors: %w: give it a registry of its own, or remove the label that the registry adds", err)
	}
	return m, nil
}

// collectors is everything that one New registers. The registry takes all of it or
// nothing.
type collectors struct {
	metrics *Metrics
	list    []prometheus.Collector
}

func (c *collectors) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range c.list {
		one.Describe(ch)
	}
}

func (c *collectors) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.list {
		one.Collect(ch)
	}
}

func (c *collectors) counter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	c.list = append(c.list, vec)
	return vec
}

func (c *collectors) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	c.list = append(c.list, vec)
	return vec
}

func (c *collectors) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	c.list = append(c.list, vec)
	return vec
}

// value returns name as a label value: printable, and at most maxValue bytes long. A
// name that had to be changed ends in a hash of what it was, so that it stays unique.
func value(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name[:min(len(name), maxValue+1)])
	if clean == name && len(name) <= maxValue {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "~" + hex.EncodeToString(sum[:8])
	return strings.ToValidUTF8(clean[:min(len(clean), maxValue-len(hash))], "") + hash
}

// names gives out label values: the first limit names get their own, later ones
// share "other". This bounds the series whatever callers pass.
type names struct {
	limit int
	mu    sync.RWMutex // guards seen
	seen  map[string]struct{}
}

func (n *names) label(name string) string { return n.claim(value(name)) }

// claim is label for a name that is a label value.
func (n *names) claim(name string) string {
	if n.has(name) {
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

// has reports whether the label value was given out.
func (n *names) has(value string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	_, ok := n.seen[value]
	return ok
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

// ReconcileHeld counts that the loop began to delay a key that ran too often.
func (m *Metrics) ReconcileHeld(controller string) { m.controller(controller).held.Inc() }

// controller returns the series of a controller, and creates them if need be.
func (m *Metrics) controller(name string) *controller {
	if len(name) > maxValue { // the map keeps its keys
		name = value(name)
	}
	if c, ok := (*m.controllers.Load())[name]; ok {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.controllers.Load()
	if c, ok := known[name]; ok {
		return c
	}
	label := value(name)
	if len(known) >= maxNames {
		name, label = other, other
		if c, ok := known[other]; ok {
			return c
		}
	}
	c := &controller{
		results:  map[string]prometheus.Counter{},
		duration: m.durations.WithLabelValues(label),
		active:   m.active.WithLabelValues(label),
		workers:  m.workers.WithLabelValues(label),
		held:     m.holds.WithLabelValues(label),
	}
	for _, result := range results() {
		c.results[result] = m.reconciles.WithLabelValues(label, result)
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
