package streaks

import (
	"testing"
	"time"

	"github.com/controllerkit/controllerkit"
)

// TestNote: what one more call with a result counts, before and after the deadline of a key.
func TestNote(t *testing.T) {
	for result, want := range map[string]Streak{
		controllerkit.ResultError:     {Attempts: 1},
		controllerkit.ResultConflict:  {Attempts: 1, Races: 1},
		controllerkit.ResultStale:     {Attempts: 1, Races: 1},
		controllerkit.ResultRejected:  {Attempts: 1, Rejected: 1, Refusals: 1},
		controllerkit.ResultForbidden: {Attempts: 1, Forbidden: 1, Refusals: 1},
	} {
		want.Result = result
		k := Keys[string]{}
		if got := k.Note("a", result, 0, time.Second); got != want || k["a"] != want {
			t.Errorf("%s: %+v, kept %+v, want %+v", result, got, k["a"], want)
		}
		k.Retry("a", 3*time.Second)
		early := k.Note("a", result, 0, time.Second)
		if early.Left != 2*time.Second || early.Refusals != want.Refusals || early.Attempts != 2 {
			t.Errorf("%s before the deadline: %+v", result, early)
		}
		if late := k.Note("a", result, 0, 3*time.Second); late.Left != 0 || late.Refusals != 2*want.Refusals || late.Attempts != 3 {
			t.Errorf("%s at the deadline: %+v", result, late)
		}
	}
}

// TestEnds: a success, a requeue and a terminal error end a streak, and know it.
func TestEnds(t *testing.T) {
	for _, result := range []string{controllerkit.ResultSuccess, controllerkit.ResultRequeue, controllerkit.ResultTerminal} {
		k := Keys[string]{}
		if got := k.Note("a", result, 5, 6); got != (Streak{Attempts: 1, Event: 5}) {
			t.Errorf("%s of a key that did not fail: %+v", result, got)
		}
		k.Note("b", controllerkit.ResultError, 0, 0)
		k.Note("a", controllerkit.ResultError, 7, 8)
		got := k.Note("a", result, 9, 10)
		if got.Attempts != 2 || got.Result != result || got.Event != 7 {
			t.Errorf("%s after a failure: %+v", result, got)
		}
		if _, kept := k["a"]; kept || len(k) != 1 {
			t.Errorf("%s: kept %v", result, k)
		}
	}
}

// TestAnew: a new generation begins the counts anew, but not that of the calls.
func TestAnew(t *testing.T) {
	k := Keys[string]{}
	if k.Anew("a") || len(k) != 0 {
		t.Errorf("Anew of a key that does not fail: %v", k)
	}
	k.Note("a", controllerkit.ResultRejected, 4, 5)
	if n := k.Fail("a"); n != 1 {
		t.Errorf("Fail: %d, want 1", n)
	}
	if n := k.Fail("a"); n != 2 {
		t.Errorf("Fail: %d, want 2", n)
	}
	k.Retry("a", time.Hour)
	if want := (Streak{Attempts: 1, Result: controllerkit.ResultRejected, Event: 4}); !k.Anew("a") || k["a"] != want {
		t.Errorf("Anew: %+v, want %+v", k["a"], want)
	}
}
