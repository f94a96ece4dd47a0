package queue_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/queue"
)

// trial is one of the two queues in one case. It records what happens, for a comparison.
type trial struct {
	*testing.T
	workqueue.TypedRateLimitingInterface[string]

	start time.Time
	mu    sync.Mutex // guards seen
	seen  []string
}

func (q *trial) note(what ...any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = append(q.seen, fmt.Sprint(what...))
}

// get takes a key if one is ready, and notes which.
func (q *trial) get() string {
	synctest.Wait()
	if q.Len() == 0 && !q.ShuttingDown() {
		q.note("none")
		return ""
	}
	key, shutdown := q.Get()
	if shutdown {
		q.note("shutdown")
		return ""
	}
	q.note(key)
	return key
}

// run takes and finishes every key that is ready.
func (q *trial) run() {
	synctest.Wait()
	for q.Len() > 0 {
		q.Done(q.get())
	}
}

// work starts a worker that needs no time for a key, and notes each with the
// time since the case began.
func (q *trial) work() { q.workFor(0) }

func (q *trial) workFor(d time.Duration) {
	go func() {
		for {
			key, shutdown := q.Get()
			if shutdown {
				return
			}
			q.note(key, "@", time.Since(q.start))
			time.Sleep(d)
			q.Done(key)
		}
	}()
}

// drain calls ShutDownWithDrain in a goroutine, and notes when it returned.
func (q *trial) drain(name string) {
	go func() {
		q.ShutDownWithDrain()
		q.note(name, "@", time.Since(q.start))
	}()
	synctest.Wait()
}

type conformanceCase struct {
	name string
	run  func(q *trial)
	want string // what is seen of either queue

	// Where client-go's queue does something else on purpose or by mistake.
	why    string
	theirs string
}

// TestConformance tests both queues against the documentation of client-go, and against
// the differences that the comment of Queue lists.
//
// It proves Q10.
func TestConformance(t *testing.T) {
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	}
	queues := map[string]func() workqueue.TypedRateLimitingInterface[string]{
		"queue": func() workqueue.TypedRateLimitingInterface[string] {
			return queue.New(queue.Config[string]{RateLimiter: limiter()})
		},
		"client-go": func() workqueue.TypedRateLimitingInterface[string] {
			return workqueue.NewTypedRateLimitingQueue(limiter())
		},
	}
	for _, tc := range conformance() {
		t.Run(tc.name, func(t *testing.T) {
			if (tc.why == "") != (tc.theirs == "") || tc.theirs == tc.want {
				t.Fatal("a difference needs a reason and an outcome of its own")
			}
			for name, newQueue := range queues {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						q := &trial{T: t, TypedRateLimitingInterface: newQueue(), start: time.Now()}
						tc.run(q)
						q.ShutDown() // ends the workers, and client-go's goroutine
						synctest.Wait()
						want := tc.want
						if name == "client-go" && tc.theirs != "" {
							want = tc.theirs
						}
						if diff := cmp.Diff(want, strings.Join(q.seen, " ")); diff != "" {
							t.Errorf("what happened (-want +got):\n%s", diff)
						}
					})
				})
			}
		})
	}
}

// TestConformanceGarbage tests that neither queue keeps a finished key in memory. The queue
// of client-go keeps a copy of a delayed key until another key takes its place.
//
// It proves Q9 and Q10.
func TestConformanceGarbage(t *testing.T) {
	type object struct{ _ [1 << 10]byte }
	own := queue.New(queue.Config[*object]{})
	theirs := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[*object]())
	once := func(q workqueue.TypedRateLimitingInterface[*object]) {
		key, _ := q.Get()
		q.Done(key)
	}
	for _, tc := range []struct {
		name string
		q    workqueue.TypedRateLimitingInterface[*object]
		use  func(o *object)
	}{
		{"queue", own, func(o *object) {
			own.Add(o)
			once(own)
		}},
		{"queue, delayed", own, func(o *object) {
			own.AddRateLimited(o)
			once(own)
			own.Forget(o)
		}},
		{"client-go", theirs, func(o *object) {
			theirs.Add(o)
			once(theirs)
		}},
	} {
		gone := func() weak.Pointer[object] {
			o := &object{}
			tc.use(o)
			return weak.Make(o)
		}()
		if !testcost.Freed(func() bool { return gone.Value() == nil }) {
			t.Errorf("%s: holds on to a finished key", tc.name)
		}
		runtime.KeepAlive(tc.q)
	}
	own.ShutDown()
	theirs.ShutDown()
}
