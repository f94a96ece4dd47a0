package metrics

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	promcollectors "github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/util/workqueue"
)

const (
	maxNames = 100 // controllers, queues, leases and informers, each
	maxHosts = 100
	maxSteps = 100 // pairs of a finalizer and a step
	maxParts = 100
	maxValue = 128 // bytes of a label value
	other    = "other"
)

// Metrics feeds the collectors. It satisfies the Metrics interfaces of the packages
// reconcile, leader, shard, consistency, finalizer, informer, watcher, recorder, shutdown and
// migrate, fleet, and workqueue.MetricsProvider. [New] returns one. Its methods may be called concurrently.
// A nil *Metrics has no series.
//
// The methods give label values to at most 100 controllers, queues, Leases, finalizers, steps,
// informers, definitions, resources, hosts and parts of the stop each. Further names share the value "other". A label
// value is printable and at most 128 bytes long: a name that is not keeps its beginning and gets
// a hash.
//
// If all names, results, methods and status codes occur, a scrape has about 90,000 lines and
// 8 MB. Half of them are the histograms of reconciles by result, and the requests by code, method
// and host. The conditions of objects can add 500 lines for each resource. A program of ten controllers and one API server has about 3,000 lines and 300 kB.
type Metrics struct {
	// Exemplar returns the labels of an exemplar for the context of a reconcile or a request,
	// such as the ids of its trace, or nil. The function Exemplar of module tracing fits. It
	// is called for each observation of a reconcile's duration or latency and of a request's
	// duration. Their histograms keep the last exemplar of each bucket. Labels that
	// Prometheus does not accept are dropped, and the first such drop is logged: names are
	// letters, digits and underscores, and all names and values have at most 128 runes
	// together.
	//
	// If Exemplar is not nil, Handler also serves OpenMetrics, which has exemplars and writes
	// the bound le="1" as le="1.0". Exemplar must not change after the first use of the
	// Metrics. nil means no exemplars.
	Exemplar func(ctx context.Context) map[string]string

	wrongExemplar sync.Once // logs the first exemplar that is not valid

	gatherer prometheus.Gatherer // nil: the Registerer of New is none

	reconciles *reconciles
	holds      *prometheus.CounterVec
	keys       *prometheus.GaugeVec
	failing    *prometheus.GaugeVec
	writes     *prometheus.CounterVec
	workers    *prometheus.GaugeVec

	leading     *prometheus.GaugeVec
	seen        *prometheus.GaugeVec
	transitions *prometheus.CounterVec
	acquiring   histograms
	renewing    histograms
	slow        *prometheus.CounterVec
	absent      *prometheus.CounterVec

	owned, ownerless, surplus *prometheus.GaugeVec
	began, ownerlessTimes     *prometheus.CounterVec

	waits histograms

	lists    *prometheus.CounterVec
	listing  histograms
	watches  *prometheus.CounterVec
	watching histograms
	received *prometheus.GaugeVec

	queued, stored *prometheus.GaugeVec
	processing     histograms

	mutations *prometheus.CounterVec

	held, heldBytes *prometheus.GaugeVec
	caches          sync.Map // label → func() (objects, bytes int64)
	receipts        sync.Map // label → time.Time or func() time.Time

	conditions, paused, unready, unreadyFor *prometheus.GaugeVec
	fleets                                  sync.Map // label → fleet
	pauses                                  sync.Map // label → func() int

	malformed *prometheus.GaugeVec
	served    *prometheus.GaugeVec
	misfits   sync.Map // label → func() int

	stepsRunning *prometheus.GaugeVec
	steps        histograms
	blocked      histograms
	finalized    histograms
	stuck        *prometheus.GaugeVec
	oldest       *prometheus.GaugeVec
	objects      objects

	events   *prometheus.CounterVec
	mistakes *prometheus.CounterVec
	stopped  *prometheus.GaugeVec

	migrated  *prometheus.GaugeVec
	migration *prometheus.GaugeVec

	depth      *prometheus.GaugeVec
	adds       *prometheus.CounterVec
	retries    *prometheus.CounterVec
	waiting    histograms
	working    histograms
	unfinished *prometheus.GaugeVec
	longest    *prometheus.GaugeVec

	requests  *prometheus.CounterVec
	latencies histograms

	leases, queues, hosts, finalizers, steppers, parts, informers, definitions, resources, factories, kinds names

	mu sync.Mutex // guards the replacement of controllers and of the gauges of a queue
	// A stored controllers does not change, so that workers read it without a lock.
	controllers atomic.Pointer[controllers]
}

var _ workqueue.MetricsProvider = (*Metrics)(nil)

// New registers the collectors with reg and returns the Metrics that feeds them. A second
// call with the same registry returns the same Metrics. If reg is nil, New makes a
// registry with the collectors of the Go runtime and the process too.
//
// New returns an error if reg is a nil pointer or has a metric with the name of one of these
// series, for example from another library: use a separate registry then. A New that fails leaves reg
// unchanged.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if v := reflect.ValueOf(reg); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("metrics: New got a nil %T: pass a prometheus.Registerer, for example prometheus.NewRegistry()", reg)
	}
	if reg == nil {
		own := prometheus.NewRegistry()
		own.MustRegister(promcollectors.NewGoCollector(), promcollectors.NewProcessCollector(promcollectors.ProcessCollectorOpts{}))
		reg = own
	}
	var all collectors
	gatherer, _ := reg.(prometheus.Gatherer)
	m := &Metrics{
		gatherer: gatherer,

		holds:   all.counter("controller_reconcile_held_total", "Total number of times that a key was delayed because it ran too often.", "controller"),
		keys:    all.gauge("controller_keys", "Number of keys that wait for the gate (waiting), or that MaxAttempts has parked (parked).", "controller", "state"),
		failing: all.gauge("controller_failing_keys", "Number of keys whose last call ended with the result, also of keys that run again only at an event.", "controller", "result"),
		writes:  all.counter("controller_writes_total", "Total number of applies and writes of a status by reconciles, sent or skipped because they would change nothing.", "controller", "kind", "result"),
		workers: all.gauge("controller_workers", "Number of workers of the controller, 0 if it is not running.", "controller"),

		leading:     all.gauge("leader_election_master_status", "1 if this process holds the Lease, otherwise 0.", "name"),
		seen:        all.gauge("controller_leader_seen", "1 if this process holds the Lease or sees another process renew it, otherwise 0.", "name"),
		transitions: all.counter("controller_leader_transitions_total", "Total number of times that this process has acquired the Lease.", "name"),
		acquiring: all.histogram("controller_leader_acquire_duration_seconds", "Time in seconds from the moment the Lease was seen to be free until this process acquired it.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		renewing: all.histogram("controller_leader_renewal_duration_seconds", "Duration of a renewal of the Lease in seconds, from request to response.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "name"),
		slow:   all.counter("controller_leader_slow_renewals_total", "Total number of renewals of the Lease that came after half of the renew deadline.", "name"),
		absent: all.counter("controller_leader_absent_seconds_total", "Total time in seconds for which this process saw the Lease free, counted when a process has acquired it.", "name"),

		owned:          all.gauge("controller_shards_owned", "Number of shards that this process owns.", "name"),
		began:          all.counter("controller_shards_began_total", "Total number of times that this process has become the owner of a shard.", "name"),
		ownerless:      all.gauge("controller_shards_ownerless", "Number of shards for which this process sees no owner: all if it cannot use the API server.", "name"),
		ownerlessTimes: all.counter("controller_shards_ownerless_seconds_total", "Total time in seconds for which this process saw a shard without an owner while it could use the API server, all shards together.", "name"),
		surplus:        all.gauge("controller_shards_surplus", "Number of shards that must move because their replicas own more than their share, as this process sees them.", "name"),

		waits: all.histogram("controller_consistency_wait_duration_seconds", "Time in seconds that a key waited until the cache showed its own writes (visible) or the wait was given up (timeout).",
			[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "result"),

		lists: all.counter("reflector_lists_total", "Total number of list requests of the informer.", "name"),
		listing: all.histogram("reflector_list_duration_seconds", "Time in seconds from a list request of the informer until its response was read.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "name"),
		watches: all.counter("reflector_watches_total", "Total number of watches of the informer that have ended.", "name"),
		watching: all.histogram("reflector_watch_duration_seconds", "Duration in seconds of a watch of the informer.",
			[]float64{.1, 1, 10, 30, 60, 120, 180, 300, 600, 900}, "name"),
		held:      all.gauge("controller_informer_objects", "Number of objects in the informer's cache.", "name"),
		heldBytes: all.gauge("controller_informer_bytes", "Estimate of the bytes that the objects in the informer's cache take in the heap.", "name"),
		malformed: all.gauge("controller_informer_malformed_objects", "Number of objects that do not fit the informer's Go type. An informer of package crd goes on without them, another one gets no more events.", "name"),
		served:    all.gauge("controller_informer_served", "1 if the API server serves the resource of the informer, which runs without it, too, and 0 if it does not.", "name"),
		mutations: all.counter("controller_informer_mutations_total", "Total number of changes that the program has made to sampled objects in the informer's cache.", "name"),
		received:  all.gauge("controller_informer_last_event_age_seconds", "Time since the informer last received data that it could decode: an event, a bookmark or a list. For an informer with parts, such as namespaces, it is that of the oldest part.", "name"),

		stepsRunning: all.gauge("controller_finalizer_steps_running", "Number of running calls of a step of a cleanup.", "finalizer", "step"),
		steps: all.histogram("controller_finalizer_step_duration_seconds", "Duration in seconds of a call of a step of a cleanup, by result: done, waiting, failed, timed_out or gave_up.",
			[]float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "finalizer", "step", "result"),
		blocked: all.histogram("controller_finalizer_blocked_age_seconds", "Time in seconds since the deletion request of an object that the step still blocks, once for each call of the cleanup.",
			ages(), "finalizer", "step"),
		finalized: all.histogram("controller_finalizer_duration_seconds", "Time in seconds from the deletion request of an object to the end of its cleanup.", ages(), "finalizer"),
		stuck:     all.gauge("controller_finalizer_blocked_objects", "Number of objects in deletion that the step blocks now.", "finalizer", "step"),
		oldest:    all.gauge("controller_finalizer_blocked_oldest_seconds", "Time in seconds since the earliest deletion request of the objects that the step blocks now, 0 if there are none.", "finalizer", "step"),

		events:   all.counter("controller_events_total", "Total number of recorded Events by outcome: written, deduplicated, or the reason for which they were dropped.", "outcome"),
		mistakes: all.counter("controller_mistakes_total", "Total number of lines of log about a mistake of the program. The lines of one mistake are limited.", "mistake"),
		stopped:  all.gauge("controller_shutdown_duration_seconds", "Time in seconds from the end of a part's context until the part returned or its time was over.", "part", "result"),

		migrated:  all.gauge("controller_migration_objects", "Number of stored objects that the last pass of a migration has read and migrated (migrated), or could not migrate (failed).", "definition", "state"),
		migration: all.gauge("controller_migration_complete", "1 if the objects of the CustomResourceDefinition are stored in its storage version, otherwise 0.", "definition"),

		conditions: all.gauge("controller_object_conditions", "Number of objects of the resource by each of their conditions.", "resource", "condition", "status", "reason"),
		unready:    all.gauge("controller_not_ready_objects", "Number of objects of the resource that are not ready, without paused ones.", "resource"),
		unreadyFor: all.gauge("controller_not_ready_oldest_seconds", "Time in seconds for which the oldest of these objects has not been ready, 0 if there are none.", "resource"),
		paused:     all.gauge("controller_paused_objects", "Number of objects of the resource that an annotation pauses, without those that are being deleted.", "resource"),

		queued: all.gauge("informer_queued_items", "Number of events that wait for the cache of an informer of client-go.", "name", "group", "version", "resource"),
		processing: all.histogram("informer_processing_latency_seconds", "Time in seconds that an informer of client-go takes to store an event and to pass it to its handlers.",
			[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "name", "group", "version", "resource"),
		stored: all.gauge("informer_store_resource_version", "The 15 least significant digits of the resource version of the cache of an informer of client-go.", "name", "group", "version", "resource"),

		depth:      all.gauge("workqueue_depth", "Number of keys that are ready and wait for a worker.", "name"),
		adds:       all.counter("workqueue_adds_total", "Total number of keys added to the queue, without duplicates of waiting keys.", "name"),
		retries:    all.counter("workqueue_retries_total", "Total number of keys added with a rate limit. client-go's queues also count keys added with a delay.", "name"),
		waiting:    all.histogram("workqueue_queue_duration_seconds", "Time in seconds that a ready key waits for a worker.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		working:    all.histogram("workqueue_work_duration_seconds", "Time in seconds that a key runs.", prometheus.ExponentialBuckets(10e-9, 10, 10), "name"),
		unfinished: all.gauge("workqueue_unfinished_work_seconds", "Total seconds that the running keys have been running.", "name"),
		longest:    all.gauge("workqueue_longest_running_processor_seconds", "Seconds that the longest running key has been running.", "name"),

		requests: all.counter("rest_client_requests_total", "Total number of requests to an API server, by status code, or <error> without a response.", "code", "method", "host"),
		latencies: all.histogram("rest_client_request_duration_seconds", "Time in seconds from a request to the headers of its response, except watches.",
			[]float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}, "verb", "host"),

		leases: names{limit: maxNames},
		queues: names{limit: maxNames},
		hosts:  names{limit: maxHosts},

		finalizers: names{limit: maxNames},
		steppers:   names{limit: maxSteps},
		parts:      names{limit: maxParts},
		informers:  names{limit: maxNames},

		definitions: names{limit: maxNames},
		resources:   names{limit: maxNames},
		factories:   names{limit: maxNames},
		kinds:       names{limit: maxNames},
	}
	m.controllers.Store(&controllers{})
	m.reconciles = newReconciles(m)
	all.list = append(all.list, m.reconciles)
	all.metrics = m
	err := reg.Register(&all)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if first, ok := already.ExistingCollector.(*collectors); ok {
			return first.metrics, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: New cannot register its collectors: %w: use a separate registry, or remove the label that the registry adds", err)
	}
	return m, nil
}

// Handler returns a handler that serves all metrics of the registry that New got, for
// /metrics. If it is not a prometheus.Gatherer, as with prometheus.WrapRegistererWith, the
// handler responds 501: serve the registry that it wraps.
func (m *Metrics) Handler() http.Handler {
	if m == nil || m.gatherer == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "metrics: the registry cannot be gathered: serve the registry that it wraps", http.StatusNotImplemented)
		})
	}
	return promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{EnableOpenMetrics: m.Exemplar != nil})
}

// collectors registers everything at once: the registry accepts all families or rejects
// all.
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
	c.metrics.countObjects(time.Now())
	c.metrics.measureCaches()
	c.metrics.measureFleets(time.Now())
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

func (c *collectors) histogram(name, help string, buckets []float64, labels ...string) histograms {
	vec := newHistograms(name, help, buckets, labels...)
	c.list = append(c.list, vec)
	return vec
}

// value returns name as a label value: printable, and at most maxValue bytes long. If it
// has to change the name, it appends a hash of the name, so that the value is unique.
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

// names assigns label values: the first limit names get their own, later ones share
// "other". This bounds the number of series.
type names struct {
	limit int
	mu    sync.RWMutex // guards seen
	seen  map[string]struct{}
}

func (n *names) label(name string) string { return n.claim(value(name)) }

// claim is label for a name that is already a label value.
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

// has reports whether the label value was assigned.
func (n *names) has(value string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	_, ok := n.seen[value]
	return ok
}

// LeaderStatus sets whether this process holds the Lease, named namespace/name.
func (m *Metrics) LeaderStatus(name string, leading bool) {
	if m == nil {
		return
	}
	v := 0.0
	if leading {
		v = 1
	}
	name = m.leases.label(name)
	m.leading.WithLabelValues(name).Set(v)
	m.transitions.WithLabelValues(name) // present, as 0, before the first one
	m.slow.WithLabelValues(name)
	m.absent.WithLabelValues(name)
}

// LeaderSeen sets whether this process holds the Lease, or sees that another one does.
func (m *Metrics) LeaderSeen(name string, seen bool) {
	if m == nil {
		return
	}
	v := 0.0
	if seen {
		v = 1
	}
	m.seen.WithLabelValues(m.leases.label(name)).Set(v)
}

// LeaderTransition counts that this process has acquired the Lease. took is the time since
// the Lease was free.
func (m *Metrics) LeaderTransition(name string, took time.Duration) {
	if m == nil {
		return
	}
	name = m.leases.label(name)
	m.transitions.WithLabelValues(name).Inc()
	m.acquiring.WithLabelValues(name).Observe(took.Seconds())
	m.absent.WithLabelValues(name).Add(max(0, took.Seconds()))
}

// LeaderAbsent counts the time for which this process saw the Lease free until another one
// acquired it.
func (m *Metrics) LeaderAbsent(name string, d time.Duration) {
	if m == nil {
		return
	}
	m.absent.WithLabelValues(m.leases.label(name)).Add(max(0, d.Seconds()))
}

// LeaderRenewal counts a renewal of the Lease, its duration, and whether it was late.
func (m *Metrics) LeaderRenewal(name string, took time.Duration, slow bool) {
	if m == nil {
		return
	}
	name = m.leases.label(name)
	m.renewing.WithLabelValues(name).Observe(took.Seconds())
	if slow {
		m.slow.WithLabelValues(name).Inc()
	}
}

// ShardsOwned sets the number of shards of the group, named namespace/name, that this
// process owns, and counts the shards that it has begun to own.
func (m *Metrics) ShardsOwned(name string, owned, began int) {
	if m == nil {
		return
	}
	name = m.leases.label(name)
	m.owned.WithLabelValues(name).Set(float64(owned))
	m.began.WithLabelValues(name).Add(float64(max(0, began)))
}

// ShardsOwnerless sets the number of shards for which this process sees no owner, and counts
// their time. A negative number removes the series.
func (m *Metrics) ShardsOwnerless(name string, shards int, total time.Duration) {
	if m == nil {
		return
	}
	name = m.leases.label(name)
	if shards < 0 {
		m.ownerless.DeleteLabelValues(name)
	} else {
		m.ownerless.WithLabelValues(name).Set(float64(shards))
	}
	m.ownerlessTimes.WithLabelValues(name).Add(max(0, total.Seconds()))
}

// ShardsSurplus sets the number of shards that replicas own beyond their share.
func (m *Metrics) ShardsSurplus(name string, shards int) {
	if m == nil {
		return
	}
	m.surplus.WithLabelValues(m.leases.label(name)).Set(float64(shards))
}

// ConsistencyWaited counts that a key waited for d. timedOut reports that the wait was given up,
// because the cache did not show its writes.
func (m *Metrics) ConsistencyWaited(d time.Duration, timedOut bool) {
	if m == nil {
		return
	}
	series := m.waits.WithLabelValues("visible")
	late := m.waits.WithLabelValues("timeout") // present before the first one
	if timedOut {
		series = late
	}
	series.Observe(d.Seconds())
}
