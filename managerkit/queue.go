package managerkit

import (
	"cmp"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/managerkit/internal/prioritized"
	"github.com/controllerkit/controllerkit/managerkit/internal/standby"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// NewQueue returns a function for controller.Options.NewQueue, by which a controller with
// controller-runtime's own workers uses a [queue.Queue]:
//
//	options := controller.Options{NewQueue: managerkit.NewQueue(queue.Config[ctrl.Request]{})}
//	err := ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}).WithOptions(options).Complete(r)
//
// The keys of the first list and of resyncs have a lower priority than keys of events, as in
// controller-runtime's queue. After MaxWait they get a share of the workers. These fields of
// cfg are set if they are empty:
//
//   - Name and RateLimiter: those of the controller
//   - Group: the namespace, for a ctrl.Request
//   - MetricsProvider: that of [NewMetrics], unless it fails
//
// When the manager stops, the workers get no more keys, as with controller-runtime's queue, and
// workqueue_depth becomes 0.
func NewQueue[request comparable](cfg queue.Config[request]) func(controllerName string, limiter workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
	return func(controllerName string, limiter workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
		cfg := cfg
		cfg.Name = cmp.Or(cfg.Name, controllerName)
		if cfg.RateLimiter == nil {
			cfg.RateLimiter = limiter
		}
		if cfg.Group == nil {
			cfg.Group = namespaces[request]()
		}
		if cfg.MetricsProvider == nil {
			if m, err := NewMetrics(); err == nil {
				cfg.MetricsProvider = m
			}
		}
		return newPriorityQueue(cfg)
	}
}

// newPriorityQueue returns a queue with the methods of controller-runtime's queue.
func newPriorityQueue[request comparable](cfg queue.Config[request]) *priorityQueue[request] {
	return &priorityQueue[request]{prioritized.New(cfg)}
}

type priorityQueue[request comparable] struct{ *prioritized.Queue[request] }

var _ priorityqueue.PriorityQueue[int] = (*priorityQueue[int])(nil)

// AddWithOpts adds keys as an event handler or a worker asks.
func (q *priorityQueue[request]) AddWithOpts(o priorityqueue.AddOpts, keys ...request) {
	q.AddWith(prioritized.Options(o).Of(), keys...)
}

// intake is the queue that controller-runtime sees: its event handlers add keys to the loop's
// queue, and its worker runs the loop.
type intake[request comparable] struct {
	workqueue.TypedRateLimitingInterface[request]
	dispatch *dispatch[request]
	source   *reconcile.Source[request]
}

var _ priorityqueue.PriorityQueue[int] = (*intake[int])(nil)

func (q *intake[request]) add(opts controllerkit.AddOptions, keys ...request) {
	kind := "event"
	if opts.Priority == handler.LowPriority || !q.dispatch.led.Load() { // of a first list, which comes once
		kind = calls.Unchanged
	}
	for _, key := range keys {
		q.source.AddEvent(q.dispatch.generations.Event(kind, key), opts, key)
	}
}

func (q *intake[request]) Add(key request) { q.add(controllerkit.AddOptions{}, key) }

func (q *intake[request]) AddAfter(key request, after time.Duration) {
	q.add(controllerkit.AddOptions{After: after}, key)
}

func (q *intake[request]) AddRateLimited(key request) {
	q.add(controllerkit.AddOptions{RateLimited: true}, key)
}

// AddWithOpts adds keys as an event handler asks.
func (q *intake[request]) AddWithOpts(o priorityqueue.AddOpts, keys ...request) {
	q.add(prioritized.Options(o).Of(), keys...)
}

// Get runs the loop, and returns when it has ended.
func (q *intake[request]) Get() (key request, shutdown bool) {
	q.dispatch.run()
	return key, true
}

// GetWithPriority is Get.
func (q *intake[request]) GetWithPriority() (key request, priority int, shutdown bool) {
	key, shutdown = q.Get()
	return key, 0, shutdown
}

// ShutDown has no effect on a loop that has begun: the context by which controller-runtime comes
// to call it also stops the loop, at whose end its queue is shut down, unless it can be used again.
func (q *intake[request]) ShutDown() { q.dispatch.end() }

// ShutDownWithDrain is ShutDown.
func (q *intake[request]) ShutDownWithDrain() { q.ShutDown() }

// keeper is the queue of a standby's controller: its keys go to the next Run of the loop, and
// its worker never gets one.
type keeper[request comparable] struct {
	standby.Queue
	*priorityQueue[request]
	source *reconcile.Source[request]
}

var _ priorityqueue.PriorityQueue[int] = (*keeper[int])(nil)

func (k *keeper[request]) keep(keys ...request) { k.source.Keep(calls.Delete, keys...) }

func (k *keeper[request]) Add(key request)                                      { k.keep(key) }
func (k *keeper[request]) AddAfter(key request, _ time.Duration)                { k.keep(key) }
func (k *keeper[request]) AddRateLimited(key request)                           { k.keep(key) }
func (k *keeper[request]) AddWithOpts(_ priorityqueue.AddOpts, keys ...request) { k.keep(keys...) }
