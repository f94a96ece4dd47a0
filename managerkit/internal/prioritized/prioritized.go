// Package prioritized gives a queue the methods of controller-runtime's priority queue. It
// does not import controller-runtime, so that controller-runtime's own tests can run with it.
package prioritized

import (
	"context"
	"time"

	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// Queue is a queue whose ShutDown ends Get at once and removes all keys. [New] makes one.
type Queue[K comparable] struct {
	*queue.Queue[K]
	open context.Context // done after ShutDown
	shut context.CancelFunc
}

// New returns a queue.
func New[K comparable](cfg queue.Config[K]) *Queue[K] {
	open, shut := context.WithCancel(context.Background())
	return &Queue[K]{queue.New(cfg), open, shut}
}

// Get is GetWithPriority without the priority.
func (q *Queue[K]) Get() (key K, shutdown bool) {
	key, _, shutdown = q.GetWithPriority()
	return key, shutdown
}

// GetWithPriority waits for a key. After ShutDown it returns no key.
func (q *Queue[K]) GetWithPriority() (key K, priority int, shutdown bool) {
	key, priority, ok := q.GetContext(q.open)
	return key, priority, !ok
}

// ShutDown ends Get at once, and removes the keys that no Get returns any more, so that the metric
// of the depth does not keep them.
func (q *Queue[K]) ShutDown() {
	q.shut()
	q.Queue.ShutDown()
	q.Clear()
}

// Done removes the key also if it was added again before ShutDown.
func (q *Queue[K]) Done(key K) {
	q.Queue.Done(key)
	if q.open.Err() != nil {
		q.Clear()
	}
}

// Options has the fields of controller-runtime's priorityqueue.AddOpts, which can be converted to it.
type Options struct {
	After       time.Duration
	RateLimited bool
	Priority    *int
}

// Of returns the options for a queue. With a delay and a rate limit the longer time counts,
// where controller-runtime's queue takes the shorter one.
func (o Options) Of() controllerkit.AddOptions {
	return controllerkit.AddOptions{Priority: ptr.Deref(o.Priority, 0), After: o.After, RateLimited: o.RateLimited}
}
