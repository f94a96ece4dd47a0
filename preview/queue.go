package preview

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	attempts = 3                      // of a key whose calls fail
	pause    = 500 * time.Millisecond // before the next attempt, for caches that are behind
)

// NewQueue returns a queue of a loop of the Preview. It gives out each key once, also one that is added with a
// delay or again, because a preview is of the first call. If a loop adds a key by AddRateLimited
// during its call, as after an error, the key is given out again, three times at most. Make the queues of all loops before the first loop runs.
func NewQueue[K comparable](p *Preview) workqueue.TypedRateLimitingInterface[K] {
	q := &queue[K]{preview: p, keys: map[K]int{}}
	q.more.L = &q.mu
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queues == nil {
		p.queues = map[any]bool{}
	}
	p.queues[q] = true
	return q
}

type queue[K comparable] struct {
	preview *Preview
	mu      sync.Mutex // guards the fields below
	more    sync.Cond  // ready has a key, or the queue is shut down
	keys    map[K]int  // how often each was given out
	ready   []K
	open    int  // keys that run, or wait for their next attempt
	asked   bool // a loop takes keys
	down    bool
}

func (q *queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.keys[key]; known || q.down {
		return
	}
	q.keys[key] = 0
	q.ready = append(q.ready, key)
	q.more.Signal()
}

func (q *queue[K]) AddAfter(key K, _ time.Duration) { q.Add(key) }

func (q *queue[K]) AddRateLimited(key K) {
	q.Add(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.keys[key]; n == 0 || n >= attempts || q.down {
		return
	}
	q.open++
	time.AfterFunc(pause, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.open--
		q.ready = append(q.ready, key)
		q.more.Signal()
	})
}

func (q *queue[K]) Get() (key K, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = true
	q.checkLocked()
	for len(q.ready) == 0 && !q.down {
		q.more.Wait()
	}
	if q.down {
		return key, true
	}
	key, q.ready = q.ready[0], q.ready[1:]
	q.keys[key]++
	q.open++
	return key, false
}

func (q *queue[K]) Done(K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
	q.checkLocked()
}

// checkLocked tells the Preview if the queue has no work left.
func (q *queue[K]) checkLocked() {
	if q.asked && q.open == 0 && len(q.ready) == 0 {
		q.preview.idle(q)
	}
}

func (q *queue[K]) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.down = true
	q.more.Broadcast()
}

func (q *queue[K]) ShutDownWithDrain() { q.ShutDown() }

func (q *queue[K]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.down
}

func (q *queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready)
}

func (q *queue[K]) NumRequeues(key K) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.keys[key]-1, 0)
}

func (q *queue[K]) Forget(K) {}
