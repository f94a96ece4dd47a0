// Package priorityqueue replaces controller-runtime's package of that name while its tests run:
// it has the same declarations, and a queue of package queue behind them.
package priorityqueue

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/third_party/forked/golang/btree"

	"sigs.k8s.io/controller-runtime/pkg/internal/metrics"
	"sigs.k8s.io/controller-runtime/pkg/internal/prioritized"

	"github.com/controllerkit/controllerkit/queue"
)

type AddOpts struct {
	After       time.Duration
	RateLimited bool
	Priority    *int
}

type PriorityQueue[T comparable] interface {
	workqueue.TypedRateLimitingInterface[T]
	AddWithOpts(o AddOpts, items ...T)
	GetWithPriority() (item T, priority int, shutdown bool)
}

type Opts[T comparable] struct {
	RateLimiter    workqueue.TypedRateLimiter[T]
	MetricProvider workqueue.MetricsProvider
	Log            logr.Logger
}

type Opt[T comparable] func(*Opts[T])

// New returns a queue with the defaults of controller-runtime's New.
func New[T comparable](name string, o ...Opt[T]) PriorityQueue[T] {
	var opts Opts[T]
	for _, set := range o {
		set(&opts)
	}
	if opts.RateLimiter == nil {
		opts.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[T](5*time.Millisecond, 1000*time.Second)
	}
	if opts.MetricProvider == nil {
		opts.MetricProvider = metrics.WorkqueueMetricsProvider{}
	}
	q := &priorityqueue[T]{rateLimiter: opts.RateLimiter}
	q.Queue = prioritized.New(queue.Config[T]{
		Name:            name,
		RateLimiter:     (*limiter[T])(q),
		MetricsProvider: depthless{opts.MetricProvider},
	})
	return q
}

type priorityqueue[T comparable] struct {
	*prioritized.Queue[T]

	rateLimiter workqueue.TypedRateLimiter[T] // the tests replace it

	// The tests use these parts of controller-runtime's queue. Here they have no effect.
	locked         sets.Set[T]
	lockedLock     sync.Mutex
	ready, waiting bTree[*item[T]]
	now            func() time.Time
	tick           func(time.Duration) <-chan time.Time
}

func (w *priorityqueue[T]) AddWithOpts(o AddOpts, items ...T) {
	w.AddWith(prioritized.Options(o).Of(), items...)
}

// limiter is the rate limiter that the queue has at the time of a call.
type limiter[T comparable] priorityqueue[T]

func (l *limiter[T]) When(key T) time.Duration { return l.rateLimiter.When(key) }
func (l *limiter[T]) Forget(key T)             { l.rateLimiter.Forget(key) }
func (l *limiter[T]) NumRequeues(key T) int    { return l.rateLimiter.NumRequeues(key) }

// depthless counts the depth of all priorities as that of priority 0.
type depthless struct{ workqueue.MetricsProvider }

func (p depthless) NewDepthMetric(name string) workqueue.GaugeMetric {
	if by, ok := p.MetricsProvider.(metrics.MetricsProviderWithPriority); ok {
		return depth{by.NewDepthMetricWithPriority(name)}
	}
	return p.MetricsProvider.NewDepthMetric(name)
}

type depth struct {
	metrics.DepthMetricWithPriority
}

func (d depth) Inc() { d.DepthMetricWithPriority.Inc(0) }
func (d depth) Dec() { d.DepthMetricWithPriority.Dec(0) }

// item and bTree are parts of controller-runtime's queue that the tests use. This queue has no
// item, so clone is wrong: a test of it fails, and is in the table of differences.
type item[T comparable] struct {
	Key          T
	AddedCounter uint64
	Priority     int
	ReadyAt      *time.Time
}

func (i *item[T]) clone() item[T] { return item[T]{ReadyAt: i.ReadyAt} }

type bTree[T any] interface {
	ReplaceOrInsert(item T) (T, bool)
	Delete(item T) (T, bool)
	Ascend(iterator btree.ItemIterator[T])
	Len() int
}
