package recorder_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
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
		before := r.Counts().Dropped["limited"]
		field := configMapRef("a")
		field.FieldPath = "data.x" // is the same object
		r.Event(field, corev1.ObjectReference{}, "Normal", "Copied", "Copy", "copied")
		if got := r.Counts().Dropped["limited"] - before; got != 1 {
			t.Errorf("%d Events about a field of a are dropped, want 1", got)
		}
		time.Sleep(10 * time.Minute)
		burst("a", 2)
		stop()
	})
}

// QPS bounds the requests after a burst of ten times QPS, or of one.
func TestQPS(t *testing.T) {
	for _, tt := range []struct {
		qps   float64
		burst int
		pause time.Duration // after the burst
	}{
		{0, 200, 50 * time.Millisecond},
		{2, 20, 500 * time.Millisecond},
		{0.05, 1, 20 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.qps), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				r.QPS = tt.qps
				for i := range tt.burst + 2 {
					say(r, fmt.Sprint("a", i), "copied")
				}
				start := time.Now()
				stop := runEvents(t, t.Context(), r)
				time.Sleep(3 * tt.pause)
				stop()
				var after []time.Duration
				_, times := store.requests()
				for _, at := range times[tt.burst-1:] {
					after = append(after, at.Sub(start).Round(time.Millisecond))
				}
				if diff := cmp.Diff([]time.Duration{0, tt.pause, 2 * tt.pause}, after); diff != "" {
					t.Errorf("times of the last request of the burst and the next ones (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Every version of an object has the same Events.
func TestResourceVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		stop := runEvents(t, t.Context(), r)
		for _, version := range []string{"7", "8"} {
			regarding, related := configMapRef("a"), configMapRef("b")
			regarding.ResourceVersion, related.ResourceVersion = version, version
			r.Event(regarding, related, "Normal", "Copied", "Copy", "copied")
		}
		stop()
		wantCounts(t, r, recorder.Counts{Written: 1, Deduplicated: 1})
		if got := store.list()[0]; got.Regarding != configMapRef("a") || *got.Related != configMapRef("b") {
			t.Errorf("Event = %v, want no resource version in it", got)
		}
	})
}

// Run may be about to wait when an Event comes: it is written all the same.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		r.QPS = 1e6
		stop := runEvents(t, t.Context(), r)
		start := time.Now()
		for i := range 3000 {
			say(r, fmt.Sprint("a", i), "copied")
			say(r, fmt.Sprint("b", i), "copied")
			for range i % 100 {
				runtime.Gosched()
			}
			say(r, fmt.Sprint("c", i), "copied")
			synctest.Wait()
			if held := r.Counts().Held; held > 0 {
				t.Fatalf("round %d: %d Events wait, want none", i, held)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("it took %v, want 0", took)
		}
		stop()
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
		metrics := outcomes{}
		r.Metrics = metrics
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
		want := outcomes{"written": int(c.Written), "deduplicated": int(c.Deduplicated)}
		for reason, n := range c.Dropped {
			want[reason] = int(n)
		}
		if diff := cmp.Diff(want, metrics); diff != "" {
			t.Errorf("Metrics (-want +got):\n%s", diff)
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := r.Run(ctx); err != nil || time.Since(start) != time.Minute {
			t.Errorf("Run = %v after %v, want nil after 1m, as its context", err, time.Since(start))
		}
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

// outcomes is a Metrics. A Recorder calls it with its lock held.
type outcomes map[string]int

func (o outcomes) EventsRecorded(outcome string, n int) { o[outcome] += n }

// TestNilMetrics: a nil pointer is no Metrics.
func TestNilMetrics(t *testing.T) {
	r := newRecorder(&eventStore{})
	r.Metrics = (*nilMetrics)(nil)
	r.Event(corev1.ObjectReference{}, corev1.ObjectReference{}, "", "", "", "")
	if got := r.Counts().Dropped["invalid"]; got != 1 {
		t.Errorf("%d Events dropped as invalid, want 1", got)
	}
}

type nilMetrics struct{ n int }

func (m *nilMetrics) EventsRecorded(_ string, n int) { m.n += n }
