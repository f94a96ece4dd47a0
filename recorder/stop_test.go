package recorder_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/recorder"
)

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
		for _, l := range logs.Find("Dropped Events") {
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

		// And so does a series.
		say(r, "next", "copied")
		runEvents(t, t.Context(), r)()
		if got := r.Counts(); got.Written != 51 || got.Deduplicated != c.Deduplicated+1 {
			t.Errorf("Counts = %v after a repetition in the third Run, want 51 written and %d deduplicated", got, c.Deduplicated+1)
		}
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

// When Run returns, none of its goroutines is left.
func TestStopped(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what Run does not wait for has not ended by chance
	for range 10 {
		var store eventStore
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := newRecorder(&store).Run(ctx); err != nil {
			t.Fatal(err)
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if strings.Contains(string(stacks), "created by sync.(*WaitGroup).Go") {
			t.Fatalf("Run left a goroutine:\n%s", stacks)
		}
	}
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
		{name: "a full quota", err: apierrors.NewForbidden(eventsResource, "a", errors.New("exceeded quota: q, requested: count/events.events.k8s.io=1")), tries: 1, reason: "rejected"},
		{name: "namespace terminating", err: terminating(), tries: 1, reason: "gone"},
		{name: "namespace gone", err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), tries: 1, reason: "gone"},
		{name: "invalid", err: apierrors.NewInvalid(schema.GroupKind{Kind: "Event"}, "a", nil), tries: 1, reason: "rejected"},
		{name: "a proxy's own code", err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 499}}, tries: 1, reason: "rejected"},
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
				for _, l := range logs.Find("Dropped Events") {
					if l.Values["reason"] == tt.reason {
						lines++
						if l.Values["err"] == nil {
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

// The tries of a write are its own, and a refused patch does not end the series.
func TestErrorsOfOneSeries(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fail   func(n int) (applied bool, err error)
		events int // in the end
		want   recorder.Counts
	}{
		{
			name:   "nine failures of each write",
			fail:   func(n int) (bool, error) { return false, unless(n%10 == 0, errNoConnection) },
			events: 1, want: recorder.Counts{Written: 1, Deduplicated: 1},
		},
		{
			name: "a patch is refused",
			fail: func(n int) (bool, error) {
				return false, unless(n != 2, apierrors.NewForbidden(eventsResource, "a", nil))
			},
			events: 1, want: recorder.Counts{Written: 1, Deduplicated: 1, Dropped: map[string]uint64{"forbidden": 1}},
		},
		{
			name:   "a create that is given up had succeeded",
			fail:   func(n int) (bool, error) { return n == 1, unless(n > 10, errNoConnection) },
			events: 2, want: recorder.Counts{Written: 1, Deduplicated: 1, Dropped: map[string]uint64{"failed": 1}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := eventStore{fail: func(n int, _ string) (bool, error) { return tt.fail(n) }}
				r := newRecorder(&store)
				stop := runEvents(t, t.Context(), r)
				for range 2 + len(tt.want.Dropped) {
					say(r, "a", "copied")
					time.Sleep(5 * time.Minute)
				}
				stop()
				wantCounts(t, r, tt.want)
				if got := len(store.list()); got != tt.events {
					t.Errorf("%d Events, want %d", got, tt.events)
				}
			})
		})
	}
}

// unless returns err, or nil if ok.
func unless(ok bool, err error) error {
	if ok {
		return nil
	}
	return err
}

// Drops of one reason are one line a minute, which counts them all. A stop repeats none.
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
		lines, sum := logs.Find("Dropped Events"), uint64(0)
		for _, l := range lines {
			sum += l.Values["dropped"].(uint64)
			if err, _ := l.Values["err"].(error); l.Level != 0 || l.Values["reason"] != "forbidden" || !apierrors.IsForbidden(err) || l.Values["recorder"] != "example.com/copier" || l.Values["droppedInAll"] != sum {
				t.Errorf("line = %v, want the reason, the error, the recorder and the counts", l)
			}
		}
		if len(lines) != 3 || sum < 121 || sum > 123 {
			t.Errorf("%d lines about %d drops, want 3 about those of 2m1s", len(lines), sum)
		}
	})
}

// A drop without a request is logged a second later, with its count and the cure, also if
// the writer waits for a response. The next line comes a minute later. A stop logs what it
// drops itself, each time.
func TestLogOfDropsWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := eventStore{hang: true}
		r := newRecorder(&store)
		logs := testlog.New()
		lines := func() (all []string) {
			for _, l := range logs.Find("Dropped Events") {
				if l.Level != 0 || l.Err != nil {
					t.Errorf("level %d, error %v: want a line without a level", l.Level, l.Err)
				}
				all = append(all, fmt.Sprintf("%v: %v of %v, %v: %v", l.Values["reason"], l.Values["dropped"], l.Values["droppedInAll"], l.Values["regarding"], l.Values["err"]))
			}
			return all
		}
		want := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, lines()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		}
		const limited = "ConfigMap ns/a: recorder: the object used up its budget of different Events: leave out of a note what differs each time"
		const stopped = "ConfigMap ns/a: recorder: Run ended before they were written: give it a longer StopTimeout, or look for slow requests"

		stop := runEvents(t, logs.Context(t.Context()), r)
		time.Sleep(90 * time.Second)
		for i := range 40 {
			say(r, "a", fmt.Sprint("note ", i))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		want("limited: 15 of 15, " + limited)
		say(r, "a", "note 40")
		time.Sleep(10 * time.Second)
		stop()
		want("limited: 15 of 15, "+limited, "stopped: 25 of 25, "+stopped)

		logs = testlog.New()
		stop = runEvents(t, logs.Context(t.Context()), r)
		r.Event(corev1.ObjectReference{Kind: "a\x1b[2K", Name: "b\n"}, corev1.ObjectReference{}, "", "", "", "")
		time.Sleep(time.Minute)
		want(`invalid: 1 of 1, a\x1b[2K /b\n: recorder: an Event is not valid: set the kind and name of the object, the type Normal or Warning, a reason and an action`,
			"limited: 1 of 16, "+limited)
		stop()
		logs = testlog.New()
		stop = runEvents(t, logs.Context(t.Context()), r)
		time.Sleep(10 * time.Minute) // the budget of one more Event
		say(r, "a", "note 41")
		stop()
		want("stopped: 1 of 26, " + stopped)
		stop = runEvents(t, logs.Context(t.Context()), r)
		time.Sleep(10 * time.Second)
		stop()
		want("stopped: 1 of 26, " + stopped)
	})
}
