package queue

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
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
	// equal priority take turns by group. It is called once each time a key
	// enters the queue, with the queue locked: it must be quick and must not
	// call the queue. nil means one group.
	Group func(K) string

	// MaxWait bounds how long higher priorities go first without exception:
	// once a key of a lower priority has been ready for longer, one Get in four
	// serves the lower priorities. 0 means 1 min, negative means never.
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
	maxWait time.Duration
	metrics *metrics // nil means none; its methods are called with mu held

	mu sync.Mutex // guards everything below

	work    sync.Cond       // Get waits on it for a ready key
	entries map[K]*entry[K] // every ready, running and delayed key
	levels  []*level[K]     // ready keys by priority, highest first, none empty
	ready   int             // how many keys the levels hold
	served  int             // Gets since a lower priority had its turn
	running list[K]         // by start, oldest first
	delays  timeHeap[K]     // delayed keys that do not run, by due time
	seq     uint64          // numbers the delays: equal due times end in the order asked

	timer   *time.Timer // ends the earliest delay; nil until the first one
	armed   time.Time   // when timer fires; zero means stopped
	gauges  *time.Timer // refreshes the gauges; nil until a key runs and there are metrics
	ticking bool        // gauges is set

	stopping bool
	idle     chan struct{} // closed when stopping, with nothing ready or running
	settled  bool          // idle is closed
	abort    chan struct{} // closed by ShutDown to end the drains that wait; nil: no Drain since

	freeEntries pool[entry[K]]
	freeLevels  pool[level[K]]
	freeGroups  pool[group[K]]
}

type keyState uint8

const (
	stateReady   keyState = iota // in a level
	stateDelayed                 // in delays
	stateRunning                 // in running, handed out and not done
)

// entry is all that the queue knows of one key. A key has at most one, and an
// entry is in exactly one of the three states; what a running key does after
// Done is in again and later.
type entry[K comparable] struct {
	key      K
	name     string // the name of its group
	state    keyState
	priority int

	// While running: what the adds since Get asked for.
	again  bool // ready right after Done
	later  bool // delayed until at after Done; never together with again
	asks   bool // asked is set
	asked  int  // highest priority asked for
	forgot bool // Forget was called: priority does not carry over

	added   time.Time // ready, or running with again: when that was asked for
	at      time.Time // ready: since when; delayed, or running with later: due time
	started time.Time // running: since when

	seq   uint64
	index int         // position in a timeHeap, -1 if in none
	group *group[K]   // ready: where it waits
	links [2]links[K] // [0] its group's keys; [1] its level's ages, or running
}

// New makes a queue. It starts no goroutine.
func New[K comparable](cfg Config[K]) *Queue[K] {
	q := &Queue[K]{
		name:    cfg.Name,
		limiter: cfg.RateLimiter,
		groupOf: cfg.Group,
		maxWait: cfg.MaxWait,
		metrics: newMetrics(cfg.Name, cfg.MetricsProvider),
		entries: map[K]*entry[K]{},
		running: list[K]{link: 1},
		idle:    make(chan struct{}),
	}
	if q.limiter == nil {
		q.limiter = Exponential[K](defaultBase, defaultLimit)
	}
	if q.maxWait == 0 {
		q.maxWait = defaultMaxWait
	}
	q.work.L = &q.mu
	return q
}

// Add makes key ready, at priority 0 unless it has a higher one. A key that is
// ready stays where it is, a delayed key is ready at once and its delay is
// gone, a running key runs once more after Done. After ShutDown nothing is
// added.
func (q *Queue[K]) Add(key K) {
	q.add(key, request{asks: true})
}

// AddWith adds keys with a priority, and after a delay if the options have one.
// For a key that the queue holds already the highest priority and the earliest
// time win: a ready key can only rise, a delayed or running key also keeps its
// time if that is earlier.
func (q *Queue[K]) AddWith(opts AddOptions, keys ...K) {
	if !opts.RateLimited {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, key := range keys {
			q.addLocked(key, request{asks: true, priority: opts.Priority, after: opts.After})
		}
		return
	}
	for _, key := range keys {
		r := request{asks: true, priority: opts.Priority, retry: true}
		r.after = max(opts.After, q.limiter.When(key))
		q.add(key, r)
	}
}

// request is one add: who adds does not matter, only what is asked for.
type request struct {
	asks     bool // for a priority; false: keeps the key's own, or 0 if it is new
	priority int
	after    time.Duration
	retry    bool
}

func (q *Queue[K]) add(key K, r request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(key, r)
}

func (q *Queue[K]) addLocked(key K, r request) {
	e := q.entries[key]
	if q.stopping {
		// Nothing is added any more. But if the key is running, the worker or an
		// event says that it is not finished with this run: Drain must know.
		if e != nil && e.state == stateRunning && !e.again && !e.later {
			e.later, e.at = true, time.Now().Add(max(r.after, 0))
		}
		return
	}
	if r.retry && q.metrics != nil {
		q.metrics.retries.Inc()
	}
	if e == nil {
		e = q.insertLocked(key, r.priority)
		if r.after > 0 {
			q.delayLocked(e, time.Now(), r.after)
		} else {
			q.readyLocked(e, time.Now())
		}
		return
	}
	switch e.state {
	case stateReady:
		if r.asks && r.priority > e.priority {
			q.raiseLocked(e, r.priority)
		}
	case stateDelayed:
		if r.asks {
			e.priority = max(e.priority, r.priority)
		}
		now := time.Now()
		if r.after > 0 {
			q.hastenLocked(e, now, r.after)
			return
		}
		q.delays.remove(e)
		q.armLocked(now)
		q.readyLocked(e, now)
	case stateRunning:
		if r.asks && (!e.asks || r.priority > e.asked) {
			e.asks, e.asked = true, r.priority
		}
		if e.again {
			return
		}
		now := time.Now()
		if r.after <= 0 {
			e.again, e.later, e.added = true, false, now
			q.metrics.add()
		} else if due := now.Add(r.after); !e.later || due.Before(e.at) {
			e.later, e.at = true, due
		}
	}
}

// insertLocked makes the entry of a key that the queue does not hold. Group is
// the caller's code and may panic: nothing has changed until it returned.
func (q *Queue[K]) insertLocked(key K, priority int) *entry[K] {
	name := ""
	if q.groupOf != nil {
		name = q.groupOf(key)
	}
	e := q.freeEntries.get()
	*e = entry[K]{key: key, name: name, priority: priority, index: -1}
	q.entries[key] = e
	return e
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
// has to wait.
func (q *Queue[K]) GetContext(ctx context.Context) (key K, priority int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	watched := false
	for {
		if ctx.Err() != nil {
			// The wake-up that brought us here may have been meant for a key,
			// and this caller does not take it.
			if q.ready > 0 {
				q.work.Signal()
			}
			return key, 0, false
		}
		if q.ready > 0 {
			e := q.takeLocked(time.Now())
			return e.key, e.priority, true
		}
		if q.stopping {
			return key, 0, false
		}
		if !watched && ctx.Done() != nil {
			watched = true
			defer context.AfterFunc(ctx, q.wake)()
		}
		q.work.Wait()
	}
}

// wake lets every waiting Get look at its context again. It takes the lock, so
// that no Get is between looking and waiting.
func (q *Queue[K]) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work.Broadcast()
}

// takeLocked hands out the next ready key.
func (q *Queue[K]) takeLocked(now time.Time) *entry[K] {
	e := q.nextLocked(now)
	q.removeReadyLocked(e)
	e.state, e.started = stateRunning, now
	q.running.push(e)
	if q.metrics != nil {
		q.metrics.get(now.Sub(e.added))
		q.watchGaugesLocked()
	}
	return e
}

// Done says that the worker has finished with key. If the key was added again
// while it ran, it is now ready, or delayed; otherwise the queue forgets its
// priority and everything else but what the rate limiter knows. Done of a key
// that does not run does nothing.
func (q *Queue[K]) Done(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[key]
	if e == nil || e.state != stateRunning {
		return
	}
	now := time.Now()
	q.running.remove(e)
	if q.metrics != nil {
		q.metrics.work.Observe(now.Sub(e.started).Seconds())
		q.watchGaugesLocked()
	}
	switch again, later := e.again, e.later; {
	case again:
		e.settle()
		q.enqueueLocked(e, now)
	case later && (q.stopping || e.at.After(now)): // from ShutDown on no delay ends
		e.settle()
		q.pushDelayLocked(e, now)
	case later:
		e.settle()
		q.readyLocked(e, now)
	default:
		delete(q.entries, key)
		*e = entry[K]{} // holds on to nothing of the key
		q.freeEntries.put(e)
	}
	q.settleLocked()
}

// settle gives a key that goes back to the queue after Done its priority: the
// one it ran with unless Forget was called, or a higher one that was asked for.
func (e *entry[K]) settle() {
	switch {
	case e.forgot:
		e.priority = e.asked
	case e.asks:
		e.priority = max(e.priority, e.asked)
	}
	e.again, e.later, e.asks, e.asked, e.forgot = false, false, false, 0, false
}

// Forget says that key is no longer retried: the rate limiter forgets its
// failures. If the key is running it also loses its priority; after Done it has
// what was asked for while it ran, or 0. Forget does not replace Done.
func (q *Queue[K]) Forget(key K) {
	q.limiter.Forget(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.entries[key]; e != nil && e.state == stateRunning {
		e.forgot = true
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
	return q.ready
}
