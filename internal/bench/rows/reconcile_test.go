package rows_test

import (
	"testing"
	"testing/synctest"

	"github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestDispatch checks that all contenders of reconcile/dispatch do the same work and
// have the features that the row describes. Each event leads to one reconcile, metrics
// count each reconcile, contexts have a deadline, and loggers have the key.
func TestDispatch(t *testing.T) {
	has := map[string]struct{ metrics, deadlines, loggers bool }{
		"controllerkit":      {metrics: true, deadlines: true, loggers: true},
		"controller-runtime": {metrics: true, deadlines: true, loggers: true},
		"client-go by hand":  {metrics: true, deadlines: true},
		"client-go bare":     {},
	}
	if got := rows.Loops(); len(got) != len(has) {
		t.Errorf("there are %q, want as many as in this test", got)
	}
	for _, contender := range rows.Loops() {
		for _, c := range rows.DispatchCases() {
			t.Run(contender+"/"+c, func(t *testing.T) {
				// With synctest a missing reconcile fails at once.
				synctest.Test(t, func(t *testing.T) {
					got := rows.Dispatch(t, contender, c)
					if got.Ops == 0 || got.Reconcile != got.Events || len(got.Wrong) > 0 || got.Early != 0 {
						t.Errorf("%d reconciles for %d events, of which %d were measured and %d came too late; wrong: %q",
							got.Reconcile, got.Events, got.Ops, got.Early, got.Wrong)
					}
					times := func(what string, got int, want bool, of int) {
						if want && got != of || !want && got != 0 {
							t.Errorf("%s: %d of %d, want all: %v", what, got, of, want)
						}
					}
					times("contexts with a deadline", got.Deadlines, has[contender].deadlines, got.Events)
					times("loggers with the key", got.Loggers, has[contender].loggers, got.Events)
					times("reconciles counted by metrics", got.Counted, has[contender].metrics, got.Events)
					times("adds counted by metrics", got.Added, has[contender].metrics, got.Events)
				})
			})
		}
	}
}
