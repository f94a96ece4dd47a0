package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestLatency: a call that succeeds has a latency if an event led to it, since the first
// event that no successful call has handled.
func TestLatency(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		m := &counts{}
		var next atomic.Pointer[error] // what the calls return
		c := &controller{Name: "x", Queue: q, Metrics: m, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			if err := next.Load(); err != nil {
				return reconcile.Result{}, *err
			}
			return reconcile.Result{}, nil
		}}
		returns := func(err error) { next.Store(&err) }
		pods := c.Source("pods")
		var want []time.Duration
		settled := func(what string, latencies ...time.Duration) {
			t.Helper()
			want = append(want, latencies...)
			m.mu.Lock()
			defer m.mu.Unlock()
			if diff := cmp.Diff(want, m.latencies); diff != "" {
				t.Errorf("%s: latencies (-want +got):\n%s", what, diff)
				want = slices.Clone(m.latencies)
			}
		}
		pods.Add("a") // a minute before Run
		time.Sleep(time.Minute)
		r := start(t, t.Context(), c)
		time.Sleep(500 * time.Millisecond)
		pods.Add("a") // while it runs
		time.Sleep(10 * time.Second)
		settled("events before and while a call runs", 61*time.Second, 1500*time.Millisecond)

		q.Add("a")
		time.Sleep(10 * time.Second)
		settled("no Source")

		pods.AddEvent(event("update"), addOptions{After: time.Minute}, "a")
		time.Sleep(30 * time.Second)
		pods.AddEvent(event("update"), addOptions{After: 30 * time.Second}, "a")
		time.Sleep(10 * time.Minute)
		settled("a delay and two events", 61*time.Second)

		returns(errPlain)
		pods.Add("a")
		time.Sleep(10 * time.Second)
		pods.Add("a") // fails again
		time.Sleep(10 * time.Second)
		next.Store(nil)
		pods.Add("a")
		time.Sleep(10 * time.Second)
		settled("two calls that failed", 21*time.Second)
		time.Sleep(10 * time.Hour) // the retries
		settled("retries after it")

		returns(reconcile.ErrTerminal)
		pods.Add("a")
		time.Sleep(10 * time.Second)
		next.Store(nil)
		pods.Add("a")
		time.Sleep(10 * time.Second)
		settled("an event after a terminal error", time.Second)

		for range 120 { // the guard delays some
			pods.Add("b")
			time.Sleep(1001 * time.Millisecond)
		}
		r.stop()
		m.mu.Lock()
		defer m.mu.Unlock()
		if n := len(m.latencies) - len(want); n != 120 {
			t.Errorf("%d latencies of 120 events", n)
		}
	})
}

// TestLatencyOfTheFirstList: an object of a first list has no latency, however late its call is,
// because nobody knows when it changed. A change of it has one. A resync of an informer has none.
func TestLatencyOfTheFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &counts{}
		c := &controller{Name: "x", Queue: newTestQueue(), Metrics: m, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}}
		pods := c.Source("pods")
		for n := range 90 {
			pods.AddEvent(event("list"), addOptions{}, fmt.Sprint(n))
		}
		r := start(t, t.Context(), c)
		time.Sleep(30*time.Second + time.Millisecond)
		pods.AddEvent(event("update"), addOptions{}, "89") // its call begins 59s later and ends after 1s
		for n := range 89 {
			pods.AddEvent(event("resync"), addOptions{}, fmt.Sprint(n))
			pods.AddEvent(event("unchanged"), addOptions{}, fmt.Sprint(n))
		}
		time.Sleep(time.Hour)
		r.stop()
		if diff := cmp.Diff([]time.Duration{60*time.Second - time.Millisecond}, m.latencies); diff != "" {
			t.Errorf("latencies (-want +got):\n%s", diff)
		}
	})
}

// TestLatencyOfAHeldKey: a latency includes the time that the loop delays a key that runs
// too often, and a Resync has none.
func TestLatencyOfAHeldKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, q := &counts{}, newTestQueue()
		c := &controller{
			Name: "x", Queue: q, Metrics: m, Resync: time.Minute, Keys: func() []string { return []string{"resynced"} },
			Reconcile: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil },
		}
		s := c.Source("pods")
		r := start(t, t.Context(), c)
		for range 101 {
			s.Add("a")
			synctest.Wait()
		}
		time.Sleep(10 * time.Minute)
		r.stop()
		if n := len(m.latencies); n != 101 || m.latencies[n-1] != 100*time.Millisecond || slices.Max(m.latencies[:n-1]) > 0 {
			t.Errorf("%d latencies %v, want 101: 0, and 100ms at last", n, m.latencies)
		}
		if !slices.ContainsFunc(q.take(), func(c call) bool { return c.Op == "Done" && c.Key == "resynced" }) {
			t.Error("no resync: the test proves nothing")
		}
	})
}

// TestTriggers: a call is told everything that led to it since the last one, and
// nothing that came before or comes after.
func TestTriggers(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		var got [][]string
		c := &controller{Name: "x", Queue: q}
		pods, secrets := c.Source("pods"), c.Source("secrets")
		var fail, again atomic.Bool // once
		c.Reconcile = func(ctx context.Context, key string) (res reconcile.Result, err error) {
			got = append(got, reconcile.Triggers(ctx))
			time.Sleep(time.Second)
			if again.Swap(false) {
				res.RequeueAfter = time.Minute
			}
			if fail.Swap(false) {
				err = errPlain
			}
			return res, err
		}
		logs := newLogs()
		pods.AddEvent(event("add"), addOptions{Priority: 3}, "a") // before Run
		secrets.AddEvent(event(""), addOptions{}, "a")
		r := start(t, logs.Context(t.Context()), c)
		secrets.AddEvent(event("update"), addOptions{}, "a") // while it runs
		secrets.Add("a")
		time.Sleep(time.Minute)
		q.Add("a") // not by a source
		time.Sleep(time.Minute)
		again.Store(true)
		pods.AddEvent(event("delete"), addOptions{After: time.Minute}, "a")
		time.Sleep(10 * time.Minute)
		fail.Store(true)
		pods.Add("a")
		time.Sleep(10 * time.Hour)
		fail.Store(true)
		pods.Add("a")
		time.Sleep(2 * time.Second)
		pods.AddEvent(event("update"), addOptions{}, "a") // before the retry
		time.Sleep(time.Minute)
		r.stop()
		want := [][]string{
			{"pods add", "secrets"},
			{"secrets", "secrets update"},
			{"requeue"},
			{"pods delete"},
			{"requeue"},
			{"pods"},
			{"retry"},
			{"pods"},
			{"pods update"},
		}
		for n := range got {
			slices.Sort(got[n])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("triggers (-want +got):\n%s", diff)
		}
		if lines := logs.Having("class"); len(lines) != len(want) || fmt.Sprint(lines[6].Values["triggers"]) != "[retry]" {
			t.Errorf("lines of log %v, want one for each call with its triggers", lines)
		}
	})
}

// TestUnchangedBeforeRun: an event that can be of a first list, as one of managerkit.Complete, comes once. So its key
// runs although it came before Run, also beside handlers of Handle.
func TestUnchangedBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a")
		defer o.stop()
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		o.handle(c)
		c.Source("watch").AddEvent(controllerkit.Event{Kind: calls.Unchanged}, controllerkit.AddOptions{}, "b")
		running := start(t, context.WithValue(takeover(t, time.Now()), calls.Fed{}, true), c)
		if got := slices.Sorted(slices.Values(r.got())); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the Run ran %q, want a and b", got)
		}
		running.stop()
	})
}

// TestChanged: the context of a call reports whether an event of a Source may be a change.
func TestChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		add  func(c *controller, key string)
		want bool
	}{
		"a change":              {func(c *controller, key string) { c.Source("pods").AddEvent(event("update"), addOptions{}, key) }, true},
		"no kind":               {func(c *controller, key string) { c.Source("pods").Add(key) }, true},
		"a source named resync": {func(c *controller, key string) { c.Source("resync").Add(key) }, true},
		"a resync":              {func(c *controller, key string) { c.Source("pods").AddEvent(event("resync"), addOptions{}, key) }, false},
		"the Resync of the loop": {func(c *controller, key string) {
			c.Resync, c.Keys = time.Minute, func() []string { return []string{key} }
		}, false},
		"no change":       {func(c *controller, key string) { c.Source("pods").AddEvent(event("unchanged"), addOptions{}, key) }, false},
		"not by a source": {func(c *controller, key string) { c.Source("pods"); c.Queue.Add(key) }, false},
		"no source":       {func(c *controller, key string) { c.Queue.Add(key) }, false},
		"a resync beside a change": {func(c *controller, key string) {
			c.Source("pods").AddEvent(event("resync"), addOptions{}, key)
			c.Source("secrets").AddEvent(event("delete"), addOptions{}, key)
		}, true},
		"more kinds than are known": {func(c *controller, key string) {
			for n := range 70 {
				c.Source(fmt.Sprint(n)).AddEvent(event("resync"), addOptions{}, "other")
			}
			c.Source("pods").AddEvent(event("resync"), addOptions{}, key)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got any
				c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{})}
				c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
					if key == "a" {
						got = ctx.Value(calls.Changed{})
					}
					return reconcile.Result{}, nil
				}
				tt.add(c, "a")
				r := start(t, t.Context(), c)
				time.Sleep(90 * time.Second)
				r.stop()
				if got != tt.want {
					t.Errorf("Changed is %v, want %t", got, tt.want)
				}
			})
		})
	}
}

// TestTriggersOfHeldKeys: what led to a call is not lost while the gate or the guard
// holds its key back.
func TestTriggersOfHeldKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newTestQueue(), newGate("a")
		var got []string
		c := &controller{Name: "x", Queue: q, Gate: g}
		s := c.Source("pods")
		n := 0
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			got = append(got, strings.Join(reconcile.Triggers(ctx), "+"))
			if n++; n < 100 {
				s.AddEvent(event("write"), addOptions{}, "a")
			} else if n == 100 {
				s.AddEvent(event("last"), addOptions{}, "a")
			}
			return reconcile.Result{}, nil
		}
		r := start(t, t.Context(), c)
		s.AddEvent(event("held"), addOptions{}, "a")
		time.Sleep(time.Second)
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("the gate did not hold the key")
		}
		g.set("a", false)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if len(got) != 100 {
			t.Fatalf("%d calls, want 100: then the guard holds the key", len(got))
		}
		s.AddEvent(event("later"), addOptions{}, "a")
		time.Sleep(time.Minute)
		r.stop()
		if want := "pods last+pods later"; len(got) != 101 || got[0] != "pods held" || got[100] != want {
			t.Errorf("%d calls, the first %q, the last %q; want 101, %q, %q", len(got), got[0], got[len(got)-1], "pods held", want)
		}
	})
}

// TestTriggersAreBounded: more kinds of events than there is room for are told as
// other, and the events of more keys than there is room for are not told.
func TestTriggersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := map[string][]string{}
		c := &controller{Name: "x", Queue: newTestQueue()}
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			got[key] = reconcile.Triggers(ctx)
			return reconcile.Result{}, nil
		}
		s := c.Source("0")
		for n := range 100 {
			s.AddEvent(event(fmt.Sprint(n)), addOptions{}, "kinds")
		}
		for n := range 1 << 16 {
			s.Add(fmt.Sprint("key", n))
		}
		r := start(t, t.Context(), c)
		time.Sleep(time.Second)
		r.stop()
		kinds := got["kinds"]
		if len(kinds) != 64 || kinds[0] != "0 0" || kinds[62] != "0 62" || kinds[63] != "other" {
			t.Errorf("%d kinds %q, want 63 kinds and other", len(kinds), kinds)
		}
		if diff := cmp.Diff([]string{"requeue"}, got[fmt.Sprint("key", 1<<16-1)]); diff != "" {
			t.Errorf("triggers of the last key (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"other"}, got["key1"]); diff != "" {
			t.Errorf("triggers of the first keys (-want +got):\n%s", diff)
		}
	})
}

// TestNobodyKnows: without a Source nothing is told, and a context of something else
// has no triggers.
func TestNobodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
			if got := reconcile.Triggers(ctx); got != nil {
				t.Errorf("Triggers = %q, want nil", got)
			}
			return reconcile.Result{}, nil
		}})
		time.Sleep(time.Second)
		r.stop()
		if got := reconcile.Triggers(t.Context()); got != nil {
			t.Errorf("Triggers = %q, want nil", got)
		}
	})
}

type spanKey struct{}

// TestHook: it stands around each call, with what a tracer wants to know; the call
// gets its context.
func TestHook(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		var got []string
		note := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
		gate := newGate()
		c := &controller{Name: "x", Queue: q, Timeout: time.Minute, Gate: gate}
		c.Hook = func(ctx context.Context, key string) (context.Context, func(string, error)) {
			note("begin %s %v %d", key, reconcile.Triggers(ctx), reconcile.Attempt(ctx))
			if key == "nothing" {
				return ctx, nil
			}
			if _, ok := ctx.Deadline(); !ok || klog.FromContext(ctx).GetSink() == nil {
				t.Errorf("the context of the hook is not that of the call")
			}
			own := ctx
			return context.WithValue(ctx, spanKey{}, key), func(result string, err error) {
				note("end %s %s %v %v", key, result, err, own.Err())
			}
		}
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			note("call %s %v", key, ctx.Value(spanKey{}))
			switch key {
			case "fails":
				return reconcile.Result{}, errPlain
			case "panics":
				panic("boom")
			}
			return reconcile.Result{}, nil
		}
		r := start(t, t.Context(), c)
		for _, key := range []string{"works", "fails", "panics", "nothing"} {
			c.Source("pods").Add(key)
			time.Sleep(time.Second)
		}
		r.stop()
		want := []string{
			"begin works [pods] 1", "call works works", "end works success <nil> context canceled",
			"begin fails [pods] 1", "call fails fails", "end fails error plain context canceled",
			"begin panics [pods] 1", "call panics panics", "end panics panic reconcile: panic: boom context canceled",
			"begin nothing [pods] 1", "call nothing <nil>",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestHookLogs: the call's line of log has the values of Hook once beside those of the call,
// and a call whose Hook changes nothing has the same line as without a Hook. Attempt counts
// the calls since the last success.
func TestHookLogs(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs := newLogs()
		var attempts []int
		c := &controller{Name: "x", Queue: q}
		c.Hook = func(ctx context.Context, key string) (context.Context, func(string, error)) {
			attempts = append(attempts, reconcile.Attempt(ctx))
			if len(attempts) == 3 {
				return ctx, nil
			}
			return klog.NewContext(ctx, klog.FromContext(ctx).WithValues("traceID", len(attempts))), nil
		}
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			if attempts[len(attempts)-1] < 3 {
				return reconcile.Result{}, errPlain
			}
			return reconcile.Result{}, nil
		}
		r := start(t, logs.Context(t.Context()), c)
		c.Source("pods").Add("a")
		time.Sleep(10 * time.Hour)
		c.Source("pods").Add("a")
		time.Sleep(10 * time.Hour)
		r.stop()
		if diff := cmp.Diff([]int{1, 2, 3, 1, 2, 3}, attempts[:min(6, len(attempts))]); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if n := reconcile.Attempt(t.Context()); n != 0 {
			t.Errorf("Attempt of another context is %d", n)
		}
		lines := logs.Having("class")
		if len(lines) < 4 {
			t.Fatalf("%d lines, want at least 4", len(lines))
		}
		for i, want := range []struct {
			traceID, triggers any
			attempts          int
		}{{1, []string{"pods"}, 1}, {2, []string{"retry"}, 2}, {nil, []string{"retry"}, 3}, {4, []string{"pods"}, 1}} {
			got := lines[i].Values
			if got["traceID"] != want.traceID || !cmp.Equal(got["triggers"], want.triggers) || got["attempts"] != want.attempts || got["key"] != "a" || got["controller"] != "x" {
				t.Errorf("line %d has the values %v, want %+v", i, got, want)
			}
		}
	})
}

// TestResync: each key of Keys runs once in every Resync, at a moment of its own that
// stays, at low priority; keys that come and go are noticed; nothing is left when Run
// returns.
func TestResync(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		const period = time.Hour
		began := time.Now()
		at := map[string][]time.Duration{}
		var triggers []string
		keys := []string{"gone"}
		for n := range 1000 {
			keys = append(keys, fmt.Sprint("key", n))
		}
		c := &controller{Name: "x", Queue: q, Resync: period, Keys: func() []string {
			if time.Since(began) > period/2 {
				return keys[1:]
			}
			return keys
		}}
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			at[key] = append(at[key], time.Since(began))
			triggers = append(triggers, reconcile.Triggers(ctx)...)
			return reconcile.Result{}, nil
		}
		r := start(t, t.Context(), c)
		time.Sleep(3*period - time.Nanosecond)
		synctest.Wait()
		r.stop()
		minutes, moments := make([]int, 61), map[time.Duration]bool{}
		for key, times := range at {
			want := 3
			if key == "gone" {
				want = 1
			}
			if len(times) != want {
				t.Errorf("%s ran after %v, want %d times", key, times, want)
			}
			for n, d := range times {
				if d < time.Duration(n)*period || d > time.Duration(n+1)*period {
					t.Errorf("%s ran after %v", key, times)
				}
				if n > 0 && (d-times[n-1]-period).Abs() > time.Minute {
					t.Errorf("%s ran after %v, want the same moment in each", key, times)
				}
			}
			minutes[int(times[0]/time.Minute)]++
			moments[times[0]] = true
		}
		if most := slices.Max(minutes); len(at) != 1001 || most > 60 || len(moments) < 990 {
			t.Errorf("%d keys at %d moments, at most %d in a minute, want 1001, nearly as many, and some 17", len(at), len(moments), most)
		}
		if len(triggers) != 3001 || slices.ContainsFunc(triggers, func(s string) bool { return s != "resync" }) {
			t.Errorf("%d triggers, want 3001 times resync", len(triggers))
		}
		if test, ok := q.(*testQueue); ok {
			for _, call := range test.take() {
				if call.Op == "Add" && (call.Priority != -100 || call.After > period/64) {
					t.Fatalf("%+v, want priority -100 and at most a 64th of the period", call)
				}
			}
		}
	})
}

// TestResyncEnds: with the queue that is shut down under it, too.
//
// Proves R8.
func TestResyncEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newClientGoQueue()
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: returning(result{}, nil), Resync: time.Hour, Keys: func() []string { return nil }})
		time.Sleep(time.Minute)
		q.ShutDown()
		synctest.Wait()
		if err := <-r.err; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want that the queue was shut down", err)
		}
	})
}
