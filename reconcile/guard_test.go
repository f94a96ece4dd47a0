package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/reconcile"
)

// runs has the times at which the calls of one key began.
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

// guarded starts a controller of the key a on the queue, whose calls take the given
// time and return what after returns.
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

const slowed = "Slowed down a key that runs too often"

// TestHotLoop: a key whose calls add it again, by events that are up to 5s late, runs at
// most 100 times at once and then 10 times a second. It is logged once, with its
// triggers, and counted.
//
// Proves R9.
func TestHotLoop(t *testing.T) {
	ms := func(all ...int) (d []time.Duration) {
		for _, n := range all {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	tests := []struct {
		name   string
		takes  time.Duration
		echoes []time.Duration // when the events of a call come after it
		again  time.Duration   // RequeueAfter
		err    error
		hot    bool // it comes to its limit
	}{
		{name: "at once", echoes: ms(0), hot: true},
		{name: "soon", takes: 5 * time.Millisecond, echoes: ms(10), hot: true},
		{name: "a watch that is 100ms late", echoes: ms(100)},
		{name: "a watch that is 1.2s late", echoes: ms(1200)},
		{name: "a watch that is 5s late", echoes: ms(5000)},
		{name: "events at once and after a second", echoes: ms(5, 1050), hot: true},
		{name: "events after 100ms and 1.1s", echoes: ms(100, 1100), hot: true},
		{name: "events at once and after 5s", echoes: ms(5, 5000), hot: true},
		{name: "two late events", echoes: ms(1100, 1600), hot: true},
		{name: "failing", echoes: ms(5), err: errPlain, hot: true},
		{name: "with RequeueAfter", echoes: ms(5), again: time.Second, hot: true},
		{name: "RequeueAfter alone", again: 10 * time.Millisecond, hot: true},
		{name: "a time that is over", again: -time.Second, hot: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				var source *reconcile.Source[string]
				metrics := &counts{}
				r, _, calls, logs := guarded(t, q, tt.takes, func(c *controller) {
					source = c.Source("widgets")
					c.Metrics = metrics
				}, func() (result, error) {
					for _, echo := range tt.echoes {
						time.AfterFunc(max(echo, 1), func() { source.AddEvent(event("update"), addOptions{}, "a") })
					}
					return result{RequeueAfter: tt.again}, tt.err
				})
				source.AddEvent(event("update"), addOptions{}, "a")
				time.Sleep(90 * time.Second)
				synctest.Wait()
				r.stop()
				for from := range calls.at {
					for _, window := range []time.Duration{time.Second, 10 * time.Second, 30 * time.Second} {
						began := calls.at[from]
						if got, most := calls.between(began, began+window), 100+int(window/(100*time.Millisecond)); got > most {
							t.Fatalf("%d calls in the %v from %v, want at most %d", got, window, began, most)
						}
					}
				}
				// Two late events come at one moment again and again. If each time one call has
				// both, the bucket is empty after 37s.
				if got := calls.between(time.Minute, 90*time.Second); got > 301 || tt.hot && got < 295 {
					t.Errorf("%d calls in the 30s after the first minute, want 300 of a hot key", got)
				}
				lines, held := logs.Find(slowed), metrics.held.Load()
				if want := map[bool]int{true: 1}[tt.hot]; len(lines) != want || held > 0 != tt.hot {
					t.Fatalf("logged %d times and %d times held, want %d", len(lines), held, want)
				}
				if tt.hot && (lines[0].Values["key"] != "a" || lines[0].Values["triggers"] == nil) {
					t.Errorf("logged %v, want the key and its triggers", lines[0].Values)
				}
				if tt.hot && tt.again == 0 {
					// Of two events at one moment the first call can have both; the key runs again.
					got := lines[0].Values["triggers"]
					if !cmp.Equal(got, []string{"widgets update"}) && (len(tt.echoes) < 2 || !cmp.Equal(got, []string{"requeue"})) {
						t.Errorf("triggers %v, want those of the events", got)
					}
				}
			})
		})
	}
}

// TestHonestKeys: a key with at most 10 events a second, or a burst of 100, is not delayed.
// The events of a faster one are folded, and none waits for more than 100ms.
//
// Proves R9.
func TestHonestKeys(t *testing.T) {
	tests := []struct {
		name   string
		every  time.Duration // between events
		jitter time.Duration // each comes up to this much earlier or later
		events int
		takes  time.Duration
		waits  time.Duration // the longest that an event may wait
		calls  int           // at least
	}{
		{name: "10 events a second", every: 100 * time.Millisecond, events: 3000, takes: 10 * time.Millisecond, calls: 3000},
		{name: "10 events a second, jittered", every: 100 * time.Millisecond, jitter: 40 * time.Millisecond, events: 3000, takes: 10 * time.Millisecond, calls: 3000},
		{name: "a burst of 100", every: 2 * time.Millisecond, events: 100, takes: time.Millisecond, calls: 100},
		{name: "20 events a second", every: 50 * time.Millisecond, events: 2000, takes: 10 * time.Millisecond, waits: 100 * time.Millisecond, calls: 1000},
		{name: "200 events a second", every: 5 * time.Millisecond, events: 10000, takes: time.Millisecond, waits: 100 * time.Millisecond, calls: 500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				r, _, calls, logs := guarded(t, q, tt.takes, nil, func() (result, error) { return result{}, nil })
				rnd := rand.New(rand.NewPCG(1, 2))
				var events []time.Duration
				for n := range tt.events {
					at := time.Duration(n+1) * tt.every
					if tt.jitter > 0 {
						at += time.Duration(rnd.Int64N(int64(2*tt.jitter))) - tt.jitter
					}
					events = append(events, at)
				}
				slices.Sort(events)
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
				if lines := logs.Find(slowed); len(lines) != 0 && tt.waits == 0 {
					t.Errorf("a key that was not delayed was logged: %v", lines)
				}
			})
		})
	}
}

// TestChain: a Func that works in 100 small steps, each of which is a write that brings
// the next, is delayed by at most a second in all, although events of others run the key
// 5 times a second besides.
//
// Proves R9.
func TestChain(t *testing.T) {
	const step = 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		left := atomic.Int64{}
		done := time.Time{}
		r, _, _, _ := guarded(t, q, 0, nil, func() (result, error) {
			switch n := left.Load(); {
			case n == 1:
				done = time.Now()
				fallthrough
			case n > 1:
				left.Add(-1)
				time.AfterFunc(step, func() { q.Add("a") })
			}
			return result{}, nil
		})
		for range 50 { // events of others
			time.Sleep(200 * time.Millisecond)
			q.Add("a")
		}
		began := time.Now()
		left.Store(100)
		q.Add("a")
		time.Sleep(time.Minute)
		r.stop()
		if took := done.Sub(began); done.IsZero() || took > 99*step+time.Second {
			t.Errorf("100 steps took %v, want at most %v", took, 99*step+time.Second)
		}
	})
}

// TestComesToRest: a key that was hot has all its tokens again after 10s, and is logged
// again when it is hot again.
//
// Proves R9.
func TestComesToRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		var hot atomic.Bool
		r, _, calls, logs := guarded(t, q, 0, nil, func() (result, error) {
			if hot.Load() {
				q.Add("a")
			}
			return result{}, nil
		})
		for range 2 {
			hot.Store(true)
			q.Add("a")
			time.Sleep(20 * time.Second)
			hot.Store(false)
			time.Sleep(10*time.Second + 100*time.Millisecond)
			synctest.Wait()
			from := time.Since(calls.began)
			for range 100 {
				q.Add("a")
				synctest.Wait()
			}
			if got := calls.between(from, from+time.Second); got != 100 {
				t.Errorf("%d calls for 100 events, want 100", got)
			}
			time.Sleep(10 * time.Second)
		}
		if got := len(logs.Find(slowed)); got != 2 {
			t.Errorf("logged %d times, want once for each time that it was hot", got)
		}
		r.stop()
	})
}

// TestHotKeysAreLogged: each of many hot keys is logged, but at most one in a second.
//
// Proves R9.
func TestHotKeysAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 30
		q, logs := newTestQueue(), newLogs()
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			q.Add(key)
			return reconcile.Result{}, nil
		}})
		for n := range keys {
			q.Add(fmt.Sprint(n))
		}
		time.Sleep(10 * time.Second)
		if got := len(logs.Find(slowed)); got > 11 {
			t.Errorf("%d lines in 10s, want at most one in a second", got)
		}
		time.Sleep(time.Minute)
		r.stop()
		named := map[any]int{}
		for _, line := range logs.Find(slowed) {
			named[line.Values["key"]]++
		}
		for n := range keys {
			if got := named[fmt.Sprint(n)]; got != 1 {
				t.Errorf("key %d was logged %d times, want once", n, got)
			}
		}
	})
}

// TestHeldPriority: a key that waits for a token runs with the priority of an event that
// comes meanwhile.
//
// Proves R9.
func TestHeldPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		var hot atomic.Bool
		hot.Store(true)
		r, _, calls, _ := guarded(t, q, 0, nil, func() (result, error) {
			if hot.Load() {
				q.AddWith(addOptions{Priority: -100}, "a")
			}
			return result{}, nil
		})
		time.Sleep(450 * time.Millisecond)
		synctest.Wait()
		hot.Store(false)
		before := len(calls.at)
		q.AddWith(addOptions{Priority: 7}, "a")
		synctest.Wait()
		if got := len(calls.at) - before; got != 0 {
			t.Fatalf("%d calls of a key that has no token", got)
		}
		calls7 := q.take()
		time.Sleep(time.Minute)
		r.stop()
		if got := len(calls.at) - before; got != 1 {
			t.Errorf("%d calls after it, want 1", got)
		}
		last := slices.DeleteFunc(calls7, func(c call) bool { return c.Op != "Add" })
		if got := last[len(last)-1]; got.Priority != 7 || got.After <= 0 || got.After > 100*time.Millisecond {
			t.Errorf("added again with %+v, want priority 7 and at most 100ms", got)
		}
	})
}

// TestHeldKeysAtStop: a key that waits for a token is in the queue when Run returns, and
// the next Run calls it.
//
// Proves R6, R8.
func TestHeldKeysAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("a")
		var stopped atomic.Bool
		r, c, calls, logs := guarded(t, q, 0, nil, func() (result, error) {
			if !stopped.Load() {
				q.Add("a")
			}
			return result{}, nil
		})
		time.Sleep(450 * time.Millisecond)
		stopped.Store(true)
		r.stop()
		before := len(calls.at)
		if got := logs.Find("Stopped controller")[0].Values["left"]; got != 1 {
			t.Errorf("left = %v, want 1", got)
		}
		if diff := cmp.Diff([]string{"a"}, q.Pending()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		r = start(t, t.Context(), c)
		time.Sleep(time.Second)
		r.stop()
		if got := len(calls.at) - before; got != 1 {
			t.Errorf("%d calls in the next Run, want 1", got)
		}
	})
}

// TestManyKeysBesideAHotOne: a hot key is bounded beside more keys than the guard
// remembers.
//
// Proves R9.
func TestManyKeysBesideAHotOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		hot, others := &runs{began: time.Now()}, 0
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			if key == "hot" {
				hot.at = append(hot.at, time.Since(hot.began))
				time.AfterFunc(time.Millisecond, func() { q.Add(key) })
			} else {
				others++
			}
			return reconcile.Result{}, nil
		}})
		q.Add("hot")
		for n := range 2000 { // 50,000 other keys a second
			for i := range 50 {
				q.Add(fmt.Sprintf("%d-%d", n, i))
			}
			time.Sleep(time.Millisecond)
			q.take()
		}
		synctest.Wait()
		if got := len(hot.at); got > 121 || got < 119 {
			t.Errorf("%d calls of the hot key in 2s, want 120", got)
		}
		if others != 100_000 {
			t.Errorf("%d calls of other keys, want 100,000", others)
		}
		r.stop()
	})
}
