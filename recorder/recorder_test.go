package recorder_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/controllerkit/controllerkit/recorder"
)

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

// floodOf records n Events about as many objects of a namespace, whose names have numbers from first.
func floodOf(r *recorder.Recorder, namespace string, first, n int) {
	for i := range n {
		object := configMapRef(fmt.Sprint("a", first+i))
		object.Namespace = namespace
		r.Event(object, corev1.ObjectReference{}, corev1.EventTypeNormal, "Copied", "Copy", "copied")
		time.Sleep(time.Microsecond) // the next one is newer
	}
}

// Each namespace gets an equal share of MaxSeries, and what one does not use goes to the others. Proves RE3 and RE5.
func TestNamespaces(t *testing.T) {
	type flood struct {
		namespace string
		n         int
	}
	for _, tt := range []struct {
		name   string
		floods []flood
		want   map[string]int // written, by namespace
	}{
		{"one", []flood{{"a", 300}}, map[string]int{"a": 100}},
		{"a second with one Event", []flood{{"a", 300}, {"b", 1}, {"a", 300}}, map[string]int{"a": 99, "b": 1}},
		{"two", []flood{{"a", 300}, {"b", 300}, {"a", 300}}, map[string]int{"a": 50, "b": 50}},
		{"four", []flood{{"a", 300}, {"b", 300}, {"c", 10}, {"", 300}}, map[string]int{"a": 30, "b": 30, "c": 10, "": 30}},
		{"too many for a share", []flood{{"a", 100}, {"b", 99}, {"c", 1}, {"d", 1}, {"e", 100}}, map[string]int{"a": 33, "b": 33, "c": 1, "d": 1, "e": 32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var store eventStore
				r := newRecorder(&store)
				r.MaxSeries = 100
				n := 0
				for _, f := range tt.floods {
					floodOf(r, f.namespace, n, f.n)
					n += f.n
				}
				if got := r.Counts(); total(got) != uint64(n) || got.Held != 100 {
					t.Errorf("Counts = %v, want the sum %d and 100 held", got, n)
				}
				stop := runEvents(t, t.Context(), r)
				time.Sleep(time.Minute)
				stop()
				got := map[string]int{}
				for _, event := range store.list() {
					got[event.Regarding.Namespace]++
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("Events by namespace (-want +got):\n%s", diff)
				}
				if got := r.Counts(); total(got) != uint64(n) || got.Written != 100 || got.Held != 0 {
					t.Errorf("Counts = %v, want the sum %d and 100 written", got, n)
				}
			})
		})
	}
}

// An Event gives its place to one of another namespace only before its first request, also while the writer waits for
// that. Proves RE3 and RE5.
func TestNamespacesWhileWriting(t *testing.T) {
	for _, tt := range []struct {
		after time.Duration
		want  []string
	}{
		{15 * time.Second, []string{"a/a0", "b/a0"}}, // the first request ended after 10s
		{25 * time.Second, []string{"a/a1", "b/a0"}}, // the second has begun
	} {
		t.Run(tt.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := eventStore{hang: true}
				r := newRecorder(&store)
				r.MaxSeries, r.QPS = 2, 0.05 // a request in 20s
				stop := runEvents(t, t.Context(), r)
				floodOf(r, "a", 0, 2)
				time.Sleep(tt.after)
				floodOf(r, "b", 0, 2)
				wantCounts(t, r, recorder.Counts{Held: 2, Dropped: map[string]uint64{"full": 2}})
				store.mu.Lock()
				store.hang = false
				store.mu.Unlock()
				time.Sleep(time.Hour)
				wantCounts(t, r, recorder.Counts{Written: 2, Dropped: map[string]uint64{"full": 2}})
				stop()
				var got []string
				for _, event := range store.list() {
					got = append(got, event.Namespace+"/"+event.Regarding.Name)
				}
				slices.Sort(got)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("objects of the Events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The places of series that repeat are shared too, also if each of them has been written. Proves RE3 and RE5.
func TestNamespacesThatRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store eventStore
		r := newRecorder(&store)
		r.MaxSeries = 2
		stop := runEvents(t, t.Context(), r)
		floodOf(r, "a", 0, 2)
		time.Sleep(time.Second)
		floodOf(r, "a", 0, 2)
		wantCounts(t, r, recorder.Counts{Written: 2, Held: 2})
		floodOf(r, "b", 0, 1)
		wantCounts(t, r, recorder.Counts{Written: 3, Held: 1, Dropped: map[string]uint64{"full": 1}})
		time.Sleep(time.Hour)
		wantCounts(t, r, recorder.Counts{Written: 3, Deduplicated: 1, Dropped: map[string]uint64{"full": 1}})
		stop()
	})
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
