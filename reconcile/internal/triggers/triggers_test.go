package reconcile

import "testing"

// TestFirstKeyWithoutSpace: a key of the first list that does not run yet, and for which other
// keys have left no space, is not awaited for ever.
func TestFirstKeyWithoutSpace(t *testing.T) {
	var events triggers[int]
	for key := range maxTriggered {
		events.note(trigger{source: "pods"}, key)
	}
	events.begin()
	why := events.take(7)
	events.note(trigger{source: "pods"}, maxTriggered) // takes the space
	events.restore(why, 7)
	if got, want := events.uncalled(), maxTriggered-1; got != want {
		t.Errorf("%d keys are awaited, want %d", got, want)
	}
	why = events.take(8)
	events.note(trigger{source: "pods"}, 9) // a later event of a key of the list
	events.restore(why, 8)                  // there is space
	if got, want := events.uncalled(), maxTriggered-1; got != want {
		t.Errorf("%d keys are awaited, want %d", got, want)
	}
	events.called(events.take(8))
	events.called(events.take(8))
	if got, want := events.uncalled(), maxTriggered-2; got != want {
		t.Errorf("%d keys are awaited after a call, want %d", got, want)
	}
	events.called(events.take(9))
	events.called(events.take(9))
	if got, want := events.uncalled(), maxTriggered-3; got != want {
		t.Errorf("%d keys are awaited after two calls, want %d", got, want)
	}
	events.note(trigger{source: resyncTrigger}, 8) // not of the list
	events.begin()                                 // another Run
	if got, want := events.uncalled(), maxTriggered-2; got != want {
		t.Errorf("%d keys are awaited by the next Run, want %d", got, want)
	}
}
