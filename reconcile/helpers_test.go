package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/reconcile"
)

// newClientGoQueue is client-go's queue with a limiter whose delays are easy to
// tell from others: 1h, 2h, 4h.
func newClientGoQueue() workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, 1000*time.Hour))
}

type addOptions = controllerkit.AddOptions

// call is one thing that the controller asked of a queue.
type call struct {
	Op       string // Add, Forget, Done
	Key      string
	Priority int
	After    time.Duration
	Limited  bool
}

// testQueue offers all that a queue can: context, priorities (which it hands
// through but does not order by), pending keys. Rate limited keys come after an
// hour. It records what the controller asks for.
type testQueue struct {
	mu       sync.Mutex
	keys     map[string]*entry
	order    []string // ready keys
	failures map[string]int
	shutdown bool
	changed  chan struct{} // closed when a blocked GetContext should look again
	calls    []call
}

type entry struct {
	priority              int
	ready, dirty, running bool
	timer                 *time.Timer
}

func newTestQueue(keys ...string) *testQueue {
	q := &testQueue{keys: map[string]*entry{}, failures: map[string]int{}, changed: make(chan struct{})}
	for _, key := range keys {
		q.Add(key)
	}
	q.calls = nil
	return q
}

func (q *testQueue) AddWith(o addOptions, keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range keys {
		q.calls = append(q.calls, call{Op: "Add", Key: key, Priority: o.Priority, After: o.After, Limited: o.RateLimited})
		e := q.entryLocked(key)
		e.priority = o.Priority
		after := o.After
		if o.RateLimited {
			q.failures[key]++
			after = time.Hour
		}
		if e.timer != nil {
			e.timer.Stop()
			e.timer = nil
		}
		if after > 0 {
			e.timer = time.AfterFunc(after, func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				e.timer = nil
				q.pushLocked(key, e)
			})
			continue
		}
		q.pushLocked(key, e)
	}
}

func (q *testQueue) entryLocked(key string) *entry {
	if q.keys[key] == nil {
		q.keys[key] = &entry{}
	}
	return q.keys[key]
}

func (q *testQueue) pushLocked(key string, e *entry) {
	switch {
	case q.shutdown || e.ready:
	case e.running:
		e.dirty = true
	default:
		e.ready = true
		q.order = append(q.order, key)
		q.wakeLocked()
	}
}

func (q *testQueue) wakeLocked() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *testQueue) GetContext(ctx context.Context) (string, int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil {
		if len(q.order) > 0 {
			key := q.order[0]
			q.order = q.order[1:]
			e := q.keys[key]
			e.ready, e.running = false, true
			return key, e.priority, true
		}
		if q.shutdown {
			break
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		q.mu.Lock()
	}
	return "", 0, false
}

func (q *testQueue) Done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, call{Op: "Done", Key: key})
	e := q.keys[key]
	if !e.running {
		panic("Done of a key that does not run: " + key)
	}
	e.running = false
	if e.dirty {
		e.dirty = false
		q.pushLocked(key, e)
	}
}

func (q *testQueue) Pending() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var keys []string
	for key, e := range q.keys {
		if e.ready || e.running || e.dirty || e.timer != nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (q *testQueue) Forget(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, call{Op: "Forget", Key: key})
	delete(q.failures, key)
}

func (q *testQueue) NumRequeues(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failures[key]
}

func (q *testQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order)
}

func (q *testQueue) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shutdown = true
	for _, e := range q.keys {
		if e.timer != nil {
			e.timer.Stop()
			e.timer = nil
		}
	}
	q.wakeLocked()
}

func (q *testQueue) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.shutdown
}

func (q *testQueue) Add(key string) { q.AddWith(addOptions{}, key) }
func (q *testQueue) AddAfter(key string, after time.Duration) {
	q.AddWith(addOptions{After: after}, key)
}
func (q *testQueue) AddRateLimited(key string) { q.AddWith(addOptions{RateLimited: true}, key) }
func (q *testQueue) ShutDownWithDrain()        { panic("not used") }
func (q *testQueue) Get() (string, bool)       { panic("a queue with GetContext is asked with it") }

// take returns what was asked since the last take.
func (q *testQueue) take() []call {
	q.mu.Lock()
	defer q.mu.Unlock()
	calls := q.calls
	q.calls = nil
	return calls
}

// counts is a Metrics that remembers everything.
type counts struct {
	held      atomic.Int64
	mu        sync.Mutex
	events    []string
	took      []time.Duration
	latencies []time.Duration
	keys      []string
	failing   []string
	writes    []string
}

func (c *counts) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

func (c *counts) ReconcileWorkers(controller string, n int) { c.add("%s workers %d", controller, n) }
func (c *counts) ReconcileHeld(string)                      { c.held.Add(1) }
func (c *counts) ReconcileKeys(_ string, waiting, parked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = append(c.keys, fmt.Sprintf("%d waiting, %d parked", waiting, parked))
}

func (c *counts) ReconcileFailing(_, result string, keys int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = append(c.failing, fmt.Sprint(keys, " ", result))
}

func (c *counts) keyCounts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.keys)
}

func (c *counts) ReconcileWrote(controller, kind string, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, fmt.Sprint(controller, " ", kind, " ", sent))
}
func (c *counts) ReconcileStarted(controller string) { c.add("%s started", controller) }
func (c *counts) ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration) {
	c.add("%s %s", controller, result)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, took)
	if latency >= 0 {
		c.latencies = append(c.latencies, latency)
	}
}

// all returns every event so far.
func (c *counts) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// results returns the results of the calls so far.
func (c *counts) results() []string {
	var results []string
	for _, e := range c.all() {
		if _, word, _ := strings.Cut(e, " "); !strings.HasPrefix(word, "workers") && word != "started" {
			results = append(results, word)
		}
	}
	return results
}

// logs keeps the lines of log.
type (
	logs = testlog.Logs
	line = testlog.Line
)

func newLogs() logs { return testlog.New() }

// running is a controller whose Run was started in the bubble.
type running struct {
	t      *testing.T
	cancel context.CancelCauseFunc
	err    chan error
}

// start runs c until stop, or the end of the test.
func start[K comparable](t *testing.T, ctx context.Context, c *reconcile.Controller[K]) *running {
	t.Helper()
	ctx, cancel := context.WithCancelCause(ctx)
	r := &running{t: t, cancel: cancel, err: make(chan error, 1)}
	go func() { r.err <- c.Run(ctx) }()
	synctest.Wait()
	return r
}

// stop cancels the context and checks that Run returns nil.
func (r *running) stop() {
	r.t.Helper()
	r.cancel(nil)
	r.wait()
}

// wait checks that Run returns nil.
func (r *running) wait() {
	r.t.Helper()
	if err := <-r.err; err != nil {
		r.t.Errorf("Run() = %v, want nil", err)
	}
}

// returned reports whether Run has returned.
func (r *running) returned() bool {
	synctest.Wait()
	return len(r.err) > 0
}
func (r *recorder) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.keys)
}

// bothQueues runs a test with client-go's queue and with one that has GetContext.
func bothQueues(t *testing.T, test func(t *testing.T, q queueOf)) {
	t.Run("client-go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newClientGoQueue()
			defer q.ShutDown()
			test(t, q)
		})
	})
	t.Run("GetContext", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newTestQueue()) })
	})
}

// recorder is a Func that notes what it was called with.
type recorder struct {
	mu   sync.Mutex
	keys []string
	fn   reconcile.Func[string] // nil succeeds
}

func (r *recorder) reconcile(ctx context.Context, key string) (reconcile.Result, error) {
	r.mu.Lock()
	r.keys = append(r.keys, key)
	r.mu.Unlock()
	if r.fn == nil {
		return reconcile.Result{}, nil
	}
	return r.fn(ctx, key)
}

// event is an event without objects.
func event(kind string) controllerkit.Event { return controllerkit.Event{Kind: kind} }
