package rows

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
)

// The code below is common to the rows about queues. The queues of the library and of
// controller-runtime use two priorities. The library's queue also takes turns between
// 100 groups. client-go's queue supports neither. Only queue/metrics measures queues
// with metrics, with one exception: controllers of controller-runtime give their queue
// a name, which enables its metrics. The rows measure that queue with and without a
// name.

const (
	clientGo          = "client-go"
	controllerRuntime = "controller-runtime"
	withoutMetrics    = "controller-runtime without metrics"
)

// queueName is the name of queues that have metrics.
const queueName = "bench"

// groups is the number of namespaces of the keys. Each has keys of both priorities.
const groups = 100

// The delays of the rate limiters. They are longer than a measurement.
const (
	limiterBase  = time.Hour
	limiterLimit = 1000 * time.Hour
)

// target is a measured queue. Its add methods take the index of a key. Keys with an odd
// index have the lower priority.
type target[K comparable] interface {
	add(i int)
	addAfter(i int, delay time.Duration)
	addRateLimited(i int)

	// addMarker adds a key without an index. The queue returns it after all other
	// keys.
	addMarker(marker K)
	// addMarkerSoon adds the marker with the shortest possible delay.
	addMarkerSoon(marker K)

	get() K
	done(K)
	len() int // the number of ready keys
	shutDown()
}

// soon is the shortest delay. A queue treats it like any other delay.
const soon = time.Nanosecond

// oursTarget calls the library's queue directly, as its users do. Therefore the keys of
// AddWith stay on the stack.
type oursTarget[K comparable] struct {
	q    *queue.Queue[K]
	keys []K
}

func (t *oursTarget[K]) add(i int) {
	if i%2 == 0 {
		t.q.Add(t.keys[i])
	} else {
		t.q.AddWith(controllerkit.AddOptions{Priority: enqueue.LowPriority}, t.keys[i])
	}
}

func (t *oursTarget[K]) addAfter(i int, delay time.Duration) {
	if i%2 == 0 {
		t.q.AddAfter(t.keys[i], delay)
	} else {
		t.q.AddWith(controllerkit.AddOptions{Priority: enqueue.LowPriority, After: delay}, t.keys[i])
	}
}

func (t *oursTarget[K]) addRateLimited(i int) {
	if i%2 == 0 {
		t.q.AddRateLimited(t.keys[i])
	} else {
		t.q.AddWith(controllerkit.AddOptions{Priority: enqueue.LowPriority, RateLimited: true}, t.keys[i])
	}
}

func (t *oursTarget[K]) addMarker(marker K) {
	t.q.AddWith(controllerkit.AddOptions{Priority: enqueue.LowPriority - 1}, marker)
}

func (t *oursTarget[K]) addMarkerSoon(marker K) { t.q.AddAfter(marker, soon) }

func (t *oursTarget[K]) get() K {
	key, _ := t.q.Get()
	return key
}

func (t *oursTarget[K]) done(key K) { t.q.Done(key) }
func (t *oursTarget[K]) len() int   { return t.q.Len() }
func (t *oursTarget[K]) shutDown()  { t.q.ShutDown() }

type clientGoTarget[K comparable] struct {
	q    workqueue.TypedRateLimitingInterface[K]
	keys []K
}

func (t *clientGoTarget[K]) add(i int)                           { t.q.Add(t.keys[i]) }
func (t *clientGoTarget[K]) addAfter(i int, delay time.Duration) { t.q.AddAfter(t.keys[i], delay) }
func (t *clientGoTarget[K]) addRateLimited(i int)                { t.q.AddRateLimited(t.keys[i]) }
func (t *clientGoTarget[K]) addMarker(marker K)                  { t.q.Add(marker) }
func (t *clientGoTarget[K]) addMarkerSoon(marker K)              { t.q.AddAfter(marker, soon) }

func (t *clientGoTarget[K]) get() K {
	key, _ := t.q.Get()
	return key
}

func (t *clientGoTarget[K]) done(key K) { t.q.Done(key) }
func (t *clientGoTarget[K]) len() int   { return t.q.Len() }
func (t *clientGoTarget[K]) shutDown()  { t.q.ShutDown() }

type controllerRuntimeTarget[K comparable] struct {
	q           priorityqueue.PriorityQueue[K]
	keys        []K
	low, lowest *int // allocated once, as a caller could
}

func (t *controllerRuntimeTarget[K]) add(i int) {
	if i%2 == 0 {
		t.q.Add(t.keys[i])
	} else {
		t.q.AddWithOpts(priorityqueue.AddOpts{Priority: t.low}, t.keys[i])
	}
}

func (t *controllerRuntimeTarget[K]) addAfter(i int, delay time.Duration) {
	if i%2 == 0 {
		t.q.AddAfter(t.keys[i], delay)
	} else {
		t.q.AddWithOpts(priorityqueue.AddOpts{Priority: t.low, After: delay}, t.keys[i])
	}
}

func (t *controllerRuntimeTarget[K]) addRateLimited(i int) {
	if i%2 == 0 {
		t.q.AddRateLimited(t.keys[i])
	} else {
		t.q.AddWithOpts(priorityqueue.AddOpts{Priority: t.low, RateLimited: true}, t.keys[i])
	}
}

func (t *controllerRuntimeTarget[K]) addMarker(marker K) {
	t.q.AddWithOpts(priorityqueue.AddOpts{Priority: t.lowest}, marker)
}

func (t *controllerRuntimeTarget[K]) addMarkerSoon(marker K) { t.q.AddAfter(marker, soon) }

func (t *controllerRuntimeTarget[K]) get() K {
	key, _ := t.q.Get()
	return key
}

func (t *controllerRuntimeTarget[K]) done(key K) { t.q.Done(key) }
func (t *controllerRuntimeTarget[K]) len() int   { return t.q.Len() }
func (t *controllerRuntimeTarget[K]) shutDown()  { t.q.ShutDown() }

// kind is a kind of keys. All runs use the same keys, so that no run counts their
// allocation.
type kind[K comparable] struct {
	name   string
	key    func(namespace, name string) K
	group  func(K) string
	marker K
	made   []K
}

func (k *kind[K]) keys(n int) []K {
	for i := len(k.made); i < n; i++ {
		k.made = append(k.made, k.key(fmt.Sprint("namespace-", i/2%groups), fmt.Sprint("name-", i)))
	}
	return k.made[:n]
}

func stringKind() *kind[string] {
	return &kind[string]{
		name: "string keys",
		key:  func(namespace, name string) string { return namespace + "/" + name },
		group: func(key string) string {
			namespace, _, _ := strings.Cut(key, "/")
			return namespace
		},
		marker: "marker",
	}
}

func structKind() *kind[types.NamespacedName] {
	return &kind[types.NamespacedName]{
		name: "struct keys",
		key: func(namespace, name string) types.NamespacedName {
			return types.NamespacedName{Namespace: namespace, Name: name}
		},
		group:  func(key types.NamespacedName) string { return key.Namespace },
		marker: types.NamespacedName{Name: "marker"},
	}
}

// opener returns an empty queue for the given keys.
type opener[K comparable] func(keys []K) target[K]

// contenders returns the contenders by name.
func (k *kind[K]) contenders(metrics bool) map[string]opener[K] {
	var provider workqueue.MetricsProvider
	if metrics {
		provider = newMetrics()
	}
	return map[string]opener[K]{
		"controllerkit":   func(keys []K) target[K] { return k.openOurs(keys, provider) },
		clientGo:          func(keys []K) target[K] { return k.openClientGo(keys, provider) },
		controllerRuntime: k.openControllerRuntime,
		withoutMetrics:    k.openWithoutMetrics,
	}
}

// newMetrics returns the library's metrics, which also client-go's queue supports.
func newMetrics() *metrics.Metrics {
	m, err := metrics.New(prometheus.NewRegistry())
	if err != nil {
		panic(err) // the registry is empty
	}
	return m
}

// openOurs returns a queue. If provider is not nil, the queue has metrics.
func (k *kind[K]) openOurs(keys []K, provider workqueue.MetricsProvider) target[K] {
	return &oursTarget[K]{keys: keys, q: queue.New(queue.Config[K]{
		Name:            queueName,
		MetricsProvider: provider,
		Group:           k.group,
		RateLimiter:     queue.Exponential[K](limiterBase, limiterLimit),
	})}
}

func (k *kind[K]) openClientGo(keys []K, provider workqueue.MetricsProvider) target[K] {
	config := workqueue.TypedRateLimitingQueueConfig[K]{MetricsProvider: provider}
	if provider != nil {
		config.Name = queueName
	}
	return &clientGoTarget[K]{keys: keys, q: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[K](limiterBase, limiterLimit), config,
	)}
}

func (k *kind[K]) openControllerRuntime(keys []K) target[K] {
	return k.openPriorityQueue(queueName, keys)
}

func (k *kind[K]) openWithoutMetrics(keys []K) target[K] {
	return k.openPriorityQueue("", keys)
}

func (k *kind[K]) openPriorityQueue(name string, keys []K) target[K] {
	return &controllerRuntimeTarget[K]{
		keys: keys,
		q: priorityqueue.New(name, func(o *priorityqueue.Opts[K]) {
			o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[K](limiterBase, limiterLimit)
		}),
		low:    new(enqueue.LowPriority),
		lowest: new(enqueue.LowPriority - 1),
	}
}

// work does a row's work on one queue after another and shuts each down. It returns the
// number of operations.
type work[K comparable] func(m *bench.Meter, k *kind[K], open opener[K], size int) (ops int)

// queueRow is a row about queues.
type queueRow struct {
	bench.Row // without Pairs

	// The row's work with both kinds of keys.
	strings work[string]
	structs work[types.NamespacedName]

	// metrics reports whether every queue has metrics.
	metrics bool

	// The amount of work against each rival. If the work takes controller-runtime
	// long, it is smaller for both contenders of the pair.
	besideClientGo, besideControllerRuntime int

	// handedOut returns the expected tally of the keys. The tests check it for every
	// contender.
	handedOut func(m *bench.Meter, ops int) tally
}

// tally counts the keys of a row.
type tally struct {
	keys int // different keys, without markers
	each int // how often the queue returned each key, or still had it at its shutdown
	left int // how often it still had a key at its shutdown
}

var queueRows []queueRow

func registerQueue(row queueRow) {
	queueRows = append(queueRows, row)
	row.Pairs = func(context.Context) ([]bench.Pair, func(), error) {
		return append(queuePairs(row, stringKind(), row.strings), queuePairs(row, structKind(), row.structs)...), nil, nil
	}
	bench.Register(row.Row)
}

// rivals returns the names of the rivals of a row.
func (row queueRow) rivals() []string {
	if row.metrics {
		return []string{clientGo, controllerRuntime}
	}
	return []string{clientGo, controllerRuntime, withoutMetrics}
}

func queuePairs[K comparable](row queueRow, k *kind[K], do work[K]) (pairs []bench.Pair) {
	contenders := k.contenders(row.metrics)
	contender := func(name, module string, size int) bench.Contender {
		return bench.Contender{Name: name, Module: module, Run: func(_ context.Context, m *bench.Meter) (int, error) {
			return do(m, k, contenders[name], size), nil
		}}
	}
	for _, rival := range row.rivals() {
		module, size := "sigs.k8s.io/controller-runtime", row.besideControllerRuntime
		if rival == clientGo {
			module, size = "k8s.io/client-go", row.besideClientGo
		}
		pairs = append(pairs, bench.Pair{
			Case:   k.name,
			Ours:   contender("controllerkit", "", size),
			Theirs: contender(rival, module, size),
		})
	}
	return pairs
}
