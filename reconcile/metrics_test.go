package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile"
)

type hookKey struct{}

// inContext notes what Hook had put into the context of each report.
type inContext struct {
	counts
	got []any
}

func (m *inContext) ReconcileFinished(ctx context.Context, _, result string, _, _ time.Duration) {
	m.got = append(m.got, result, ctx.Value(hookKey{}))
}

// TestMetricsContext: the reports of a call have the context that Hook returned, before the
// end of its span. Without a Hook they have the context of the call.
func TestMetricsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &inContext{}
		n := 0
		c := &controller{
			Name: "x", Queue: newTestQueue(), Metrics: m,
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				if n == 1 {
					panic("once")
				}
				return reconcile.Result{}, nil
			},
			Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
				n++
				return context.WithValue(ctx, hookKey{}, n), func(string, error) { m.got = append(m.got, "end") }
			},
		}
		pods := c.Source("pods")
		r := start(t, t.Context(), c)
		pods.Add("a")
		synctest.Wait()
		pods.Add("a")
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]any{"panic", 1, "end", "success", 2, "end"}, m.got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}

		m.got, c.Hook = nil, nil
		c.Queue = newTestQueue("a")
		r = start(t, context.WithValue(t.Context(), hookKey{}, "Run"), c)
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]any{"success", "Run"}, m.got); diff != "" {
			t.Errorf("reports without a Hook (-want +got):\n%s", diff)
		}
	})
}

// TestFailing: Metrics has the number of keys whose last call ended with each result that is no
// success, also of keys that do not run again by themselves, until the next call of the key has
// ended, and until Run ends.
func TestFailing(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		m := &counts{}
		returns := map[string]error{}
		c := &controller{Name: "x", Queue: q, Metrics: m, MaxAttempts: 2, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			return reconcile.Result{}, returns[key]
		}}
		r := start(t, t.Context(), c)
		call := func(what, key string, err error, want ...string) {
			t.Helper()
			returns[key] = err
			q.Add(key)
			time.Sleep(time.Minute)
			m.mu.Lock()
			defer m.mu.Unlock()
			if diff := cmp.Diff(want, m.failing); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
			m.failing = nil
		}
		call("a success", "a", nil)
		call("a terminal error", "a", reconcile.ErrTerminal, "1 terminal")
		call("another key", "b", reconcile.ErrTerminal, "2 terminal")
		call("the same again", "a", reconcile.ErrTerminal)
		call("another result", "a", errRejected, "1 terminal", "1 rejected")
		call("two results of one key", "c", errPlain, "1 error") // and parked
		call("it succeeds", "a", nil, "0 rejected")
		call("a parked key that succeeds", "c", nil, "0 error")
		call("an unknown key that succeeds", "d", nil)
		r.stop()
		if diff := cmp.Diff([]string{"0 terminal"}, m.failing); diff != "" {
			t.Errorf("at the end of Run (-want +got):\n%s", diff)
		}
	})
}

// TestLatencyOfAParkedKey: parking settles the events of a key, so that the time for which it was
// parked is no latency.
func TestLatencyOfAParkedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := &counts{}, errPlain
		c := &controller{Name: "x", Queue: newTestQueue(), Metrics: m, MaxAttempts: 2, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			return reconcile.Result{}, err
		}}
		r := start(t, t.Context(), c)
		c.Source("pods").Add("a")
		time.Sleep(9 * time.Hour)
		if diff := cmp.Diff([]string{"0 waiting, 1 parked"}, m.keyCounts()); diff != "" {
			t.Errorf("after two failures (-want +got):\n%s", diff)
		}
		err = nil
		c.Source("pods").Add("a")
		synctest.Wait()
		r.stop()
		if diff := cmp.Diff([]time.Duration{0}, m.latencies); diff != "" {
			t.Errorf("latencies (-want +got):\n%s", diff)
		}
	})
}

// TestFailingKeepsItsCount: a call that the end of Run cancels does not change the number.
func TestFailingKeepsItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, q := &counts{}, newTestQueue("a")
		hangs := false
		c := &controller{Name: "x", Queue: q, Metrics: m, Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
			if hangs {
				<-ctx.Done()
				return reconcile.Result{}, ctx.Err()
			}
			return reconcile.Result{}, reconcile.ErrTerminal
		}}
		r := start(t, t.Context(), c)
		hangs = true
		q.Add("a")
		synctest.Wait()
		r.cancel(lostError{})
		r.wait()
		if diff := cmp.Diff([]string{"1 terminal", "0 terminal"}, m.failing); diff != "" {
			t.Errorf("a terminal error, and the end of Run (-want +got):\n%s", diff)
		}
		if got := m.results(); got[len(got)-1] != "cancelled" {
			t.Errorf("results %q, want a cancelled call at last", got)
		}
	})
}

// TestWrites: Metrics gets the writes that a call made with its context or one derived from
// it. Without Metrics, nothing is counted.
func TestWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &counts{}
		for _, m := range []reconcile.Metrics{metrics, nil, (*counts)(nil)} {
			rec := &recorder{fn: func(ctx context.Context, _ string) (reconcile.Result, error) {
				calls.NoteWrite(ctx, calls.Apply, true)
				derived, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				calls.NoteWrite(derived, calls.Status, false)
				return reconcile.Result{}, nil
			}}
			r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: rec.reconcile, Metrics: m})
			synctest.Wait()
			r.stop()
			if n := len(rec.got()); n != 1 {
				t.Fatalf("%d calls, want 1", n)
			}
		}
		if diff := cmp.Diff([]string{"x apply true", "x status false"}, metrics.writes); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		calls.NoteWrite(t.Context(), calls.Apply, true) // another context is no error
	})
}
