package recorder_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/testlog"
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

// 100,000 events at once, of three kinds, cost the requests that are documented, and
// every one is counted. Proves RE1 and RE2.
func TestFlood(t *testing.T) {
	const flood = 100_000
	for _, tt := range []struct {
		name     string
		say      func(r *recorder.Recorder, i int)
		requests int // at most, in the first second
		want     recorder.Counts
	}{
		{
			name:     "the same event",
			say:      func(r *recorder.Recorder, _ int) { say(r, "a", "copied") },
			requests: 2,
			want:     recorder.Counts{Written: 1, Deduplicated: flood - 1},
		},
		{
			name:     "different notes about one object",
			say:      func(r *recorder.Recorder, i int) { say(r, "a", fmt.Sprint("copy ", i)) },
			requests: 25,
			want:     recorder.Counts{Written: 25, Dropped: map[string]uint64{"limited": flood - 25}},
		},
		{
			name:     "many objects",
			say:      func(r *recorder.Recorder, i int) { say(r, fmt.Sprint("a", i), "copied") },
			requests: 220,
			want:     recorder.Counts{Written: 1024, Dropped: map[string]uint64{"full": flood - 1024}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				for i := range flood {
					tt.say(r, i)
				}
				if got := r.Counts(); total(got) != flood || got.Held > flood && got.Held > 1024 {
					t.Errorf("Counts = %v, want the sum %d", got, flood)
				}
				start := time.Now()
				stop := runEvents(t, t.Context(), r)
				time.Sleep(time.Hour)
				stop()
				wantCounts(t, r, func() recorder.Counts {
					if tt.want.Dropped == nil {
						tt.want.Dropped = map[string]uint64{}
					}
					return tt.want
				}())
				if got, want := store.observed(), tt.want.Written+tt.want.Deduplicated; got != want {
					t.Errorf("the Events tell of %d occurrences, want %d", got, want)
				}
				_, times := store.requests()
				first := 0
				for i, at := range times {
					if at.Sub(start) <= time.Second {
						first++
					}
					if bound := 200 + 20*at.Sub(start).Seconds() + 1; float64(i+1) > bound {
						t.Fatalf("request %d after %v, want at most %v", i+1, at.Sub(start), bound)
					}
				}
				if first > tt.requests {
					t.Errorf("%d requests in the first second, want at most %d", first, tt.requests)
				}
			})
		})
	}
}

// What waits longest is written first, also when Run stops: no series starves.
func TestOrder(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%v", stopped), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				var want []string
				for i := range 100 {
					want = append(want, fmt.Sprint("a", i))
					say(r, want[i], "copied")
					time.Sleep(time.Microsecond)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if stopped {
					cancel()
				}
				stop := runEvents(t, ctx, r)
				synctest.Wait()
				stop()
				cancel()
				var got []string
				for _, event := range store.list() {
					got = append(got, event.Regarding.Name)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("objects of the Events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// An object's budget fills up again, and other objects have their own.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		n := 0
		burst := func(object string, want uint64) {
			t.Helper()
			before := r.Counts().Written
			for range 30 {
				n++
				say(r, object, fmt.Sprint(n))
			}
			synctest.Wait()
			if got := r.Counts().Written - before; got != want {
				t.Errorf("%d Events about %s, want %d", got, object, want)
			}
		}
		burst("a", 25)
		burst("b", 25)
		time.Sleep(10 * time.Minute)
		burst("a", 2)
		stop()
	})
}

// A client that answers nothing does not hold up Event, nor Run for longer than
// StopTimeout, and what it held up is counted and logged. Proves RE4.
func TestHungClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := eventStore{hang: true}
		r := newRecorder(&store)
		r.StopTimeout, r.MaxSeries = 3*time.Second, 100
		logs := testlog.New()
		stop := runEvents(t, logs.Context(t.Context()), r)
		start := time.Now()
		var callers sync.WaitGroup
		for i := range 10 {
			callers.Go(func() {
				for j := range 1000 {
					say(r, fmt.Sprint(i, j), "copied")
				}
			})
		}
		callers.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("10,000 calls of Event waited %v, want 0", took)
		}
		synctest.Wait()
		wantCounts(t, r, recorder.Counts{Held: 100, Dropped: map[string]uint64{"full": 9900}})

		if took := stop(); took != 3*time.Second {
			t.Errorf("Run returned after %v, want 3s", took)
		}
		wantCounts(t, r, recorder.Counts{Dropped: map[string]uint64{"full": 9900, "stopped": 100}})
		logged := map[string]uint64{}
		for _, l := range logs.Find("Dropped events") {
			logged[l.Values["reason"].(string)] += l.Values["dropped"].(uint64)
		}
		if diff := cmp.Diff(map[string]uint64{"full": 9900, "stopped": 100}, logged); diff != "" {
			t.Errorf("logged drops (-want +got):\n%s", diff)
		}
	})
}

// One request that hangs delays the others for 10s at most. Proves RE2.
func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := eventStore{hang: true}
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		start := time.Now()
		say(r, "a", "copied")
		synctest.Wait()
		store.mu.Lock()
		store.hang = false // for the next ones
		store.mu.Unlock()
		say(r, "b", "copied")
		time.Sleep(time.Minute)
		stop()
		var after []time.Duration
		_, times := store.requests()
		for _, at := range times {
			after = append(after, at.Sub(start))
		}
		if diff := cmp.Diff([]time.Duration{0, 10 * time.Second, 11 * time.Second}, after); diff != "" {
			t.Errorf("times of the requests (-want +got):\n%s", diff)
		}
		wantCounts(t, r, recorder.Counts{Written: 2})
	})
}

// What is held when Run is stopped is written, new events of that time too, each
// series once; a failure is not tried again. Proves RE4.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		store.fail = func(n int, verb string) (bool, error) {
			if n == 1 {
				say(r, "late", "copied") // while Run stops
			}
			if n == 2 {
				return false, errNoConnection
			}
			return false, nil
		}
		for i := range 50 {
			say(r, fmt.Sprint(i), "copied")
			say(r, fmt.Sprint(i), "copied")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("Run returned after %v, want 0", took)
		}
		c := r.Counts()
		if got, want := c.Written, uint64(50); got != want {
			t.Errorf("%d Events are written, want %d", got, want)
		}
		if total(c) != 101 || c.Dropped["failed"] == 0 || c.Held != 0 {
			t.Errorf("Counts = %v, want 101 in all and one series failed", c)
		}
		if verbs, _ := store.requests(); len(verbs) != 51 {
			t.Errorf("%d requests, want 51", len(verbs))
		}

		// The next Run goes on.
		say(r, "next", "copied")
		stop := runEvents(t, t.Context(), r)
		synctest.Wait()
		if got := r.Counts().Written; got != 51 {
			t.Errorf("%d Events are written in the second Run, want 51", got)
		}
		stop()
	})
}

// A flood that goes on while Run stops does not hold it up: each series is written
// once. Proves RE4.
func TestStopInFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		store.fail = func(int, string) (bool, error) { say(r, "a", "copied"); return false, nil }
		say(r, "a", "copied")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("Run returned after %v, want 0", took)
		}
		wantCounts(t, r, recorder.Counts{Written: 1, Dropped: map[string]uint64{"stopped": 1}})
	})
}

func terminating() error {
	err := apierrors.NewForbidden(eventsResource, "a", errors.New("the namespace is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	return err
}

// What may succeed later is tried a bounded number of times, anything else once, and
// each drop has its reason. Proves RE3.
func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		tries  int
		reason string
		took   time.Duration // until the last try
	}{
		{name: "forbidden", err: apierrors.NewForbidden(eventsResource, "a", nil), tries: 1, reason: "forbidden"},
		{name: "namespace terminating", err: terminating(), tries: 1, reason: "gone"},
		{name: "namespace gone", err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), tries: 1, reason: "gone"},
		{name: "invalid", err: apierrors.NewInvalid(schema.GroupKind{Kind: "Event"}, "a", nil), tries: 1, reason: "rejected"},
		{name: "internal error", err: apierrors.NewInternalError(errNoConnection), tries: 10, reason: "failed", took: 151 * time.Second},
		{name: "conflict", err: apierrors.NewConflict(eventsResource, "a", nil), tries: 10, reason: "failed", took: 151 * time.Second},
		{name: "no answer", err: errNoConnection, tries: 10, reason: "failed", took: 151 * time.Second},
		{name: "wait 20s", err: apierrors.NewTooManyRequests("slow down", 20), tries: 10, reason: "failed", took: (5*20 + 4*30) * time.Second},
		{name: "wait a day", err: apierrors.NewTooManyRequests("slow down", 86400), tries: 10, reason: "failed", took: 9 * time.Minute},
		{name: "always there", err: apierrors.NewAlreadyExists(eventsResource, "a"), tries: 10, reason: "gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := eventStore{fail: func(int, string) (bool, error) { return false, tt.err }}
				if tt.name == "always there" { // and gone when it is to be patched
					store.fail = func(_ int, verb string) (bool, error) {
						if verb == "patch" {
							return false, apierrors.NewNotFound(eventsResource, "a")
						}
						return false, tt.err
					}
				}
				r := newRecorder(&store)
				logs := testlog.New()
				say(r, "a", "copied")
				say(r, "a", "copied")
				stop := runEvents(t, logs.Context(t.Context()), r)
				start := time.Now()
				time.Sleep(time.Hour)
				verbs, times := store.requests()
				if len(verbs) != tt.tries {
					t.Fatalf("%d tries, want %d", len(verbs), tt.tries)
				}
				if got := times[len(times)-1].Sub(start); got != tt.took {
					t.Errorf("the last try came after %v, want %v", got, tt.took)
				}
				wantCounts(t, r, recorder.Counts{Dropped: map[string]uint64{tt.reason: 2}})

				// A refused series is tried once an Interval at most, and not for ever.
				before, when := len(verbs), time.Now()
				for range 600 {
					time.Sleep(time.Second)
					say(r, "a", "copied")
				}
				verbs, _ = store.requests()
				if n := len(verbs) - before; tt.tries == 1 && (n < 9 || n > 11) {
					t.Errorf("%d tries of 600 events in %v, want about 10", n, time.Since(when))
				}
				stop()
				if got := total(r.Counts()); got != 602 {
					t.Errorf("%d events are counted, want 602: %v", got, r.Counts())
				}
				lines := 0
				for _, l := range logs.Find("Dropped events") {
					if l.Values["reason"] == tt.reason {
						lines++
						if l.Err == nil {
							t.Error("a line without the error")
						}
					}
				}
				if lines == 0 || lines > 14 {
					t.Errorf("%d lines about drops in 70min, want 1 to 14", lines)
				}
			})
		})
	}
}

// Drops of one reason are one line a minute, which counts them all.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := eventStore{fail: func(int, string) (bool, error) { return false, apierrors.NewForbidden(eventsResource, "a", nil) }}
		r := newRecorder(&store)
		logs := testlog.New()
		stop := runEvents(t, logs.Context(t.Context()), r)
		time.Sleep(time.Second / 2)
		for i := range 150 {
			say(r, fmt.Sprint("a", i), "copied")
			time.Sleep(time.Second)
		}
		stop()
		lines, sum := logs.Find("Dropped events"), uint64(0)
		for _, l := range lines {
			sum += l.Values["dropped"].(uint64)
			if l.Values["reason"] != "forbidden" || !apierrors.IsForbidden(l.Err) || l.Values["recorder"] != "example.com/copier" {
				t.Errorf("line = %v, want the reason, the error and the recorder", l)
			}
		}
		if len(lines) != 3 || sum != 150 {
			t.Errorf("%d lines about %d drops, want 3 about 150", len(lines), sum)
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
	})
}

// Whatever the server does, every event is counted once, and the Events tell of those
// that are not dropped. Proves RE3.
func TestCountsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		store := eventStore{fail: func(int, string) (bool, error) {
			switch random.IntN(8) {
			case 0:
				return false, apierrors.NewForbidden(eventsResource, "a", nil)
			case 1:
				return false, errNoConnection
			case 2, 3:
				return false, apierrors.NewTooManyRequests("slow down", 1)
			}
			return false, nil
		}}
		r := newRecorder(&store)
		r.MaxSeries, r.Interval, r.QPS = 50, time.Second, 2
		stop := runEvents(t, t.Context(), r)
		const callers, each = 8, 2000
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(3, uint64(i)))
				for range each {
					say(r, fmt.Sprint("a", random.IntN(100)), fmt.Sprint("copy ", random.IntN(3)))
					if random.IntN(10) == 0 {
						time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
					}
					if got := r.Counts(); got.Held > callers*each {
						t.Errorf("Counts = %v", got)
					}
				}
			})
		}
		wg.Wait()
		if got := total(r.Counts()); got != callers*each {
			t.Errorf("%d events are counted while Run runs, want %d", got, callers*each)
		}
		stop()
		c := r.Counts()
		if total(c) != callers*each || c.Held != 0 {
			t.Errorf("Counts = %v, want %d in all and none held", c, callers*each)
		}
		if got, want := store.observed(), c.Written+c.Deduplicated; got != want {
			t.Errorf("the Events tell of %d occurrences, want %d: Counts = %v", got, want, c)
		}
		if c.Written == 0 || c.Deduplicated == 0 || c.Dropped["full"] == 0 || c.Dropped["forbidden"] == 0 {
			t.Errorf("Counts = %v, want some of each kind", c)
		}
	})
}

// Odd input is cut, or dropped and counted; nothing panics.
func TestBadInput(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	good := configMapRef("a")
	for _, tt := range []struct {
		name                            string
		regarding                       corev1.ObjectReference
		eventType, reason, action, note string
		want                            *eventsv1.Event // nil if it is invalid
	}{
		{name: "no object", eventType: "Normal", reason: "R", action: "A"},
		{name: "nil object", regarding: recorder.Reference(nil, configMapKind), eventType: "Normal", reason: "R", action: "A"},
		{name: "nil pointer", regarding: recorder.Reference((*corev1.ConfigMap)(nil), configMapKind), eventType: "Normal", reason: "R", action: "A"},
		{name: "no kind", regarding: recorder.Reference(&metav1.ObjectMeta{Name: "a"}, schema.GroupVersionKind{}), eventType: "Normal", reason: "R", action: "A"},
		{name: "no type", regarding: good, reason: "R", action: "A"},
		{name: "unknown type", regarding: good, eventType: "Error", reason: "R", action: "A"},
		{name: "no reason", regarding: good, eventType: "Normal", action: "A"},
		{name: "no action", regarding: good, eventType: "Normal", reason: "R"},
		{
			name: "long text", regarding: good, eventType: "Warning", reason: "R" + long, action: long, note: "x" + long,
			want: &eventsv1.Event{Type: "Warning", Reason: "R" + strings.Repeat("ä", 63), Action: strings.Repeat("ä", 64), Note: "x" + strings.Repeat("ä", 511)},
		},
		{
			name: "no text", regarding: good, eventType: "Warning", reason: "\xff", action: "A\xffB", note: long[:1025],
			want: &eventsv1.Event{Type: "Warning", Reason: "?", Action: "A?B", Note: strings.Repeat("ä", 512)},
		},
		{
			name: "a name that Events cannot have, and no namespace", regarding: corev1.ObjectReference{Kind: "ClusterRole", Name: "system:" + long}, eventType: "Normal", reason: "R", action: "A",
			want: &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "event."}, Type: "Normal", Reason: "R", Action: "A"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				r.Event(tt.regarding, corev1.ObjectReference{Kind: "Pod"}, tt.eventType, tt.reason, tt.action, tt.note)
				runEvents(t, t.Context(), r)()
				events := store.list()
				if tt.want == nil {
					wantCounts(t, r, recorder.Counts{Dropped: map[string]uint64{"invalid": 1}})
					return
				}
				if len(events) != 1 {
					t.Fatalf("%d Events, want 1; Counts = %v", len(events), r.Counts())
				}
				got := events[0]
				if got.Type != tt.want.Type || got.Reason != tt.want.Reason || got.Action != tt.want.Action || got.Note != tt.want.Note || got.Related.Kind != "Pod" {
					t.Errorf("Event = %v, want %v", got, tt.want)
				}
				if tt.want.Namespace != "" && (got.Namespace != tt.want.Namespace || !strings.HasPrefix(got.Name, tt.want.GenerateName)) {
					t.Errorf("Event is %s/%s, want %s/%s...", got.Namespace, got.Name, tt.want.Namespace, tt.want.GenerateName)
				}
			})
		})
	}
}

// A Func needs no recorder in its tests.
func TestNilRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *recorder.Recorder
		say(r, "a", "copied")
		if diff := cmp.Diff(recorder.Counts{}, r.Counts()); diff != "" {
			t.Errorf("Counts (-want +got):\n%s", diff)
		}
		runEvents(t, t.Context(), r)()
	})
}

func TestRecorderFields(t *testing.T) {
	var store eventStore
	err := (&recorder.Recorder{Controller: "no good", Interval: -1, MaxSeries: -1, QPS: -1, StopTimeout: -1}).Run(t.Context())
	for _, field := range []string{"Client", "Controller", "Interval", "MaxSeries", "QPS", "StopTimeout"} {
		if err == nil || !strings.Contains(err.Error(), "recorder: Recorder."+field+" is ") {
			t.Errorf("Run = %v, want it to name %s", err, field)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		synctest.Wait()
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "already running") {
			t.Errorf("a second Run = %v, want an error", err)
		}
		stop()
	})
}
