package preview

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	attempts = 3                      // of a key whose calls fail
	pause    = 500 * time.Millisecond // before the next attempt, at least, for caches that are behind
	patience = 5 * time.Second        // bounds the pause, and the wait for a loop whose gate is not ready
)

// NewQueue returns a queue of a loop of the Preview. It gives out each key once, also one that is added with a
// delay or again, because a preview is of the first call. If a call fails, it gives the key out again, three times at most.
// AddRateLimited during a call shows that the call failed. If a call of [Preview.Begin] ended with an error, each other add of the key,
// during its call or up to 5s later, shows that too, unless the loop called Forget during the call, as after a success. Make the
// queues of all loops before the first loop runs.
func NewQueue[K comparable](p *Preview) workqueue.TypedRateLimitingInterface[K] {
	q := &queue[K]{preview: p, keys: map[K]*state{}}
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
	keys    map[K]*state
	ready   []K
	open    int  // keys that run, or wait for their next attempt
	named   bool // the calls of the Preview have the names of the queue's keys
	asked   bool // a loop takes keys
	down    bool
}

// state is the state of a key.
type state struct {
	given   int           // how often the queue gave it out for a call
	begun   int           // the calls of the Preview at Get
	own     int           // those of the key
	running bool          // between Get and Done
	forgot  bool          // the loop called Forget since Get
	limited bool          // the loop called AddRateLimited since Get
	added   bool          // it was added since Get
	delay   time.Duration // the longest delay of these adds
	waits   *time.Timer   // ends the wait for the next add; nil if the key does not wait
}

func (q *queue[K]) Add(key K) { q.add(key, 0, false) }

func (q *queue[K]) AddAfter(key K, delay time.Duration) { q.add(key, delay, false) }

func (q *queue[K]) AddRateLimited(key K) { q.add(key, 0, true) }

func (q *queue[K]) add(key K, delay time.Duration, limited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.down {
		return
	}
	s := q.keys[key]
	switch {
	case s == nil:
		q.keys[key] = &state{}
		q.ready = append(q.ready, key)
		q.noteLocked()
		q.more.Signal()
	case s.running:
		s.added, s.limited, s.delay = true, s.limited || limited, max(s.delay, delay)
	case s.waits != nil:
		s.waits.Stop()
		s.waits = nil
		q.retryLocked(key, delay)
	}
}

// retryLocked gives an open key out again after a while.
func (q *queue[K]) retryLocked(key K, delay time.Duration) {
	time.AfterFunc(min(max(delay, pause), patience), func() {
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
	q.noteLocked()
	for len(q.ready) == 0 && !q.down {
		q.more.Wait()
	}
	if q.down {
		return key, true
	}
	key, q.ready = q.ready[0], q.ready[1:]
	begun, own, _ := q.preview.progress(nameOf(key))
	q.keys[key] = &state{given: q.keys[key].given + 1, begun: begun, own: own, running: true}
	q.open++
	return key, false
}

// nameOf returns the name of a key in a call of package operator, and usually in that of another loop.
func nameOf[K comparable](key K) string { return strings.TrimPrefix(fmt.Sprint(key), "/") }

// Done ends a call. A key whose call has failed stays open for its next call.
func (q *queue[K]) Done(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.keys[key]
	if s == nil || !s.running {
		return
	}
	s.running = false
	begun, own, fails := q.preview.progress(nameOf(key))
	q.named = q.named || own > 0
	waits := !s.forgot && !s.added // for its next add, as a key whose gate is not ready
	if waits && own == s.own && (q.named || begun == s.begun) {
		s.given-- // there was no call
	}
	switch {
	case s.given < attempts && (s.limited || s.added && !s.forgot && fails):
		q.retryLocked(key, s.delay)
	case s.given < attempts && waits && (fails || own == s.own): // a call of another name could be that of another key
		s.waits = time.AfterFunc(patience, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			if s.waits != nil {
				s.waits = nil
				q.open--
				q.noteLocked()
			}
		})
	default:
		q.open--
		q.noteLocked()
	}
}

// noteLocked tells the Preview whether the queue has work left.
func (q *queue[K]) noteLocked() {
	q.preview.note(q, !q.asked || q.open > 0 || len(q.ready) > 0)
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
	if s := q.keys[key]; s != nil {
		return max(s.given-1, 0)
	}
	return 0
}

// Forget notes that the call of a key does not count as failed.
func (q *queue[K]) Forget(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.keys[key]; s != nil {
		s.forgot = true
	}
}
