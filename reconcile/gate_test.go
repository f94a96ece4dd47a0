package reconcile_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/reconcile"
)

// gate is a Gate whose keys are ready or not as the test says.
type gate struct {
	mu     sync.Mutex
	closed map[string]bool
	wakes  map[string]func()
	events []string
	inside bool // call wake inside Ready
}

func (g *gate) Begin(ctx context.Context, key string) context.Context {
	g.note("begin " + key)
	return context.WithValue(ctx, gateKey{}, key)
}

func (g *gate) End(key string) { g.note("end " + key) }

func (g *gate) Ready(key string, wake func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed[key] {
		return true
	}
	g.events = append(g.events, "wait "+key)
	if g.inside {
		g.closed[key] = false
		wake()
		return false
	}
	g.wakes[key] = wake
	return false
}

func (g *gate) note(event string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, event)
}

func (g *gate) set(key string, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[key] = closed
	if wake := g.wakes[key]; wake != nil && !closed {
		delete(g.wakes, key)
		wake()
	}
}

func (g *gate) got() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.events)
}

func newGate(closed ...string) *gate {
	g := &gate{closed: map[string]bool{}, wakes: map[string]func(){}}
	for _, key := range closed {
		g.closed[key] = true
	}
	return g
}

// TestGateHoldsKeys: a key runs no earlier than its gate says, once per wake, and
// others pass it.
func TestGateHoldsKeys(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		g, metrics, logs := newGate("a"), &counts{}, newLogs()
		rec := &recorder{fn: func(ctx context.Context, key string) (reconcile.Result, error) {
			if ctx.Value(gateKey{}) != key {
				t.Errorf("the context of the call is not the one from Begin")
			}
			g.note("run " + key)
			if key == "c" {
				panic("boom")
			}
			return reconcile.Result{}, nil
		}}
		for _, key := range []string{"a", "b", "c"} {
			q.Add(key)
		}
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Gate: g, Metrics: metrics})
		q.Add("a") // an event does not ask the gate again, whose wake is to come
		time.Sleep(time.Minute)
		want := []string{"wait a", "begin b", "run b", "end b", "begin c", "run c", "end c"}
		if diff := cmp.Diff(want, g.got()); diff != "" {
			t.Errorf("gate calls while a must wait (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"success", "panic"}, metrics.results()); diff != "" {
			t.Errorf("results while a must wait (-want +got):\n%s", diff)
		}
		if n := q.NumRequeues("a"); n != 0 {
			t.Errorf("waiting cost %d failures, want 0", n)
		}
		if lines := logs.Find("Waiting for the cache"); len(lines) != 2 || lines[0].Level != 4 || lines[0].Values["key"] != "a" {
			t.Errorf("logged %v, want two lines at V(4) for a", lines)
		}
		g.set("a", false)
		synctest.Wait()
		if diff := cmp.Diff([]string{"1 waiting, 0 parked", "0 waiting, 0 parked"}, metrics.keyCounts()); diff != "" {
			t.Errorf("waiting keys (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(append(want, "begin a", "run a", "end a"), g.got()); diff != "" {
			t.Errorf("gate calls (-want +got):\n%s", diff)
		}
		r.stop()
	})
}

// TestGateKeepsPriority: a key that waits for its gate returns with the highest priority of
// its events.
func TestGateKeepsPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newTestQueue(), newGate("a")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile, Gate: g})
		for _, priority := range []int{-100, 7, 3} {
			q.AddWith(addOptions{Priority: priority}, "a")
			synctest.Wait()
		}
		q.take()
		g.set("a", false)
		synctest.Wait()
		if got := q.take(); len(got) == 0 || got[0] != (call{Op: "Add", Key: "a", Priority: 7}) {
			t.Errorf("the queue was asked for %+v, want the key with priority 7 first", got)
		}
		r.stop()
	})
}

// TestGateWakesWhileStopping: a key that its gate wakes while a call still runs is left, and
// not lost.
func TestGateWakesWhileStopping(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		g, logs := newGate("a"), newLogs()
		release := make(chan struct{})
		q.Add("a")
		q.Add("b")
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Gate: g, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			if key != "b" {
				t.Errorf("a call for %s", key)
			}
			<-release
			return reconcile.Result{}, nil
		}})
		r.cancel(nil)
		synctest.Wait()
		g.set("a", false)
		close(release)
		r.wait()
		if got := logs.Find("Stopped controller")[0].Values["left"]; got != 1 {
			t.Errorf("left = %v, want 1", got)
		}
		if test, ok := q.(*testQueue); ok {
			if diff := cmp.Diff([]string{"a"}, test.Pending()); diff != "" {
				t.Errorf("left in the queue (-want +got):\n%s", diff)
			}
		}
	})
}

// explained is a gate that knows what its keys wait for.
type explained struct {
	*gate
	reasons map[string]error
}

func (g explained) EnsureReady(key string) error { return g.reasons[key] }

// TestLongWaitIsLogged: a key that waits for long is logged once for each wait,
// and a key that waits for less, or that its gate says is ready, is not.
func TestLongWaitIsLogged(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		g, logs := newGate("slow", "quick", "ready"), newLogs()
		stale := errors.New("the cache of pods is at version 5, behind the written 9")
		r := start(t, logs.Context(t.Context()), &controller{
			Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile,
			Gate: explained{g, map[string]error{"slow": stale, "quick": stale}},
		})
		lines := func() []testlog.Line { return logs.Having("after") }
		for _, key := range []string{"slow", "quick", "ready"} {
			q.Add(key)
		}
		time.Sleep(9 * time.Second)
		g.set("quick", false)
		q.Add("slow") // an event does not begin another wait
		if got := lines(); len(got) != 0 {
			t.Errorf("logged %v after 9s", got)
		}
		time.Sleep(3 * time.Second)
		for range 2 {
			got := lines()
			if len(got) != 1 || got[0].Values["key"] != "slow" || got[0].Values["controller"] != "x" || !errors.Is(got[0].Err, stale) {
				t.Fatalf("logged %v, want one line for slow with the error of the gate", got)
			}
			time.Sleep(time.Minute)
		}

		// The next wait is logged again.
		g.set("slow", false)
		synctest.Wait()
		g.set("slow", true)
		q.Add("slow")
		time.Sleep(12 * time.Second)
		if got := lines(); len(got) != 2 {
			t.Errorf("%d lines after the second wait, want 2", len(got))
		}
		r.stop()
	})

	// A gate without EnsureReady has no reasons.
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs := newLogs()
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile, Gate: newGate("a")})
		q.Add("a")
		time.Sleep(time.Minute)
		if got := logs.Having("after"); len(got) != 1 || got[0].Values["key"] != "a" || got[0].Err == nil {
			t.Errorf("logged %v, want one line for a with an error", got)
		}
		r.stop()
	})
}

// TestNilPointers: a nil pointer as Gate or Metrics is none.
func TestNilPointers(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		calls := 0
		rec := &recorder{fn: func(context.Context, string) (reconcile.Result, error) {
			if calls++; calls == 1 {
				return reconcile.Result{}, errStale
			}
			return reconcile.Result{}, nil
		}}
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Gate: (*gate)(nil), Metrics: (*counts)(nil)})
		q.Add("a")
		time.Sleep(time.Minute)
		for range 200 { // more than a key may run at once
			q.Add("a")
			synctest.Wait()
		}
		if got := len(rec.got()); got < 3 || got > 200 {
			t.Errorf("%d calls, want the guard to hold the key", got)
		}
		r.stop()
	})
}

// TestGateMayWakeInsideReady: no deadlock and no lost wake-up.
func TestGateMayWakeInsideReady(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		g, rec := newGate("a"), &recorder{}
		g.inside = true
		q.Add("a")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Gate: g})
		if diff := cmp.Diff([]string{"a"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		r.stop()
	})
}

// TestStaleWaitsForGate: after a stale error or a conflict the gate decides, however
// soon or late that is; if it has nothing to wait for, the retry still does not come
// at once.
func TestStaleWaitsForGate(t *testing.T) {
	for _, tt := range []struct {
		err       error
		wait      time.Duration
		min, most time.Duration // of the retry if the gate has nothing to wait for
	}{
		{errStale, time.Millisecond, 199 * time.Millisecond, 300 * time.Millisecond}, // the second in a row
		{errStale, time.Hour, 199 * time.Millisecond, 300 * time.Millisecond},
		{errConflict, time.Millisecond, 49 * time.Millisecond, 250 * time.Millisecond},
		{errConflict, time.Hour, 49 * time.Millisecond, 250 * time.Millisecond},
	} {
		bothQueues(t, func(t *testing.T, q queueOf) {
			g := newGate()
			wrote := true
			rec := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
				if wrote {
					g.set(key, true)
				}
				return reconcile.Result{}, tt.err
			}}
			q.Add("a")
			r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Gate: g})
			time.Sleep(tt.wait)
			if got := len(rec.got()); got != 1 {
				t.Errorf("%d calls before the gate is ready, want 1", got)
			}
			wrote = false
			g.set("a", false)
			synctest.Wait()
			if got := len(rec.got()); got != 2 {
				t.Errorf("%d calls once the gate is ready after %v, want 2", got, tt.wait)
			}
			time.Sleep(tt.min)
			if got := len(rec.got()); got != 2 {
				t.Errorf("%d calls %v after the second, want 2", got, tt.min)
			}
			time.Sleep(tt.most - tt.min)
			if got := len(rec.got()); got < 3 {
				t.Errorf("%d calls %v after the second, want 3", got, tt.most)
			}
			if n := q.NumRequeues("a"); n != 0 {
				t.Errorf("%v costs %d failures, want 0", tt.err, n)
			}
			r.stop()
		})
	}
}
