package triggers

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestText: the names of a key's events are those since its last Take, each once.
func TestText(t *testing.T) {
	var events Memory[string]
	if got := events.Text(0, true); got != nil {
		t.Errorf("without any event the text is %q, want none", got)
	}
	if got := events.Pending("a"); got != nil {
		t.Errorf("without any event %q is pending", got)
	}
	events.Expect()
	check := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("a retry", events.Text(0, true), "retry")
	check("a requeue", events.Text(events.Take("a").Mask, false), "requeue")
	update := Trigger{Source: "pods", Kind: "update"}
	events.Note(update, "a", "b")
	events.Note(update, "a")
	events.Note(Trigger{Source: "timer"}, "a")
	check("pending", events.Pending("a"), "pods update", "timer")
	check("pending of a key without events", events.Pending("c"))
	why := events.Take("a")
	check("taken", events.Text(why.Mask, true), "pods update", "timer")
	check("after a Take", events.Pending("a"))
	events.Restore(why, "a")
	events.Note(Trigger{Source: Resync, Same: true, Undated: true}, "a")
	check("restored", events.Pending("a"), "pods update", "timer", "resync")
	check("of another key", events.Pending("b"), "pods update")
}

// TestChanged: a mask reports a change if one of its triggers does.
func TestChanged(t *testing.T) {
	var events Memory[string]
	events.Note(Trigger{Source: "pods", Kind: "resync", Same: true}, "a", "b")
	events.Note(Trigger{Source: "pods", Kind: "update"}, "b", "c")
	for key, want := range map[string]bool{"a": false, "b": true, "c": true, "d": false} {
		if got := events.Changed(events.Take(key).Mask); got != want {
			t.Errorf("Changed of %s is %t, want %t", key, got, want)
		}
	}
}

// TestEvent: the Event of a key is the first since the last Take. A resync and an object of a
// first list are none.
func TestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events Memory[string]
		pods := Trigger{Source: "pods"}
		events.Note(Trigger{Source: Resync, Undated: true}, "a")
		events.Note(Trigger{Source: "pods", Kind: "list", Undated: true}, "b")
		events.Begin()
		if left := events.Uncalled(); left != 1 {
			t.Errorf("%d keys of the first list have no call, want that of b", left)
		}
		time.Sleep(time.Second)
		events.Note(pods, "b")
		time.Sleep(2 * time.Second)
		events.Note(pods, "b")
		why := events.Take("b")
		if age := events.Age(why.Event, time.Now()); age != 2*time.Second {
			t.Errorf("the first event was %v ago, want 2s", age)
		}
		if !why.first {
			t.Error("a key of the first list with a later event is not awaited any more")
		}
		if why := events.Take("a"); why.Event != 0 || why.Mask == 0 {
			t.Errorf("a resync has the reason %+v, want one without an event", why)
		}
		events.Note(pods, "b")
		events.Restore(why, "b") // it did not run
		if got := events.Take("b").Event; got != why.Event {
			t.Errorf("the restored event is of %v, want %v", got, why.Event)
		}
		for _, tt := range [][3]time.Duration{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {5, 7, 5}, {7, 5, 5}} {
			if got := Earlier(tt[0], tt[1]); got != tt[2] {
				t.Errorf("Earlier(%d, %d) = %d, want %d", tt[0], tt[1], got, tt[2])
			}
		}
	})
}

// TestBounds: the number of kinds and of keys is bounded, and a further kind is "other".
func TestBounds(t *testing.T) {
	var events Memory[int]
	for n := range 2 * maxKinds {
		events.Note(Trigger{Source: fmt.Sprint("s", n)}, n)
	}
	for n := range 2 * maxKinds {
		want := []string{fmt.Sprint("s", n)}
		if n >= maxKinds-1 {
			want = []string{"other"}
		}
		if got := events.Pending(n); !slices.Equal(got, want) {
			t.Errorf("the text of kind %d is %q, want %q", n, got, want)
		}
	}
	for n := range 2 * maxKeys {
		events.Note(Trigger{Source: "s0"}, n)
	}
	if len(events.keys) != maxKeys {
		t.Errorf("%d keys are remembered, want %d", len(events.keys), maxKeys)
	}
	if events.Take(2*maxKeys-1).Mask != 0 || events.Take(1).Mask == 0 {
		t.Error("a later key has replaced an earlier one")
	}
	for n := range maxKeys {
		events.Take(n)
	}
	if events.most > minKeys {
		t.Errorf("the map keeps the memory of %d keys, and no key is left", events.most)
	}
}

// TestFirstKeyWithoutSpace: a key of the first list that does not run yet, and for which other
// keys have left no space, is not awaited for ever.
func TestFirstKeyWithoutSpace(t *testing.T) {
	var events Memory[int]
	for key := range maxKeys {
		events.Note(Trigger{Source: "pods"}, key)
	}
	events.Begin()
	why := events.Take(7)
	events.Note(Trigger{Source: "pods"}, maxKeys) // takes the space
	events.Restore(why, 7)
	if got, want := events.Uncalled(), maxKeys-1; got != want {
		t.Errorf("%d keys are awaited, want %d", got, want)
	}
	why = events.Take(8)
	events.Note(Trigger{Source: "pods"}, 9) // a later event of a key of the list
	events.Restore(why, 8)                  // there is space
	if got, want := events.Uncalled(), maxKeys-1; got != want {
		t.Errorf("%d keys are awaited, want %d", got, want)
	}
	events.Called(events.Take(8))
	events.Called(events.Take(8))
	if got, want := events.Uncalled(), maxKeys-2; got != want {
		t.Errorf("%d keys are awaited after a call, want %d", got, want)
	}
	events.Called(events.Take(9))
	events.Called(events.Take(9))
	if got, want := events.Uncalled(), maxKeys-3; got != want {
		t.Errorf("%d keys are awaited after two calls, want %d", got, want)
	}
	events.Note(Trigger{Source: Resync, Undated: true}, 8) // not of the list
	events.Begin()                                         // another Run
	if got, want := events.Uncalled(), maxKeys-2; got != want {
		t.Errorf("%d keys are awaited by the next Run, want %d", got, want)
	}
}

// TestKeptList: an object of a first list has no time for the latency, but its key is kept as long
// as that of another event of the same moment.
func TestKeptList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events Memory[string]
		var kept Kept[string]
		list := Trigger{Source: "pods", Kind: "list", Undated: true}
		events.Keep(&kept, list, "early")
		time.Sleep(time.Hour)
		events.Keep(&kept, list, "late")
		_, keys, _ := events.Deliver(&kept, Window{After: time.Now().Add(-time.Minute)})
		if !slices.Equal(keys, []string{"late"}) {
			t.Errorf("the keys of the last minute are %q, want late", keys)
		}
		if why := events.Take("late"); why.Event != 0 || why.Mask == 0 {
			t.Errorf("a key of a list has the reason %+v, want one without an event", why)
		}
	})
}
