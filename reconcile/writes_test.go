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
