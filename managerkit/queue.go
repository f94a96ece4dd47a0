package managerkit

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/controllerkit/controllerkit/reconcile"
)

// intake is the queue that controller-runtime sees: its event handlers add keys to the loop's
// queue, and its worker runs the loop.
type intake[request comparable] struct {
	workqueue.TypedRateLimitingInterface[request]
	dispatch *dispatch[request]
	source   *reconcile.Source[request]
	shutDown sync.Once
}

var _ priorityqueue.PriorityQueue[int] = (*intake[int])(nil)

type addOptions = struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}

func (q *intake[request]) add(opts addOptions, keys ...request) {
	kind := "event"
	if opts.Priority == handler.LowPriority {
		kind = "unchanged" // of the first list or of a resync
	}
	q.source.AddEvent(kind, opts, keys...)
}

func (q *intake[request]) Add(key request) { q.add(addOptions{}, key) }

func (q *intake[request]) AddAfter(key request, after time.Duration) {
	q.add(addOptions{After: after}, key)
}

func (q *intake[request]) AddRateLimited(key request) { q.add(addOptions{RateLimited: true}, key) }

// AddWithOpts adds keys as an event handler asks. With a delay and a rate limit the longer
// time counts, where controller-runtime's queue takes the shorter one.
func (q *intake[request]) AddWithOpts(o priorityqueue.AddOpts, keys ...request) {
	q.add(addOptions{Priority: ptr.Deref(o.Priority, 0), After: o.After, RateLimited: o.RateLimited}, keys...)
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

// ShutDown begins the loop's drain. The loop's queue is shut down after it, so that it keeps
// the keys that did not run.
func (q *intake[request]) ShutDown() { q.shutDown.Do(func() { close(q.dispatch.stop) }) }

func (q *intake[request]) ShutDownWithDrain() { q.ShutDown() }
