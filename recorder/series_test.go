package recorder_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/recorder"
)

// The same event many times is one Event, written at once, whose series is patched
// once an Interval. Proves RE1.
func TestSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		start := time.Now()
		say(r, "a", "copied") // before Run
		stop := runEvents(t, t.Context(), r)
		synctest.Wait()
		wantCounts(t, r, recorder.Counts{Written: 1})

		time.Sleep(time.Second / 2)
		for range 180 { // for 3min
			time.Sleep(time.Second)
			say(r, "a", "copied")
		}
		last := time.Now()
		wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 179, Held: 1})
		say(r, "b", "copied")
		say(r, "a", "another note")
		synctest.Wait()
		stop()
		wantCounts(t, r, recorder.Counts{Written: 3, Deduplicated: 180})

		verbs, times := store.requests()
		if diff := cmp.Diff([]string{"create", "patch", "patch", "patch", "create", "create", "patch"}, verbs); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		for i := 1; i < 4; i++ {
			if got, want := times[i].Sub(start), time.Duration(i)*time.Minute; got != want {
				t.Errorf("patch %d came after %v, want %v", i, got, want)
			}
		}
		events := store.list()
		if len(events) != 3 {
			t.Fatalf("%d Events, want 3", len(events))
		}
		want := &eventsv1.Event{
			ObjectMeta:          metav1.ObjectMeta{Namespace: "ns", Name: events[0].Name},
			EventTime:           metav1.NewMicroTime(start.Truncate(time.Microsecond)),
			Series:              &eventsv1.EventSeries{Count: 181, LastObservedTime: metav1.NewMicroTime(last.Truncate(time.Microsecond))},
			ReportingController: "example.com/copier", ReportingInstance: "example.com/copier",
			Action: "Copy", Reason: "Copied", Type: "Normal", Note: "copied",
			Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "a", UID: "uid-a"},
		}
		if diff := cmp.Diff(want, events[0]); diff != "" {
			t.Errorf("Event (-want +got):\n%s", diff)
		}
		if events[1].Series != nil {
			t.Errorf("an Event of one occurrence has the series %v, want none", events[1].Series)
		}
		if !strings.HasPrefix(events[0].Name, "a.") || events[0].Name == events[2].Name {
			t.Errorf("names %q and %q, want different ones that begin with the object's", events[0].Name, events[2].Name)
		}
	})
}

// A series that was not seen for ten times Interval is over.
func TestSeriesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		r.Interval = time.Second
		stop := runEvents(t, t.Context(), r)
		for _, pause := range []time.Duration{0, 10 * time.Second, 10*time.Second + 1} {
			time.Sleep(pause)
			say(r, "a", "copied")
			synctest.Wait()
		}
		stop()
		wantCounts(t, r, recorder.Counts{Written: 2, Deduplicated: 1})
		if got := len(store.list()); got != 2 {
			t.Errorf("%d Events, want 2", got)
		}
	})
}

// A write that came through although its answer did not makes no second Event and no
// wrong count. Proves RE1.
func TestLostAnswers(t *testing.T) {
	for _, more := range []int{0, 30} { // events after the create that is tried again
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lost := map[int]bool{1: true, 4: true, 6: true}
				store := eventStore{fail: func(n int, _ string) (bool, error) {
					if lost[n] {
						return true, errNoConnection
					}
					return false, nil
				}}
				r := newRecorder(&store)
				r.Interval = 10 * time.Second
				stop := runEvents(t, t.Context(), r)
				say(r, "a", "copied")
				synctest.Wait()
				say(r, "a", "copied") // not in the Event that came through
				time.Sleep(time.Second + 1)
				for range more {
					time.Sleep(time.Second)
					say(r, "a", "copied")
				}
				stop()
				if events := store.list(); len(events) != 1 {
					t.Fatalf("%d Events, want 1", len(events))
				}
				if got := store.observed(); got != uint64(2+more) {
					t.Errorf("the Event tells of %d occurrences, want %d", got, 2+more)
				}
				wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: uint64(1 + more)})
			})
		})
	}
}

// The API server removes Events after an hour: the series goes on in a new one. Proves
// RE1.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		say(r, "a", "copied")
		synctest.Wait()
		store.mu.Lock()
		clear(store.events)
		store.order = nil
		store.mu.Unlock()
		say(r, "a", "copied")
		time.Sleep(time.Minute)
		stop()
		verbs, _ := store.requests()
		if diff := cmp.Diff([]string{"create", "patch", "create"}, verbs); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if got := store.observed(); got != 2 {
			t.Errorf("the Event tells of %d occurrences, want 2", got)
		}
		wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 1})
	})
}

// The series that is idle longest makes room; what waits to be written never does.
func TestMaxSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		r.MaxSeries = 2
		stop := runEvents(t, t.Context(), r)
		for _, object := range []string{"a", "b", "c"} { // c in place of a
			say(r, object, "copied")
			synctest.Wait()
		}
		say(r, "b", "copied") // is held now
		say(r, "a", "copied") // in place of c
		say(r, "c", "copied") // no place: a and b are held
		synctest.Wait()
		wantCounts(t, r, recorder.Counts{Written: 4, Held: 1, Dropped: map[string]uint64{"full": 1}})
		stop()
		wantCounts(t, r, recorder.Counts{Written: 4, Deduplicated: 1, Dropped: map[string]uint64{"full": 1}})

		r = newRecorder(&store)
		r.MaxSeries = 1 // the least
		say(r, "a", "copied")
		say(r, "b", "copied")
		wantCounts(t, r, recorder.Counts{Held: 1, Dropped: map[string]uint64{"full": 1}})
	})
}

// A series that waits takes no place of those that are written.
func TestMaxSeriesWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		r.MaxSeries = 2
		stop := runEvents(t, t.Context(), r)
		for _, object := range []string{"a", "b", "a", "c", "b"} { // a waits, b and c are written
			say(r, object, "copied")
			synctest.Wait()
		}
		stop()
		wantCounts(t, r, recorder.Counts{Written: 3, Deduplicated: 2})
		if got := len(store.list()); got != 3 {
			t.Errorf("%d Events, want 3", got)
		}
	})
}

// A series goes on after a pause, however long the Interval is.
func TestSeriesOfLongIntervals(t *testing.T) {
	for _, interval := range []time.Duration{time.Hour, 30 * 365 * 24 * time.Hour, math.MaxInt64} {
		t.Run(interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				r.Interval = interval
				for range 2 {
					stop := runEvents(t, t.Context(), r)
					say(r, "a", "copied")
					synctest.Wait()
					stop() // writes the series
					time.Sleep(time.Hour)
				}
				wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 1})
				if got := len(store.list()); got != 1 {
					t.Errorf("%d Events, want 1", got)
				}
			})
		})
	}
}
