package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/reconcile"
)

// runs notes when the calls of one key began.
type runs struct {
	began time.Time
	at    []time.Duration
}

// between counts the calls in [from, to).
func (r *runs) between(from, to time.Duration) int {
	n := 0
	for _, at := range r.at {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// firstFrom returns how long after at the first call began.
func (r *runs) firstFrom(at time.Duration) time.Duration {
	for _, began := range r.at {
		if began >= at {
			return began - at
		}
	}
	return time.Hour
}

// guarded starts a controller of the key a on the queue, whose calls take the given
// time and then do what after says.
func guarded(t *testing.T, q queueOf, takes time.Duration, configure func(*controller), after func() (result, error)) (*running, *controller, *runs, logs) {
	t.Helper()
	calls, lines := &runs{began: time.Now()}, newLogs()
	c := &controller{Name: "x", Queue: q, Reconcile: func(context.Context, string) (reconcile.Result, error) {
		calls.at = append(calls.at, time.Since(calls.began))
		time.Sleep(takes)
		return after()
	}}
	if configure != nil {
		configure(c)
	}
	return start(t, lines.Context(t.Context()), c), c, calls, lines
}

// TestHotLoop: a key whose calls make events of it falls below one call a second
// within 30 seconds and is named once, with what triggered it. What an event of
// somebody else asks for waits 8s at most.
//
// Proves R16.
func TestHotLoop(t *testing.T) {
	tests := []struct {
		name          string
		takes         time.Duration
		echoes        []time.Duration // when the events of a call come after it
		err           error
		again         time.Duration // RequeueAfter
		source        bool
		edits         time.Duration // events of somebody else, this far apart; 0 means none
		unguarded     bool
		leastAfter30s int // calls in the 30s after the first 30s
		mostAfter30s  int
		named         []string // triggers in the log
	}{
		{name: "at once", echoes: []time.Duration{0}, leastAfter30s: 3, mostAfter30s: 5},
		{name: "at once, with a source", echoes: []time.Duration{0}, source: true, leastAfter30s: 3, mostAfter30s: 5, named: []string{"widgets update"}},
		{name: "soon", takes: 20 * time.Millisecond, echoes: []time.Duration{10 * time.Millisecond}, leastAfter30s: 3, mostAfter30s: 5},
		{name: "a slow call", takes: 450 * time.Millisecond, echoes: []time.Duration{10 * time.Millisecond}, leastAfter30s: 3, mostAfter30s: 10},
		{name: "a slow watch", takes: 10 * time.Millisecond, echoes: []time.Duration{450 * time.Millisecond}, leastAfter30s: 3, mostAfter30s: 10},
		{name: "several events", takes: 10 * time.Millisecond, echoes: []time.Duration{time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond}, leastAfter30s: 3, mostAfter30s: 5},
		{name: "failing", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, err: errPlain, leastAfter30s: 3, mostAfter30s: 5},
		{name: "failing, with a source", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, err: errPlain, source: true, leastAfter30s: 3, mostAfter30s: 5, named: []string{"widgets update"}},
		{name: "with RequeueAfter 500ms", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, again: 500 * time.Millisecond, leastAfter30s: 3, mostAfter30s: 5},
		{name: "with RequeueAfter 1s", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, again: time.Second, leastAfter30s: 3, mostAfter30s: 5},
		{name: "with RequeueAfter 1.5s", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, again: 1500 * time.Millisecond, leastAfter30s: 3, mostAfter30s: 5},
		{name: "with RequeueAfter 5s", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, again: 5 * time.Second, leastAfter30s: 3, mostAfter30s: 6},
		{name: "edited every 7s", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, edits: 7 * time.Second, leastAfter30s: 4, mostAfter30s: 29},
		{name: "edited every 1.9s", takes: 5 * time.Millisecond, echoes: []time.Duration{5 * time.Millisecond}, edits: 1900 * time.Millisecond, leastAfter30s: 15, mostAfter30s: 90},
		{name: "unguarded", echoes: []time.Duration{10 * time.Millisecond}, unguarded: true, leastAfter30s: 2990, mostAfter30s: 3010},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				event := func() { q.Add("a") }
				r, _, calls, logs := guarded(t, q, tt.takes, func(c *controller) {
					c.Unguarded = tt.unguarded
					if tt.source {
						source := c.Source("widgets")
						event = func() { source.AddEvent("update", addOptions{}, "a") }
					}
				}, func() (result, error) {
					for _, echo := range tt.echoes {
						time.AfterFunc(echo, func() { event() })
					}
					return result{RequeueAfter: tt.again}, tt.err
				})
				event()
				if tt.edits > 0 {
					for n := 1; time.Duration(n)*tt.edits < time.Minute; n++ {
						time.AfterFunc(time.Duration(n)*tt.edits, func() { event() })
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				r.stop()
				if got := calls.between(30*time.Second, time.Minute); got < tt.leastAfter30s || got > tt.mostAfter30s {
					t.Errorf("%d calls in the 30s after the first 30s, want %d to %d; the first of all: %v", got, tt.leastAfter30s, tt.mostAfter30s, calls.at[:min(len(calls.at), 60)])
				}
				if tt.edits > 0 {
					for n := 1; time.Duration(n+1)*tt.edits < 50*time.Second; n++ {
						if wait := calls.firstFrom(time.Duration(n) * tt.edits); wait > 8*time.Second {
							t.Errorf("the event after %v waited for %v", time.Duration(n)*tt.edits, wait)
						}
					}
				}
				lines := logs.Find("Slowed down a key that makes itself run")
				if tt.edits == 0 && len(lines) != 1 != tt.unguarded {
					t.Fatalf("named %d times, want once: %v", len(lines), lines)
				}
				if tt.named != nil {
					if diff := cmp.Diff(tt.named, lines[0].Values["triggers"]); diff != "" || lines[0].Values["key"] != "a" {
						t.Errorf("key %v, triggers (-want +got):\n%s", lines[0].Values["key"], diff)
					}
				}
			})
		})
	}
}

// TestHonestKeys: what others cause is not slowed down: not at all if there are 1.05
// calls a second or fewer, and by at most a second at a time if there are more.
//
// Proves R16.
func TestHonestKeys(t *testing.T) {
	tests := []struct {
		name   string
		every  time.Duration // between events
		jitter time.Duration // each comes up to this much earlier or later
		events int
		takes  time.Duration
		again  time.Duration // RequeueAfter
		waits  time.Duration // the longest that an event may wait
		calls  int           // at least
	}{
		{name: "1 event a second", every: time.Second, events: 1000, takes: 100 * time.Millisecond, calls: 1000},
		{name: "1 event a second, jittered", every: time.Second, jitter: 300 * time.Millisecond, events: 1000, takes: 100 * time.Millisecond, calls: 1000},
		{name: "1.05 events a second", every: 953 * time.Millisecond, events: 1000, takes: 100 * time.Millisecond, calls: 1000},
		{name: "1 event a second, and RequeueAfter 500ms", every: 1050 * time.Millisecond, events: 300, takes: time.Millisecond, again: 500 * time.Millisecond, calls: 300},
		{name: "1 event a second, and RequeueAfter 1s", every: 1050 * time.Millisecond, events: 300, takes: time.Millisecond, again: time.Second, calls: 300},
		{name: "3 events a second", every: 333 * time.Millisecond, events: 3000, takes: 50 * time.Millisecond, waits: 1400 * time.Millisecond, calls: 2400},
		{name: "20 events a second", every: 50 * time.Millisecond, events: 12000, takes: 10 * time.Millisecond, waits: 1100 * time.Millisecond, calls: 9500},
		{name: "200 events a second", every: 5 * time.Millisecond, events: 60000, takes: time.Millisecond, waits: 1100 * time.Millisecond, calls: 30000},
		{name: "a burst", every: 10 * time.Millisecond, events: 300, takes: time.Millisecond, waits: 2100 * time.Millisecond, calls: 25},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				r, _, calls, logs := guarded(t, q, tt.takes, nil, func() (result, error) { return result{RequeueAfter: tt.again}, nil })
				rnd := rand.New(rand.NewPCG(1, 2))
				var events []time.Duration
				for n := range tt.events {
					at := time.Duration(n+1) * tt.every
					if tt.jitter > 0 {
						at += time.Duration(rnd.Int64N(int64(2*tt.jitter))) - tt.jitter
					}
					events = append(events, at)
				}
				for _, at := range events {
					time.Sleep(at - time.Since(calls.began))
					q.Add("a")
				}
				time.Sleep(time.Minute)
				r.stop()
				if len(calls.at) < tt.calls {
					t.Errorf("%d calls for %d events, want at least %d", len(calls.at), tt.events, tt.calls)
				}
				next := 0
				for _, at := range events {
					for next < len(calls.at) && calls.at[next] < at {
						next++
					}
					if next == len(calls.at) {
						t.Fatalf("the event after %v was lost", at)
					}
					if wait := calls.at[next] - at; wait > tt.waits+tt.takes {
						t.Fatalf("the event after %v waited for %v, want at most %v", at, wait, tt.waits)
					}
				}
				if lines := logs.Find("Slowed down a key that makes itself run"); len(lines) != 0 {
					t.Errorf("an honest key was named: %v", lines)
				}
			})
		})
	}
}

// TestNotForgottenInItsCall: a hot key that is being called does not come to rest by it,
// whatever other keys do meanwhile.
//
// Proves R16.
func TestNotForgottenInItsCall(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs, hot := newLogs(), &runs{began: time.Now()}
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Workers: 2, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			if key == "hot" {
				hot.at = append(hot.at, time.Since(hot.began))
				time.Sleep(300 * time.Millisecond)
				time.AfterFunc(5*time.Millisecond, func() { q.Add("hot") })
			}
			return reconcile.Result{}, nil
		}})
		q.Add("hot")
		for i := range 600 { // another key with 30 events each 200ms
			for range 30 {
				q.Add(fmt.Sprint(i))
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond)
		}
		r.stop()
		if got := hot.between(time.Minute, 2*time.Minute); got > 8 {
			t.Errorf("%d calls of the hot key in a minute, want 7", got)
		}
		named := 0
		for _, line := range logs.Find("Slowed down a key that makes itself run") {
			if line.Values["key"] == "hot" {
				named++
			}
		}
		if named != 1 {
			t.Errorf("named %d times, want once", named)
		}
	})
}

// TestAskedFor: calls that the loop or the Func has asked for itself are none of the
// guard's business.
//
// Proves R16.
func TestAskedFor(t *testing.T) {
	const every = 100 * time.Millisecond
	fixed := func() queueOf {
		return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemFastSlowRateLimiter[string](every, time.Hour, 1<<30))
	}
	tests := []struct {
		name string
		res  result
		err  error
	}{
		{"RequeueAfter", result{RequeueAfter: every}, nil},
		{"RequeueAfter and a failure", result{RequeueAfter: every}, errPlain},
		{"a rate limiter with a fixed delay", result{}, errPlain},
	}
	for _, tt := range tests {
		for _, hot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hot=%t", tt.name, hot), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var event func()
					var isHot atomic.Bool
					isHot.Store(hot)
					r, c, calls, _ := guarded(t, fixed(), 10*time.Millisecond, nil, func() (result, error) {
						if isHot.Load() {
							event()
							return result{}, nil
						}
						return tt.res, tt.err
					})
					event = func() { c.Source("widgets").Add("a") }
					event()
					if hot {
						time.Sleep(20 * time.Second)
						isHot.Store(false)
						time.Sleep(10 * time.Second)
					}
					from := time.Since(calls.began)
					time.Sleep(110 * time.Second)
					r.stop()
					if got := calls.between(from, from+110*time.Second); got < 999 || got > 1001 {
						t.Errorf("%d calls in 110s, want 1000", got)
					}
				})
			})
		}
	}
}

// TestComesToRest: a key that was hot and is not any more is as good as any other one.
//
// Proves R16.
func TestComesToRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		var hot atomic.Bool
		hot.Store(true)
		r, _, calls, _ := guarded(t, q, 0, nil, func() (result, error) {
			if hot.Load() {
				q.Add("a")
			}
			return result{}, nil
		})
		time.Sleep(20 * time.Second)
		hot.Store(false)
		time.Sleep(20 * time.Second)
		from := time.Since(calls.began)
		for range 20 {
			q.Add("a")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := calls.between(from, from+time.Second); got != 20 {
			t.Errorf("%d calls for 20 events, want 20", got)
		}
		r.stop()
	})
}

// TestHeldPriority: a key that is held back comes out with the highest priority that it
// was asked for with.
//
// Proves R16.
func TestHeldPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		var hot atomic.Bool
		hot.Store(true)
		r, _, _, _ := guarded(t, q, 0, nil, func() (result, error) {
			if hot.Load() {
				q.AddWith(addOptions{Priority: -100}, "a")
			}
			return result{}, nil
		})
		time.Sleep(500 * time.Millisecond)
		hot.Store(false)
		q.AddWith(addOptions{Priority: 7}, "a")
		q.take()
		time.Sleep(time.Minute)
		r.stop()
		var got []call
		for _, call := range q.take() {
			if call.Op == "Add" {
				got = append(got, call)
			}
		}
		if diff := cmp.Diff([]call{{Op: "Add", Key: "a", Priority: 7}}, got); diff != "" {
			t.Errorf("added after the pause (-want +got):\n%s", diff)
		}
	})
}

// TestHeldKeysAtStop: a key that is held back is not lost when Run ends, and nothing
// goes on after it.
//
// Proves R6, R7.
func TestHeldKeysAtStop(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		var stopped atomic.Bool
		r, c, calls, logs := guarded(t, q, 0, nil, func() (result, error) {
			if !stopped.Load() {
				q.Add("a")
			}
			return result{}, nil
		})
		q.Add("a")
		time.Sleep(500 * time.Millisecond)
		stopped.Store(true)
		r.stop()
		before := len(calls.at)
		if got := logs.Find("Stopped controller")[0].Values["left"]; got != 1 {
			t.Errorf("left = %v, want 1", got)
		}
		if test, ok := q.(*testQueue); ok {
			if diff := cmp.Diff([]string{"a"}, test.Pending()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			r = start(t, t.Context(), c)
			time.Sleep(time.Second)
			if got := len(calls.at) - before; got != 1 {
				t.Errorf("%d calls in the next Run, want 1", got)
			}
			r.stop()
		}
	})
}

// TestManyKeysBesideAHotOne: the guard's memory is bounded, and a hot key is found
// beside more keys than it watches.
//
// Proves R16.
func TestManyKeysBesideAHotOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		hot := &runs{began: time.Now()}
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			if key == "hot" {
				hot.at = append(hot.at, time.Since(hot.began))
				q.Add(key)
				time.Sleep(10 * time.Millisecond)
			}
			return reconcile.Result{}, nil
		}})
		for n := range 30 { // 30,000 keys a second in the first second, 1,000 in the others
			for i := range 1000 + 29000*max(0, 1-n) {
				q.Add(fmt.Sprintf("%d-%d", n, i))
			}
			time.Sleep(time.Second)
			q.take()
			if n == 1 {
				q.Add("hot")
			}
		}
		time.Sleep(30 * time.Second)
		r.stop()
		if got := hot.between(30*time.Second, time.Minute); got > 5 {
			t.Errorf("%d calls of the hot key in the 30s after the first 30s, want at most 5", got)
		}
	})
}
