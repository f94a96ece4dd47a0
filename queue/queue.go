package queue

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/queue/internal/index"
)

const (
	defaultBase    = 5 * time.Millisecond
	defaultLimit   = 5 * time.Minute
	defaultMaxWait = time.Minute
)

// Config configures a Queue. The zero value is a queue without metrics, with the default
// rate limiter and one group.
type Config[K comparable] struct {
	// Name is the label of the metrics. "" means no metrics.
	Name string

	// RateLimiter returns the delay of AddRateLimited. The queue does not hold its lock
	// during the call. nil means Exponential(5ms, 5m).
	RateLimiter workqueue.TypedRateLimiter[K]

	// MetricsProvider makes the metrics, in New. The queue updates them under its lock,
	// so they must not call the queue. nil means no metrics; the provider of the process
	// is never used.
	MetricsProvider workqueue.MetricsProvider

	// Group returns the group of a key, e.g. its namespace. Ready keys of one priority
	// take turns by group. Each add calls Group, concurrently with other calls. The group
	// of a key does not change while the queue holds the key. nil means one group.
	Group func(K) string

	// MaxWait is the time for which higher priorities always go first. If a key of a
	// lower priority is passed over for longer, one Get in four serves the lower priority
	// with the oldest key, with its groups still in turn, until no such key is left. The
	// time starts with the first Get that passes over the key, and may be 1/32 too long.
	// If a group has more such keys than its turns allow, its keys wait longer. 0 means
	// 1m. A negative value means that lower priorities wait without a limit.
	MaxWait time.Duration
}

// Queue is a work queue of keys. [New] makes one; the zero value cannot be used. All
// methods can be called concurrently.
//
// # The life of a key
//
// An added key is ready, or delayed until its delay ends. Get returns a ready key, which
// then runs until Done. An add of a running key takes effect at Done. The queue holds each
// key once:
//
//	            new key         ready key       delayed key      running key, at Done
//	Add         ready           no change       ready            ready
//	AddAfter    delayed         no change       the earlier      delayed; the earlier time; ready
//	                                            time             after an Add, or if it is over
//	no add      -               -               -                forgotten
//
// AddRateLimited is AddAfter with the delay of the rate limiter. AddWith is any of them
// with a priority. The delay of AddAfter starts with the call.
//
// A key has the highest priority that an add since its last Get gave it. Add gives 0, AddWith
// the given priority. AddAfter and AddRateLimited give the priority that the key has, so a
// retry keeps it. After a Forget of a running key they give 0.
//
// A key must be equal to itself: a floating-point NaN runs forever. A key with a value that
// cannot be compared panics in the caller, as in a map.
//
// # Differences from client-go
//
//   - Add ends a delay. A queue of client-go runs the key twice. AddAfter of a ready key is
//     a no-op. A queue of client-go runs the key again later.
//   - ShutDownWithDrain also waits for ready keys, as client-go documents, and for keys that
//     run again. Any number of callers return. A queue of client-go waits for running keys
//     only.
//   - Done of a key that does not run is a no-op. A queue of client-go returns a ready key
//     twice at once.
//   - Equal delays end in the order of their calls.
//   - The default rate limiter has jitter, and no bucket for all keys together.
//   - workqueue_retries_total counts rate-limited adds only. The gauges of running keys are
//     0 as soon as no key runs. The metrics provider of the process is not used.
type Queue[K comparable] struct {
	name    string
	limiter workqueue.TypedRateLimiter[K]
	groupOf func(K) string // nil means one group
	metrics *metrics       // nil means no metrics; used with mu held
	made    time.Time      // the start of the queue's clock

	mu sync.Mutex // guards everything below

	held    index.Index[K, entry] // every ready, running and delayed key
	ready   readySet              // in the order of Get
	running list                  // by start, oldest first
	delays  delays                // by end, without running keys
	waiters waiters               // the waiting calls of Get

	stamp    *time.Timer // sets the start of running keys; nil until the first use
	stamping bool        // stamp is set

	gauges  *time.Timer // refreshes the gauges; nil until the first use
	ticking bool        // gauges is set
	shown   bool        // the gauges are not 0

	stopping bool
	idle     chan struct{} // closed if the queue is stopped and no key is ready or running
	settled  bool          // idle is closed
	abort    chan struct{} // ShutDown closes it to end waiting drains; nil without such drains
}

// New returns a queue. It starts no goroutine. New panics if a metric that the provider makes
// is nil.
func New[K comparable](cfg Config[K]) *Queue[K] {
	q := &Queue[K]{
		name:    cfg.Name,
		limiter: cfg.RateLimiter,
		groupOf: cfg.Group,
		metrics: newMetrics(cfg.Name, cfg.MetricsProvider),
		made:    time.Now().Add(-1), // so that no time is 0
		held:    index.New[K, entry](),
		idle:    make(chan struct{}),
	}
	q.ready = newReadySet(&q.held.Blocks, cmp.Or(cfg.MaxWait, defaultMaxWait))
	q.delays = newDelays(&q.held.Blocks)
	if kube.IsNil(q.limiter) {
		q.limiter = Exponential[K](defaultBase, defaultLimit)
	}
	return q
}

// Add makes key ready, with priority 0 or the higher priority that it has. If the key is
// ready, it keeps its position. If it is delayed, its delay ends. If it is running, it
// becomes ready at Done. After ShutDown, Add is a no-op.
func (q *Queue[K]) Add(key K) {
	q.add(key, &request{asks: true})
}

// AddWith adds keys with a priority, and after a delay if the options have one. If the queue
// holds a key already, the higher priority and the earlier time win. If a ready key gets a
// higher priority, it becomes the youngest of that priority, and its wait for MaxWait starts
// again.
func (q *Queue[K]) AddWith(opts controllerkit.AddOptions, keys ...K) {
	for _, key := range keys {
		r := request{asks: true, priority: opts.Priority, after: opts.After}
		if opts.RateLimited {
			r.after = max(opts.After, q.When(key))
		}
		q.add(key, &r)
	}
}

// request is one add.
type request struct {
	asks     bool // it gives a priority; false: the key keeps its own
	priority int
	after    time.Duration
}

// add calls the code of the caller before it locks the queue.
func (q *Queue[K]) add(key K, r *request) {
	hash := q.held.Hash(key)
	group := ""
	if q.groupOf != nil {
		group = q.groupOf(key)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(key, hash, group, r)
}

func (q *Queue[K]) addLocked(key K, hash uint32, group string, r *request) {
	k, at := q.held.Find(key, hash)
	if q.stopping {
		// The add is dropped. But if the key is running, this run does not finish it, and
		// Drain must report it.
		if e := q.held.At(k); k != 0 && e.state == stateRunning && e.then == thenForgotten {
			e.then, e.at = thenDelayed, after(q.now(), max(r.after, 0))
		}
		return
	}
	if k == 0 {
		q.addNewLocked(key, hash, at, group, r)
		return
	}
	e := q.held.At(k)
	switch e.state {
	case stateReady:
		if r.asks && r.priority > e.priority {
			q.ready.remove(e)
			e.priority = r.priority
			q.ready.push(k, e)
		}
	case stateDelayed:
		if r.asks {
			e.priority = max(e.priority, r.priority)
		}
		if r.after <= 0 {
			q.delays.Remove(delay{ref: k})
			if q.delays.Len() == 0 {
				q.armLocked(0) // stops the timer
			}
			q.addReadyLocked(k, e)
			return
		}
		now := q.now()
		if due := after(now, r.after); due < e.at {
			q.hastenLocked(k, e, now, due)
		}
	case stateRunning:
		if !r.asks {
			e.keeps = true
		} else if !e.asks || r.priority > e.asked {
			e.asks, e.asked = true, r.priority
		}
		switch {
		case e.then == thenReady:
		case r.after <= 0:
			e.then = thenReady
			q.countLocked(e)
		default:
			if due := after(q.now(), r.after); e.then == thenForgotten || due < e.at {
				e.then, e.at = thenDelayed, due
			}
		}
	}
}

// addNewLocked adds a key that the queue does not hold.
func (q *Queue[K]) addNewLocked(key K, hash uint32, at index.Place, group string, r *request) {
	k, e := q.held.Insert(key, hash, at)
	if e.priority = r.priority; q.groupOf != nil {
		e.group = q.ready.groups.enter(group)
	}
	if r.after <= 0 {
		q.addReadyLocked(k, e)
		return
	}
	now := q.now()
	e.at = after(now, r.after)
	q.delayLocked(k, e, now)
}

// addReadyLocked makes a key ready and counts the add.
func (q *Queue[K]) addReadyLocked(k ref, e *entry) {
	q.countLocked(e)
	q.readyLocked(k, e)
}

// countLocked counts the add of a key that is ready, or becomes ready at Done.
func (q *Queue[K]) countLocked(e *entry) {
	if q.metrics != nil {
		e.at = q.now()
		q.metrics.add()
	}
}

func (q *Queue[K]) readyLocked(k ref, e *entry) {
	e.state = stateReady
	q.ready.push(k, e)
	q.wakeLocked()
}

// Get waits for a ready key and returns it. The caller must call Done with the key. If the
// queue is stopped and no key is ready, shutdown is true, and the worker should end. A key
// that is added again while it runs becomes ready at Done, so the worker that calls Done
// must call Get again, as with client-go.
func (q *Queue[K]) Get() (key K, shutdown bool) {
	key, _, ok := q.GetContext(context.Background())
	return key, !ok
}

// GetWithPriority is like Get and also returns the key's priority.
func (q *Queue[K]) GetWithPriority() (key K, priority int, shutdown bool) {
	key, priority, ok := q.GetContext(context.Background())
	return key, priority, !ok
}

// GetContext is like GetWithPriority, but if ctx is done, ok is false, even if keys are
// ready. These keys stay in the queue, so new workers can use the queue later. GetContext
// allocates only if it waits. ctx must not be nil.
func (q *Queue[K]) GetContext(ctx context.Context) (key K, priority int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		k, e, wait := q.tryLocked(ctx.Err() != nil)
		if e != nil {
			return q.held.Key(k), e.priority, true
		}
		if !wait {
			return key, 0, false
		}
		done := ctx.Done() // may panic, so not between Unlock and Lock
		w := q.enterLocked()
		q.mu.Unlock()
		w.wait(done)
		q.mu.Lock()
		q.arriveLocked(w)
	}
}

// tryLocked returns a key, or reports whether the caller must wait for one. If ended is
// true, the caller's context is done.
func (q *Queue[K]) tryLocked(ended bool) (k ref, e *entry, wait bool) {
	if ended {
		// The caller may have been woken for a key that it does not take.
		q.wakeLocked()
		return 0, nil, false
	}
	if q.ready.n == 0 {
		return 0, nil, !q.stopping
	}
	now := int64(unknown)
	if q.metrics != nil || q.stopping || q.ready.lower.Len() > 0 {
		now = q.now()
	} else if !q.stamping {
		q.stampSoonLocked()
	}
	k, e = q.ready.next(now)
	e.state, e.order = stateRunning, now
	q.running.push(q.held.Blocks, k, e)
	q.wakeLocked()
	if q.metrics != nil {
		q.metrics.get(time.Duration(now - e.at))
		q.watchGaugesLocked()
	}
	return k, e, false
}

// Done ends the run of a key. If the key was added again while it ran, it becomes ready or
// delayed. Otherwise the queue forgets it. The rate limiter still has its failures. If the
// key is not running, Done is a no-op.
func (q *Queue[K]) Done(key K) {
	hash := q.held.Hash(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	k, at := q.held.Find(key, hash)
	if k == 0 {
		return
	}
	e := q.held.At(k)
	if e.state != stateRunning {
		return
	}
	q.running.remove(q.held.Blocks, e)
	if q.metrics != nil {
		q.metrics.work.Observe(time.Duration(q.now() - e.order).Seconds())
		q.watchGaugesLocked()
	}
	switch next := e.then; next {
	case thenReady:
		e.settle()
		q.readyLocked(k, e)
	case thenDelayed:
		e.settle()
		if now := q.now(); q.stopping || e.at > now { // no delay ends after ShutDown
			q.delayLocked(k, e, now)
		} else {
			q.addReadyLocked(k, e)
		}
	default:
		if q.groupOf != nil {
			q.ready.groups.leave(e.group)
		}
		q.held.Delete(k, at)
	}
	q.settleLocked()
}

// settle sets the priority of a key that returns to the queue at Done: the highest that the
// adds since Get gave.
func (e *entry) settle() {
	switch {
	case !e.keeps:
		e.priority = e.asked
	case e.forgot:
		e.priority = max(0, e.asked) // asked is 0 if no add gave one
	case e.asks:
		e.priority = max(e.priority, e.asked)
	}
	e.then, e.asks, e.keeps, e.asked, e.forgot = thenForgotten, false, false, 0, false
}

// Forget clears the failures of a key in the rate limiter. If the key is running, the adds
// without a priority no longer keep that of the key: they give 0. The caller must still call
// Done.
func (q *Queue[K]) Forget(key K) {
	q.limiter.Forget(key)
	hash := q.held.Hash(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	if k, _ := q.held.Find(key, hash); k != 0 && q.held.At(k).state == stateRunning {
		q.held.At(k).forgot = true
	}
}

// NumRequeues returns the number of failures that the rate limiter has counted for a key.
// The limiters of this package count the calls of AddRateLimited since Forget.
func (q *Queue[K]) NumRequeues(key K) int { return q.limiter.NumRequeues(key) }

// Len returns the number of ready keys. The number may change at any time.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready.n
}
