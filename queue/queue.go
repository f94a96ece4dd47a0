package queue

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue/internal/index"
)

const (
	defaultBase    = 5 * time.Millisecond
	defaultLimit   = 5 * time.Minute
	defaultMaxWait = time.Minute
)

// Config configures a Queue. The zero value is a queue without metrics, with
// the default rate limiter and one group.
type Config[K comparable] struct {
	// Name labels the metrics. "" means none: no metrics are kept.
	Name string

	// RateLimiter decides how long AddRateLimited delays a key. The queue calls
	// it without holding its lock. nil means Exponential(5ms, 5min).
	RateLimiter workqueue.TypedRateLimiter[K]

	// MetricsProvider makes the queue's metrics, once, in New. They are called
	// with the queue locked and must not call the queue. nil means none, never
	// the process-wide provider.
	MetricsProvider workqueue.MetricsProvider

	// Group names the group of a key, for example its namespace: ready keys of
	// equal priority take turns by group. It is called by each add, by any number
	// of goroutines at once; what it says counts when the add brings the key into
	// the queue. nil means one group.
	Group func(K) string

	// MaxWait bounds how long higher priorities go first without exception:
	// once a key of a lower priority has been passed over for longer, one Get in
	// four serves the lower priorities. 0 means 1 min, negative means never.
	MaxWait time.Duration
}

// AddOptions say how AddWith adds keys. It is an alias of an unnamed struct, so
// that others can declare an interface with AddWith without importing this
// package.
//
//   - Priority: higher goes first; the highest asked for wins. 0 means normal.
//   - After: the delay. 0 means none.
//   - RateLimited: the key waits for as long as the rate limiter says, or for
//     After if that is longer. false means After alone.
type AddOptions = struct {
	Priority    int
	After       time.Duration
	RateLimited bool
}

// Queue is a work queue of keys. Make one with New; the zero value is not
// usable. All methods may be called from any goroutine at any time.
type Queue[K comparable] struct {
	name    string
	limiter workqueue.TypedRateLimiter[K]
	groupOf func(K) string // nil means one group
	metrics *metrics       // nil means none; its methods are called with mu held
	made    time.Time      // where the queue's clock starts

	mu sync.Mutex // guards everything below

	held    index.Index[K, entry] // every ready, running and delayed key
	ready   readySet              // in the order in which they are handed out
	running list                  // by start, oldest first
	delays  delays                // by due time, without those that run
	waiters waiters               // the Gets that wait

	stamp    *time.Timer // tells running keys when they started; nil until it was needed
	stamping bool        // stamp is set

	gauges  *time.Timer // refreshes the gauges; nil until a key runs and there are metrics
	ticking bool        // gauges is set
	shown   bool        // the gauges are not 0

	stopping bool
	idle     chan struct{} // closed when stopping, with nothing ready or running
	settled  bool          // idle is closed
	abort    chan struct{} // closed by ShutDown to end the drains that wait; nil: no Drain since
}

// New makes a queue. It starts no goroutine.
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
	if q.limiter == nil {
		q.limiter = Exponential[K](defaultBase, defaultLimit)
	}
	return q
}

// Add makes key ready, at priority 0 unless it has a higher one. A key that is
// ready stays where it is, a delayed key is ready at once and its delay is
// gone, a running key runs once more after Done. After ShutDown nothing is
// added.
func (q *Queue[K]) Add(key K) {
	q.add(key, &request{asks: true})
}

// AddWith adds keys with a priority, and after a delay if the options have one.
// For a key that the queue holds already the highest priority and the earliest
// time win: a ready key can only rise, a delayed or running key also keeps its
// time if that is earlier.
func (q *Queue[K]) AddWith(opts AddOptions, keys ...K) {
	for _, key := range keys {
		r := request{asks: true, priority: opts.Priority, after: opts.After, retry: opts.RateLimited}
		if opts.RateLimited {
			r.after = max(opts.After, q.limiter.When(key))
		}
		q.add(key, &r)
	}
}

// request is one add: who adds does not matter, only what is asked for.
type request struct {
	asks     bool // for a priority; false: keeps the key's own, or 0 if it is new
	priority int
	after    time.Duration
	retry    bool
}

// add asks for everything that is the caller's code before it locks.
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
		// Nothing is added any more. But if the key is running, the worker or an
		// event says that it is not finished with this run: Drain must know.
		if e := q.held.At(k); k != 0 && e.state == stateRunning && e.then == thenNothing {
			e.then, e.at = thenDelayed, after(q.now(), max(r.after, 0))
		}
		return
	}
	if r.retry && q.metrics != nil {
		q.metrics.retries.Inc()
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
		if r.asks && (!e.asks || r.priority > e.asked) {
			e.asks, e.asked = true, r.priority
		}
		switch {
		case e.then == thenReady:
		case r.after <= 0:
			e.then = thenReady
			q.askedLocked(e)
		default:
			if due := after(q.now(), r.after); e.then == thenNothing || due < e.at {
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

// addReadyLocked makes ready a key that counts as newly added.
func (q *Queue[K]) addReadyLocked(k ref, e *entry) {
	q.askedLocked(e)
	q.readyLocked(k, e)
}

// askedLocked counts a key that is ready, or will be right after Done.
func (q *Queue[K]) askedLocked(e *entry) {
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

// Get waits for a ready key and hands it out; the caller must call Done with
// it. shutdown is true, and there is no key, once the queue is shut down and
// no key is ready: the worker should end.
func (q *Queue[K]) Get() (key K, shutdown bool) {
	key, _, ok := q.GetContext(context.Background())
	return key, !ok
}

// GetWithPriority is like Get and also returns the key's priority.
func (q *Queue[K]) GetWithPriority() (key K, priority int, shutdown bool) {
	key, priority, ok := q.GetContext(context.Background())
	return key, priority, !ok
}

// GetContext is like GetWithPriority, but ok is also false once ctx is done,
// even if keys are ready; they stay in the queue for others. Workers that end
// with ctx can so be started again on the same queue. It allocates only if it
// has to wait. ctx must not be nil.
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
		done := ctx.Done() // the caller's code, and may panic: not between Unlock and Lock
		w := q.enterLocked()
		q.mu.Unlock()
		w.wait(done)
		q.mu.Lock()
		q.arriveLocked(w)
	}
}

// tryLocked hands out a key, or says whether the caller is to wait for one; ended
// says that its context has ended.
func (q *Queue[K]) tryLocked(ended bool) (k ref, e *entry, wait bool) {
	if ended {
		// The wake-up that brought the caller here may have been meant for a key,
		// and this caller does not take it.
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

// Done says that the work on key has ended. If the key was added again while it
// ran, it is now ready, or delayed; otherwise the queue forgets its priority and
// everything else but what the rate limiter knows. Done of a key that does not
// run does nothing.
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
		if now := q.now(); q.stopping || e.at > now { // from ShutDown on no delay ends
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

// settle gives a key that goes back to the queue after Done its priority: the
// one it ran with unless Forget was called, or a higher one that was asked for.
func (e *entry) settle() {
	switch {
	case e.forgot:
		e.priority = e.asked
	case e.asks:
		e.priority = max(e.priority, e.asked)
	}
	e.then, e.asks, e.asked, e.forgot = thenNothing, false, 0, false
}

// Forget says that key is no longer retried: the rate limiter forgets its
// failures. If the key is running it also loses its priority; after Done it has
// what was asked for while it ran, or 0. Forget does not replace Done.
func (q *Queue[K]) Forget(key K) {
	q.limiter.Forget(key)
	hash := q.held.Hash(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	if k, _ := q.held.Find(key, hash); k != 0 && q.held.At(k).state == stateRunning {
		q.held.At(k).forgot = true
	}
}

// NumRequeues returns what the rate limiter says of key: for the limiters of
// this package the number of AddRateLimited since Forget.
func (q *Queue[K]) NumRequeues(key K) int { return q.limiter.NumRequeues(key) }

// Len returns how many keys are ready. It is for information: it may be wrong
// as soon as it returns.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready.n
}
