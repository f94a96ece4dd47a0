package reconcile_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// reasonGate is a gate with a reason.
type reasonGate struct {
	*gate
	reason string
}

func (g reasonGate) EnsureReady(key string) error { return errors.New(g.reason + " " + key) }

// TestSnapshot: each state of a key, by Snapshot and by SnapshotOf.
func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue("gated", "parked", "hot", "failing", "fine")
		c := &controller{Name: "widgets", Queue: q, Workers: 2, MaxAttempts: 1, Gate: reasonGate{newGate("gated"), "behind"}}
		source := c.Source("widgets")
		c.Reconcile = func(_ context.Context, key string) (reconcile.Result, error) {
			switch key {
			case "hot":
				return reconcile.Result{RequeueAfter: 1}, nil
			case "parked":
				return reconcile.Result{}, errPlain
			case "failing":
				return reconcile.Result{RequeueAfter: time.Hour}, staleErr{}
			}
			return reconcile.Result{}, nil
		}
		if got := c.Snapshot(); got.Running || len(got.Keys) > 0 {
			t.Errorf("before Run: %+v", got)
		}
		began := time.Now()
		r := start(t, t.Context(), c)
		time.Sleep(2 * time.Second)
		source.AddEvent(event("update"), addOptions{After: time.Hour}, "failing")
		synctest.Wait()

		gated := controllerkit.LoopKey{Key: "gated", State: "gated", Since: began, Reason: "behind gated"}
		parked := controllerkit.LoopKey{Key: "parked", State: "parked", Attempts: 1, Class: "error"}
		hot := controllerkit.LoopKey{Key: "hot", State: "hot"}
		failing := controllerkit.LoopKey{Key: "failing", State: "failing", Attempts: 1, Class: "stale", Triggers: []string{"widgets update"}}
		want := controllerkit.LoopState{
			Name: "widgets", Running: true, Workers: 2, Gated: 1, Parked: 1, Hot: 1, Failing: 1,
			Keys: []controllerkit.LoopKey{failing, gated, hot, parked},
		}
		got := c.Snapshot()
		slices.SortFunc(got.Keys, func(a, b controllerkit.LoopKey) int { return cmp.Compare(a.Key, b.Key) })
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("Snapshot (-want +got):\n%s", diff)
		}
		want.Keys = []controllerkit.LoopKey{hot, {Key: "fine"}, gated, failing, parked}
		if diff := gocmp.Diff(want, c.SnapshotOf("hot", "fine", "gated", "failing", "parked")); diff != "" {
			t.Errorf("SnapshotOf (-want +got):\n%s", diff)
		}
		if got := c.SnapshotOf(); len(got.Keys) > 0 || got.Gated != 1 {
			t.Errorf("SnapshotOf() = %+v, want counts and no key", got)
		}
		r.stop()
		if got := c.Snapshot(); got.Running || len(got.Keys) > 0 {
			t.Errorf("after Run: %+v", got)
		}
	})
}

// TestSnapshotOnce: a key in two states is counted in both, and listed in the first.
func TestSnapshotOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newGate()
		q := newTestQueue("a")
		c := &controller{Name: "widgets", Queue: q, MaxAttempts: 1, Gate: reasonGate{gate, "behind"}}
		c.Reconcile = func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, errPlain }
		r := start(t, t.Context(), c)
		synctest.Wait()
		gate.set("a", true)
		q.Add("a")
		synctest.Wait()
		if got := c.Snapshot(); got.Gated != 1 || got.Parked != 1 || len(got.Keys) != 1 || got.Keys[0].State != "gated" {
			t.Errorf("a parked key that waits for the gate: %+v, want it once, as gated", got)
		}
		r.stop()
	})
}

// TestSnapshotBusy: a running call is counted, and a key that cooled down is not hot.
func TestSnapshotBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := &controller{Name: "widgets", Queue: newTestQueue("a")}
		c.Reconcile = func(ctx context.Context, _ string) (reconcile.Result, error) {
			if calls++; calls < 150 {
				return reconcile.Result{RequeueAfter: 1}, nil
			}
			<-ctx.Done()
			return reconcile.Result{}, nil
		}
		r := start(t, t.Context(), c)
		time.Sleep(time.Second)
		if s := c.Snapshot(); s.Hot != 1 || s.Keys[0].State != "hot" {
			t.Errorf("a key that runs all the time: %+v, want hot", s)
		}
		time.Sleep(time.Minute)
		if s := c.Snapshot(); s.Hot != 0 || len(s.Keys) > 0 || s.Busy != 1 {
			t.Errorf("a minute later: %+v, want no hot key and a busy worker", s)
		}
		r.stop()
	})
}

// TestSnapshotIsBounded: more keys than are listed in each state, with long texts.
//
// It proves CK5.
func TestSnapshotIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		q, g := newTestQueue(), newGate()
		c := &controller{Name: "widgets", Queue: q, MaxAttempts: 1, Gate: reasonGate{g, strings.Repeat("\xff\n<", 1<<12)}}
		long := strings.Repeat("x", 1<<16)
		var keys []string
		for i := range n {
			key := fmt.Sprint("gated", i)
			g.closed[key] = true
			keys = append(keys, key, fmt.Sprint("parked", i))
		}
		for i := range 200 {
			keys = append(keys, fmt.Sprint("hot", i))
			keys = append(keys, fmt.Sprint("stale", i, long))
		}
		c.Reconcile = func(_ context.Context, key string) (reconcile.Result, error) {
			switch key[0] {
			case 'h':
				return reconcile.Result{RequeueAfter: 1}, nil
			case 's':
				return reconcile.Result{RequeueAfter: time.Hour}, staleErr{}
			}
			return reconcile.Result{}, errPlain
		}
		q.AddWith(addOptions{}, keys...)
		r := start(t, t.Context(), c)
		time.Sleep(time.Second)
		s := c.Snapshot()
		if s.Gated != n || s.Parked != n || s.Hot != 100 || s.Failing != 200 || len(s.Keys) != 400 {
			t.Errorf("%d gated, %d parked, %d hot, %d failing, %d listed", s.Gated, s.Parked, s.Hot, s.Failing, len(s.Keys))
		}
		page, err := json.Marshal(s)
		if most := 400 * (6*2*(4*512+3) + 200); err != nil || len(page) > most {
			t.Errorf("the page has %d bytes (%v), want at most %d", len(page), err, most)
		}
		r.stop()
	})
}

// staleErr is an error of class stale.
type staleErr struct{}

func (staleErr) Error() string { return "stale" }
func (staleErr) Stale() bool   { return true }
