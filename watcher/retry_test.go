package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// Each failure must mean the same as the answer to the call and in the stream.
//
// Proves W4.
func TestFailures(t *testing.T) {
	const (
		base = 500 * time.Millisecond
		slow = 30 * time.Second
	)
	doubling := []time.Duration{base, 2 * base, 4 * base, 8 * base, 16 * base, 32 * base, slow, slow}
	tooLarge := status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, 0)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for _, tc := range []struct {
		name   string
		err    *apierrors.StatusError
		pauses []time.Duration
		margin time.Duration // of what the server asked for
		lists  bool
	}{
		{name: "500", err: status(500, metav1.StatusReasonInternalError, 0), pauses: doubling},
		{name: "504", err: status(504, metav1.StatusReasonTimeout, 0), pauses: doubling},
		{name: "409 of a server that is starting", err: status(409, metav1.StatusReasonConflict, 0), pauses: doubling},
		{name: "429 with Retry-After", err: status(429, metav1.StatusReasonTooManyRequests, 20), pauses: []time.Duration{20 * time.Second, 20 * time.Second}, margin: base},
		{name: "503 with Retry-After 3", err: status(503, metav1.StatusReasonServiceUnavailable, 3), pauses: []time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second, 4 * time.Second, 8 * time.Second}, margin: base},
		{name: "401", err: status(401, metav1.StatusReasonUnauthorized, 0), pauses: []time.Duration{slow, slow}},
		{name: "403", err: status(403, metav1.StatusReasonForbidden, 0), pauses: []time.Duration{slow, slow}},
		{name: "404", err: status(404, metav1.StatusReasonNotFound, 0), pauses: []time.Duration{slow, slow}, lists: true},
		{name: "405", err: status(405, metav1.StatusReasonMethodNotAllowed, 0), pauses: []time.Duration{slow, slow}, lists: true},
		{name: "410 Gone", err: status(410, metav1.StatusReasonGone, 0), pauses: doubling, lists: true},
		{name: "410 Expired", err: status(410, metav1.StatusReasonExpired, 0), pauses: doubling, lists: true},
		{name: "504 too large resource version", err: tooLarge, pauses: doubling, lists: true},
	} {
		for _, where := range []string{"call", "stream"} {
			t.Run(tc.name+"/"+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var streams []*stream
					s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
						if where == "call" {
							return nil, tc.err
						}
						streams = append(streams, closing(errorEvent(tc.err)))
						return streams[len(streams)-1], nil
					}}
					w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: -1}
					events, _ := collect(t, w, 5*time.Minute)

					var starts []time.Duration
					lists := 0
					for _, c := range s.calls {
						switch c.Verb {
						case "watch":
							starts = append(starts, c.At)
							if want := map[bool]string{false: "9", true: "10"}[lists > 0]; c.RV != want {
								t.Errorf("watch from version %q, want %q", c.RV, want)
							}
						case "list":
							lists++
						}
					}
					for i, want := range tc.pauses {
						if got := starts[i+1] - starts[i]; got < want || got > want+tc.margin {
							t.Errorf("pause %d = %v, want %v to %v", i, got, want, want+tc.margin)
						}
					}
					if got := lists > 0; got != tc.lists {
						t.Errorf("%d lists, want any: %v", lists, tc.lists)
					}
					if events[0].Type != watcher.Retrying || !errors.As(events[0].Err, new(*apierrors.StatusError)) || apierrors.ReasonForError(events[0].Err) != tc.err.ErrStatus.Reason {
						t.Errorf("first event = %v %v, want Retrying with the server's status", events[0].Type, events[0].Err)
					}
					if got := events[0].RetryAfter; got < tc.pauses[0] || got > tc.pauses[0]+tc.margin {
						t.Errorf("RetryAfter = %v, want about %v", got, tc.pauses[0])
					}
					for i, s := range streams {
						if !s.stopped {
							t.Errorf("stream %d was not stopped", i)
						}
					}
				})
			})
		}
	}
}

// A watch that was open for a minute was good, whatever ends it.
//
// Proves W4.
func TestFailuresAreForgotten(t *testing.T) {
	for _, tc := range []struct {
		name string
		open time.Duration // how long the watch is before it fails
		want time.Duration
	}{
		{"after a minute", time.Minute, 500 * time.Millisecond},
		{"not before", 59 * time.Second, 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
					if n < 10 {
						return nil, errors.New("refused")
					}
					st := open()
					time.AfterFunc(tc.open, func() { st.send(errorEvent(status(500, metav1.StatusReasonInternalError, 0))) })
					return st, nil
				}}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: -1}
				troubles := 0
				for ev, err := range w.Events(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					if troubles++; troubles == 10 {
						if ev.RetryAfter != tc.want {
							t.Errorf("RetryAfter = %v, want %v", ev.RetryAfter, tc.want)
						}
						break
					}
				}
			})
		})
	}
}

// TestJitterAndCap proves W4.
func TestJitterAndCap(t *testing.T) {
	for _, tc := range []struct {
		name   string
		jitter float64
		low    float64
	}{{"default", 0, 0.5}, {"full", 1, 0}, {"more than full", 7, 0}, {"a tenth", 0.1, 0.9}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
					return nil, errors.New("refused")
				}}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: tc.jitter, BaseDelay: time.Second, MaxDelay: time.Second}
				events, _ := collect(t, w, time.Hour)
				different := map[time.Duration]bool{}
				lowest, highest := time.Hour, time.Duration(0)
				for _, ev := range events {
					different[ev.RetryAfter] = true
					lowest, highest = min(lowest, ev.RetryAfter), max(highest, ev.RetryAfter)
				}
				if low := time.Duration(tc.low * float64(time.Second)); lowest < low || highest > time.Second {
					t.Errorf("pauses from %v to %v, want within [%v, 1s]", lowest, highest, low)
				}
				if spread := highest - lowest; len(different) < 100 || spread < time.Duration((1-tc.low)*0.9*float64(time.Second)) {
					t.Errorf("%d different pauses over %v of %d, want them random over the range", len(different), spread, len(events))
				}
			})
		})
	}
}

func TestClosedWatches(t *testing.T) {
	var after1s, after2m, withEvent []time.Duration
	for i := range 5 {
		after1s = append(after1s, time.Duration(i)*1500*time.Millisecond)
		after2m = append(after2m, time.Duration(i)*2*time.Minute)
		withEvent = append(withEvent, time.Duration(i)*1100*time.Millisecond)
	}
	for _, tc := range []struct {
		name    string
		age     time.Duration
		event   bool
		at      []time.Duration
		trouble bool
	}{
		{name: "at once, without an event", at: []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond}, trouble: true},
		{name: "at once, with an event", event: true, at: []time.Duration{0, 500 * time.Millisecond, 1000 * time.Millisecond}},
		{name: "after a second, without an event", age: time.Second, at: after1s},
		{name: "after a second, with an event", age: 1100 * time.Millisecond, event: true, at: withEvent},
		{name: "after two minutes, without an event", age: 2 * time.Minute, at: after2m},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
					var events []watch.Event
					if tc.event {
						events = append(events, bookmark(fmt.Sprint(100+n)))
					}
					if tc.age == 0 {
						return closing(events...), nil
					}
					st := open(events...)
					time.AfterFunc(tc.age, st.Stop)
					return st, nil
				}}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: -1}
				events, _ := collect(t, w, 10*time.Minute)
				for i, want := range tc.at {
					if got := s.calls[i].At; got != want {
						t.Errorf("watch %d started at %v, want %v", i, got, want)
					}
				}
				var trouble bool
				for _, ev := range events {
					trouble = trouble || ev.Type == watcher.Retrying
				}
				if trouble != tc.trouble {
					t.Errorf("Retrying = %v, want %v", trouble, tc.trouble)
				}
			})
		})
	}
}

// Progress forgets failures; a list does not, or a server that expires every version
// would be listed without end.
func TestWhatForgetsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := status(410, metav1.StatusReasonExpired, 0)
		s := &source{watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
			if n == 8 {
				return closing(watch.Event{Type: watch.Added, Object: pod("a", "1", "11")}, errorEvent(expired)), nil
			}
			return nil, expired
		}}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: -1}
		events, _ := collect(t, w, 5*time.Minute)
		var pauses []time.Duration
		for _, ev := range events {
			if ev.Type == watcher.Retrying {
				pauses = append(pauses, ev.RetryAfter)
			}
		}
		const base = 500 * time.Millisecond
		want := []time.Duration{base, 2 * base, 4 * base, 8 * base, 16 * base, 32 * base, 30 * time.Second, base, 2 * base}
		if diff := cmp.Diff(want, pauses[:len(want)]); diff != "" {
			t.Errorf("pauses (-want +got):\n%s", diff)
		}
	})
}

// TestSilence proves W3.
func TestSilence(t *testing.T) {
	for _, tc := range []struct {
		name  string
		watch func(ctx context.Context) (watch.Interface, error)
	}{
		{"the stream is silent", func(context.Context) (watch.Interface, error) { return open(), nil }},
		{"the call is not answered", func(ctx context.Context) (watch.Interface, error) { <-ctx.Done(); return nil, ctx.Err() }},
		{"a restored server says only what is older", func(context.Context) (watch.Interface, error) {
			st := open(bookmark("3"), watch.Event{Type: watch.Modified, Object: pod("a", "1", "4")})
			for i := range 9 {
				time.AfterFunc(time.Duration(i+1)*time.Minute, func() { st.send(bookmark("5")) })
			}
			return st, nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{watch: func(ctx context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
					if n == 1 {
						return tc.watch(ctx)
					}
					st := &stream{events: make(chan watch.Event, 1)}
					for i := range 9 { // signs of life, though nothing new
						time.AfterFunc(time.Duration(i)*2*time.Minute, func() { st.send(bookmark("10")) })
					}
					return st, nil
				}}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", Jitter: -1}
				events, _ := collect(t, w, 10*time.Minute)
				if len(events) == 0 || events[0].Type != watcher.Retrying || !errors.Is(events[0].Err, watcher.ErrStalled) {
					t.Fatalf("events = %v, want Retrying with ErrStalled first", lines(events))
				}
				want := []call{{"watch", 0, "9"}, {"list", 3*time.Minute + 500*time.Millisecond, ""}, {"watch", 3*time.Minute + 500*time.Millisecond, "10"}}
				if diff := cmp.Diff(want, s.calls); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}

	t.Run("never, when turned off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) { return open(), nil }}
			w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", SilenceTimeout: -1}
			if events, _ := collect(t, w, time.Hour); len(events) != 0 {
				t.Errorf("events = %v, want none", lines(events))
			}
		})
	})

	t.Run("the consumer's time is not the server's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(bookmark("11"), bookmark("12")), nil
			}}
			w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9"}
			for ev, err := range w.Events(t.Context()) {
				if err != nil || ev.Type == watcher.Retrying {
					t.Fatalf("event %v, error %v, want bookmarks", show(ev), err)
				}
				if ev.ResourceVersion == "12" {
					break
				}
				time.Sleep(time.Hour)
			}
		})
	})
}

// After a silence the list has the last version of each object, and the watcher does not deliver
// the versions since the last event.
func TestSilenceSkipsVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			list: func(n int, _ metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				if n == 1 {
					return []*corev1.Pod{pod("a", "1", "9")}, metav1.ListMeta{ResourceVersion: "10"}, nil
				}
				// 11 and 12 changed a too, and 14 is the end of b.
				return []*corev1.Pod{pod("a", "1", "13")}, metav1.ListMeta{ResourceVersion: "15"}, nil
			},
			watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) { return open(), nil },
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, Jitter: -1}
		events, _ := collect(t, w, 4*time.Minute)
		want := []string{"ADDED a/1@9 synthetic", "SYNCED synthetic rv=10", "RETRYING rv=10", "MODIFIED a/1@13 synthetic", "SYNCED synthetic rv=15"}
		if diff := cmp.Diff(want, lines(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// A list that is not answered must not block for ever either, nor be taken for an empty
// one.
func TestSilentList(t *testing.T) {
	for _, err := range []error{context.Canceled, nil} {
		synctest.Test(t, func(t *testing.T) {
			w := &watcher.RetryWatcher[*corev1.Pod]{Source: hangingList{err: err}}
			for ev, err := range w.Events(t.Context()) {
				if err != nil || !errors.Is(ev.Err, watcher.ErrStalled) {
					t.Errorf("event %v, error %v, want ErrStalled", ev, err)
				}
				break
			}
		})
	}
}

type hangingList struct {
	watcher.Source[*corev1.Pod]
	err error
}

func (h hangingList) List(ctx context.Context, _ metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	<-ctx.Done()
	return nil, metav1.ListMeta{}, h.err
}

// A consumer that saves its version after each event, and starts again before the next list, is
// told that objects can have been deleted meanwhile. It is not after a restore, whose versions are
// others, nor after a watch from a version that the server does not have yet, which is what a restore
// looks like if the watch fails.
//
// Proves W5.
func TestRetryingKeepsTheVersion(t *testing.T) {
	tooLarge := status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, 0)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for _, tc := range []struct {
		name  string
		watch func() (watch.Interface, error) // the second one
		want  string
	}{
		{"expired", func() (watch.Interface, error) {
			return closing(errorEvent(status(410, metav1.StatusReasonExpired, 0))), nil
		}, "11"},
		{"removed", func() (watch.Interface, error) { return nil, status(404, metav1.StatusReasonNotFound, 0) }, "11"},
		{"silent", func() (watch.Interface, error) { return open(), nil }, "11"},
		{"cut", func() (watch.Interface, error) { return nil, errors.New("connection refused") }, "11"},
		{"restored", func() (watch.Interface, error) { return open(), nil }, ""},
		{"too large", func() (watch.Interface, error) { return nil, tooLarge }, ""},
		{"too large in the stream", func() (watch.Interface, error) { return closing(errorEvent(tooLarge)), nil }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listed := false
				s := &source{
					list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						if listed {
							return nil, metav1.ListMeta{}, status(500, metav1.StatusReasonInternalError, 0)
						}
						listed = true
						return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{ResourceVersion: "10"}, nil
					},
					watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
						if n == 1 {
							return closing(watch.Event{Type: watch.Added, Object: pod("b", "2", "11")}), nil
						}
						return tc.watch()
					},
				}
				if tc.name == "restored" {
					s.check = func(metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						return nil, metav1.ListMeta{ResourceVersion: "3"}, nil
					}
				}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
				events, _ := collect(t, w, 10*time.Minute)
				if len(events) < 5 {
					t.Fatalf("events = %q, want several Retrying events", lines(events))
				}
				for _, ev := range events[3:] {
					if ev.Type != watcher.Retrying || ev.ResourceVersion != tc.want {
						t.Errorf("event %s, want RETRYING at %q", show(ev), tc.want)
					}
				}
				if got := w.LastResourceVersion(); got != tc.want {
					t.Errorf("LastResourceVersion() = %q, want %q", got, tc.want)
				}

				s = &source{
					list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						return []*corev1.Pod{pod("b", "2", "11")}, metav1.ListMeta{ResourceVersion: "20"}, nil
					},
					watch: func(_ context.Context, _ int, opts metav1.ListOptions) (watch.Interface, error) {
						if opts.ResourceVersion == "20" {
							return open(), nil
						}
						return nil, status(410, metav1.StatusReasonExpired, 0)
					},
				}
				events, _ = collect(t, &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: w.LastResourceVersion()}, time.Minute)
				want := []string{"ADDED b/2@11 synthetic", "SYNCED synthetic rv=20"}
				if tc.want != "" {
					want = append([]string{"RETRYING rv=11", "RESET synthetic"}, want...)
				}
				if diff := cmp.Diff(want, lines(events)); diff != "" {
					t.Errorf("events after the start (-want +got):\n%s", diff)
				}
			})
		})
	}
}
