package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestExplored: while Run runs, the loop shows an exploration its queue and the number of
// keys that wait for the gate. Later calls of a Run register the loop again.
func TestExplored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queues []interface{ Len() int }
		var gated func() int
		ended := 0
		register := func(queue interface{ Len() int }, waiting func() int) (end func()) {
			queues, gated = append(queues, queue), waiting
			return func() { ended++ }
		}
		ctx := context.WithValue(t.Context(), calls.Explored{}, register)
		for n := range 2 {
			g, q := newGate("a", "b"), newTestQueue("a", "b", "c")
			c := &controller{Name: "x", Queue: q, Reconcile: returning(reconcile.Result{}, nil), Gate: g}
			running, cancel := context.WithCancel(ctx)
			done := make(chan error, 1)
			go func() { done <- c.Run(running) }()
			synctest.Wait()
			if len(queues) != n+1 || queues[n] != q || gated() != 2 || ended != n {
				t.Errorf("the run registers %v, %d keys wait, and %d runs have ended", queues, gated(), ended)
			}
			g.set("a", false)
			synctest.Wait()
			if gated() != 1 {
				t.Errorf("%d keys wait, want 1", gated())
			}
			cancel()
			if err := <-done; err != nil || ended != n+1 {
				t.Errorf("Run returns %v, %d runs have ended", err, ended)
			}
		}
	})
}
