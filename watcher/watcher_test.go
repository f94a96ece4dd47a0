package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/controllerkit/controllerkit/watcher"
)

func pod(name, uid, rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: rv}}
}

func status(code int32, reason metav1.StatusReason, retryAfter int32) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason),
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}

func errorEvent(err *apierrors.StatusError) watch.Event {
	return watch.Event{Type: watch.Error, Object: &err.ErrStatus}
}

func bookmark(rv string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: pod("", "", rv)}
}

// stream is a watch whose events are known from the start.
type stream struct {
	events chan watch.Event

	mu      sync.Mutex // guards the closing of events
	stopped bool
	ended   bool
}

// closing is a stream that the server closes after the events.
func closing(events ...watch.Event) *stream {
	s := open(events...)
	s.ended = true
	close(s.events)
	return s
}

// open is a stream that stays open after the events.
func open(events ...watch.Event) *stream {
	s := &stream{events: make(chan watch.Event, len(events)+1)}
	for _, ev := range events {
		s.events <- ev
	}
	return s
}

func (s *stream) ResultChan() <-chan watch.Event { return s.events }

func (s *stream) send(ev watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.events <- ev
	}
}

func (s *stream) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if !s.ended {
		s.ended = true
		close(s.events)
	}
}

// call is what a source was asked, and when.
type call struct {
	Verb string
	At   time.Duration
	RV   string
}

// source responds with functions and records the calls. Its calls never overlap.
type source struct {
	start time.Time
	calls []call
	list  func(n int, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error)
	watch func(ctx context.Context, n int, opts metav1.ListOptions) (watch.Interface, error)
	check func(opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) // nil means that nothing can be compared
	nList int
	nW    int
}

func (s *source) note(verb, rv string) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.calls = append(s.calls, call{verb, time.Since(s.start), rv})
}

func (s *source) List(_ context.Context, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	if isCheck(opts) {
		if s.check == nil {
			return nil, metav1.ListMeta{}, nil // a version that cannot be compared
		}
		s.note("check", opts.ResourceVersion)
		return s.check(opts)
	}
	s.note("list", opts.ResourceVersion)
	s.nList++
	if s.list == nil {
		return nil, metav1.ListMeta{ResourceVersion: "10"}, nil
	}
	return s.list(s.nList, opts)
}

func (s *source) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	s.note("watch", opts.ResourceVersion)
	s.nW++
	return s.watch(ctx, s.nW, opts)
}

// isCheck recognises the requests that find a restored server: they ask for less than
// a page.
func isCheck(opts metav1.ListOptions) bool { return opts.Limit == 101 }

// show writes an event in one line.
func show(ev watcher.Event[*corev1.Pod]) string {
	var b strings.Builder
	b.WriteString(string(ev.Type))
	if ev.Object != nil {
		fmt.Fprintf(&b, " %s/%s@%s", ev.Object.Name, ev.Object.UID, ev.Object.ResourceVersion)
	}
	if ev.Synthetic {
		b.WriteString(" synthetic")
	}
	if ev.ResourceVersion != "" {
		b.WriteString(" rv=" + ev.ResourceVersion)
	}
	return b.String()
}

// collect ranges over w for d and returns the events and the last error.
func collect(t *testing.T, w *watcher.RetryWatcher[*corev1.Pod], d time.Duration) (events []watcher.Event[*corev1.Pod], err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for ev, e := range w.Events(ctx) {
		if e != nil {
			err = e
			continue
		}
		events = append(events, ev)
	}
	return events, err
}

func lines(events []watcher.Event[*corev1.Pod]) []string {
	var out []string
	for _, ev := range events {
		out = append(out, show(ev))
	}
	return out
}

func TestListsThenWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				return []*corev1.Pod{pod("a", "1", "5"), pod("b", "2", "7")}, metav1.ListMeta{ResourceVersion: "10"}, nil
			},
			watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(
					watch.Event{Type: watch.Modified, Object: pod("a", "1", "11")},
					bookmark("15"),
					watch.Event{Type: watch.Deleted, Object: pod("b", "2", "16")},
					bookmark("16"), // nothing new
				), nil
			},
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
		events, err := collect(t, w, time.Minute)
		want := []string{
			"ADDED a/1@5 synthetic", "ADDED b/2@7 synthetic", "SYNCED synthetic rv=10",
			"MODIFIED a/1@11 rv=11", "BOOKMARK rv=15", "DELETED b/2@16 rv=16",
		}
		if diff := cmp.Diff(want, lines(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("last error = %v, want the end of ctx", err)
		}
		if got := w.LastResourceVersion(); got != "16" {
			t.Errorf("LastResourceVersion() = %q, want 16", got)
		}
		if want := []call{{"list", 0, ""}, {"watch", 0, "10"}}; cmp.Diff(want, s.calls) != "" {
			t.Errorf("calls = %v, want %v", s.calls, want)
		}
	})
}

// Each failure must mean the same as the answer to the call and in the stream.
//
// Proves W5.
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
// Proves W5.
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

// TestJitterAndCap proves W5.
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

// TestExpiredDeliversTheDifference proves W2, W3.
func TestExpiredDeliversTheDifference(t *testing.T) {
	expired := status(410, metav1.StatusReasonExpired, 0)
	for _, tc := range []struct {
		name  string
		start string
		rv    string // of the second list
		want  []string
	}{
		{
			name: "after a list", rv: "30",
			want: []string{
				"ADDED a/1@5 synthetic", "ADDED b/2@6 synthetic", "ADDED c/3@7 synthetic", "SYNCED synthetic rv=10",
				"ADDED d/4@11 rv=11", "RETRYING",
				"DELETED b/2@6 synthetic", "DELETED c/3@7 synthetic",
				"MODIFIED a/1@20 synthetic", "ADDED c/9@21 synthetic", "SYNCED synthetic rv=30",
			},
		},
		{
			name: "versions went back", rv: "3", // the storage was restored from a backup
			want: []string{
				"ADDED a/1@5 synthetic", "ADDED b/2@6 synthetic", "ADDED c/3@7 synthetic", "SYNCED synthetic rv=10",
				"ADDED d/4@11 rv=11", "RETRYING",
				"DELETED b/2@6 synthetic", "DELETED c/3@7 synthetic",
				"MODIFIED a/1@20 synthetic", "ADDED c/9@21 synthetic", "SYNCED synthetic rv=3",
			},
		},
		{
			name: "after a start from a version", start: "10", rv: "30",
			want: []string{
				"ADDED d/4@11 rv=11", "RETRYING", "RESET synthetic",
				"ADDED a/1@20 synthetic", "ADDED c/9@21 synthetic", "ADDED d/4@11 synthetic", "SYNCED synthetic rv=30",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *source
				s = &source{
					list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						if s.nW == 0 {
							return []*corev1.Pod{pod("a", "1", "5"), pod("b", "2", "6"), pod("c", "3", "7")}, metav1.ListMeta{ResourceVersion: "10"}, nil
						}
						if s.nW == 2 {
							return []*corev1.Pod{pod("c", "9", "21"), pod("d", "4", "11")}, metav1.ListMeta{ResourceVersion: "40"}, nil
						}
						return []*corev1.Pod{pod("a", "1", "20"), pod("c", "9", "21"), pod("d", "4", "11")}, metav1.ListMeta{ResourceVersion: tc.rv}, nil
					},
					watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
						if n == 1 {
							return closing(watch.Event{Type: watch.Added, Object: pod("d", "4", "11")}, errorEvent(expired)), nil
						}
						if n == 2 {
							second := open()
							time.AfterFunc(time.Minute, func() { second.send(errorEvent(expired)) })
							return second, nil
						}
						return open(), nil
					},
				}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: tc.start}
				events, _ := collect(t, w, 3*time.Minute)
				// Whatever came before, the watcher knows everything after a list.
				tc.want = append(tc.want, "RETRYING", "DELETED a/1@20 synthetic", "SYNCED synthetic rv=40")
				if diff := cmp.Diff(tc.want, lines(events)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if second := s.calls[len(s.calls)-3]; second.Verb != "watch" || second.RV != tc.rv {
					t.Errorf("after the first list: %v, want a watch from %q", second, tc.rv)
				}
			})
		})
	}
}

// TestSilence proves W4.
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

func TestRepeatedEvents(t *testing.T) {
	for _, tc := range []struct {
		name   string
		start  string
		events []watch.Event
		want   []string
	}{
		{
			name: "not newer than the object is known", start: "",
			events: []watch.Event{
				{Type: watch.Modified, Object: pod("a", "1", "12")},
				{Type: watch.Modified, Object: pod("a", "1", "12")},
				{Type: watch.Modified, Object: pod("a", "1", "11")},
				{Type: watch.Deleted, Object: pod("a", "1", "9")},
				{Type: watch.Deleted, Object: pod("a", "1", "12")}, // with the last version: a deletion all the same
				{Type: watch.Deleted, Object: pod("a", "1", "13")},
			},
			want: []string{"ADDED a/1@5 synthetic", "SYNCED synthetic rv=10", "MODIFIED a/1@12 rv=12", "DELETED a/1@12 rv=12"},
		},
		{
			name: "an old version does not move the position back", start: "",
			events: []watch.Event{
				{Type: watch.Added, Object: pod("b", "2", "15")},
				{Type: watch.Deleted, Object: pod("a", "1", "5")},
			},
			want: []string{"ADDED a/1@5 synthetic", "SYNCED synthetic rv=10", "ADDED b/2@15 rv=15", "DELETED a/1@5 rv=15"},
		},
		{
			name: "not newer than asked for", start: "20",
			events: []watch.Event{
				{Type: watch.Added, Object: pod("x", "7", "19")},
				{Type: watch.Deleted, Object: pod("y", "8", "20")},
				{Type: watch.Deleted, Object: pod("z", "9", "21")},
			},
			want: []string{"DELETED z/9@21 rv=21"},
		},
		{
			name: "longer than 64 bits", start: "99999999999999999999999",
			events: []watch.Event{
				{Type: watch.Added, Object: pod("x", "7", "100000000000000000000000")},
				{Type: watch.Modified, Object: pod("x", "7", "99999999999999999999999")},
			},
			want: []string{"ADDED x/7@100000000000000000000000 rv=100000000000000000000000"},
		},
		{
			name: "versions that are no numbers", start: "v-a",
			events: []watch.Event{
				{Type: watch.Added, Object: pod("x", "7", "v-c")},
				{Type: watch.Modified, Object: pod("x", "7", "v-c")},
				{Type: watch.Modified, Object: pod("x", "7", "v-b")},
				{Type: watch.Deleted, Object: pod("x", "7", "v-b")},
			},
			want: []string{"ADDED x/7@v-c rv=v-c", "MODIFIED x/7@v-b rv=v-b", "DELETED x/7@v-b rv=v-b"},
		},
		{
			name: "no UIDs", start: "1",
			events: []watch.Event{
				{Type: watch.Added, Object: pod("x", "", "2")},
				{Type: watch.Added, Object: pod("x", "", "2")},
				{Type: watch.Added, Object: pod("y", "", "3")},
			},
			want: []string{"ADDED x/@2 rv=2", "ADDED y/@3 rv=3"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{
					list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{ResourceVersion: "10"}, nil
					},
					watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
						return open(tc.events...), nil
					},
				}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: tc.start}
				events, _ := collect(t, w, time.Minute)
				if diff := cmp.Diff(tc.want, lines(events)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestOptionsAndPages proves W2.
func TestOptionsAndPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists, watches []metav1.ListOptions
		s := &source{
			list: func(n int, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				lists = append(lists, opts)
				switch n {
				case 1, 4:
					return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{ResourceVersion: "10", Continue: "next"}, nil
				case 2: // the token has expired
					return nil, metav1.ListMeta{}, status(410, metav1.StatusReasonExpired, 0)
				case 3:
					return nil, metav1.ListMeta{}, status(500, metav1.StatusReasonInternalError, 0)
				}
				return []*corev1.Pod{pod("b", "2", "6")}, metav1.ListMeta{ResourceVersion: "10"}, nil
			},
			watch: func(_ context.Context, _ int, opts metav1.ListOptions) (watch.Interface, error) {
				watches = append(watches, opts)
				st := open()
				time.AfterFunc(2*time.Minute, st.Stop)
				return st, nil
			},
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "0", LabelSelector: "app=x", FieldSelector: "spec.nodeName=n"}
		events, _ := collect(t, w, 3*time.Hour)
		want := []string{"RETRYING", "RETRYING", "ADDED a/1@5 synthetic", "ADDED b/2@6 synthetic", "SYNCED synthetic rv=10"}
		if diff := cmp.Diff(want, lines(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		page := metav1.ListOptions{LabelSelector: "app=x", FieldSelector: "spec.nodeName=n", Limit: 500}
		next := page
		next.Continue = "next"
		whole := page
		whole.Limit = 0
		if diff := cmp.Diff([]metav1.ListOptions{page, next, whole, page, next}, lists); diff != "" {
			t.Errorf("lists (-want +got):\n%s", diff)
		}
		timeouts := map[int64]bool{}
		for _, opts := range watches {
			if *opts.TimeoutSeconds < 300 || *opts.TimeoutSeconds >= 600 {
				t.Errorf("TimeoutSeconds = %d, want 5 to 10 minutes", *opts.TimeoutSeconds)
			}
			timeouts[*opts.TimeoutSeconds] = true
			opts.TimeoutSeconds = nil
			want := metav1.ListOptions{LabelSelector: "app=x", FieldSelector: "spec.nodeName=n", ResourceVersion: "10", AllowWatchBookmarks: true}
			if diff := cmp.Diff(want, opts); diff != "" {
				t.Fatalf("watch (-want +got):\n%s", diff)
			}
		}
		if len(timeouts) < 10 {
			t.Errorf("%d different timeouts in %d watches, want them random", len(timeouts), len(watches))
		}
	})
}

// Whoever saves the position at the end of a process must not save "" when the loop
// had no time to begin.
//
// Proves W6.
func TestLastResourceVersionBeforeTheLoop(t *testing.T) {
	for start, want := range map[string]string{"": "", "0": "", "42": "42"} {
		w := &watcher.RetryWatcher[*corev1.Pod]{ResourceVersion: start}
		if got := w.LastResourceVersion(); got != want {
			t.Errorf("LastResourceVersion() = %q with ResourceVersion %q, want %q", got, start, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.Source = &source{}
		for range w.Events(ctx) {
		}
		if got := w.LastResourceVersion(); got != want {
			t.Errorf("LastResourceVersion() = %q with ResourceVersion %q and ctx done, want %q", got, start, want)
		}
	}
}

// A list without a version cannot be watched from. What happens between two watches is
// found by listing, and a watch without a version begins with what exists, in no order.
func TestListsWithoutAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			list: func(n int, _ metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				if n == 1 {
					return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{}, nil
				}
				return []*corev1.Pod{pod("c", "3", "6")}, metav1.ListMeta{}, nil
			},
			watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
				if n > 1 {
					return open(watch.Event{Type: watch.Added, Object: pod("c", "3", "6")}), nil
				}
				st := open(
					watch.Event{Type: watch.Added, Object: pod("a", "1", "5")},
					watch.Event{Type: watch.Added, Object: pod("b", "2", "7")},
					watch.Event{Type: watch.Added, Object: pod("c", "3", "6")},
				)
				time.AfterFunc(time.Minute, st.Stop)
				return st, nil
			},
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
		events, _ := collect(t, w, 2*time.Minute)
		want := []string{
			"ADDED a/1@5 synthetic", "SYNCED synthetic", "ADDED b/2@7", "ADDED c/3@6",
			"DELETED a/1@5 synthetic", "DELETED b/2@7 synthetic", "SYNCED synthetic",
		}
		if diff := cmp.Diff(want, lines(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if got := w.LastResourceVersion(); got != "" {
			t.Errorf("LastResourceVersion() = %q, want none", got)
		}
	})
}

// TestLastResourceVersion proves W6.
func TestLastResourceVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{ResourceVersion: "10"}, nil
			},
			watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(watch.Event{Type: watch.Added, Object: pod("b", "2", "11")}, watch.Event{Type: watch.Added, Object: pod("c", "3", "12")}), nil
			},
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
		var got []string
		for ev := range w.Events(t.Context()) {
			got = append(got, ev.ResourceVersion+"<"+w.LastResourceVersion())
			if ev.ResourceVersion == "12" {
				break // not handled
			}
		}
		if diff := cmp.Diff([]string{"<", "10<", "11<10", "12<11"}, got); diff != "" {
			t.Errorf("event's version < last version (-want +got):\n%s", diff)
		}
		if got := w.LastResourceVersion(); got != "11" {
			t.Errorf("LastResourceVersion() after leaving = %q, want 11: the last event was not handled", got)
		}
	})
}

// blockedDecoder blocks as a connection does on which nothing arrives.
type blockedDecoder struct{ closed chan struct{} }

func (d blockedDecoder) Decode() (watch.EventType, runtime.Object, error) {
	select {
	case <-d.closed:
		return "", nil, errors.New("closed")
	default:
	}
	return watch.Added, pod("a", "1", "11"), nil
}
func (d blockedDecoder) Close() { close(d.closed) }

// slowStop closes its channel only some time after it was stopped.
type slowStop struct{ *stream }

func (s slowStop) Stop() { time.AfterFunc(time.Second, s.stream.Stop) }

type reporter struct{}

func (reporter) AsObject(error) runtime.Object { return &metav1.Status{} }

// The bubble of synctest fails the test if the stream's goroutine is left behind.
//
// Proves W7.
func TestEndsWithNothingLeft(t *testing.T) {
	cause := errors.New("the lease was lost")
	for _, tc := range []struct {
		name string
		end  func(cancel context.CancelCauseFunc) (leave bool)
		want error
	}{
		{"break", func(context.CancelCauseFunc) bool { return true }, nil},
		{"ctx", func(cancel context.CancelCauseFunc) bool { cancel(cause); return false }, cause},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				d := blockedDecoder{make(chan struct{})}
				s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
					return watch.NewStreamWatcher(d, reporter{}), nil
				}}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "10"}
				var last error
				for _, err := range w.Events(ctx) {
					if last != nil {
						t.Error("the error was not the last element")
					}
					last = err
					if err == nil && tc.end(cancel) {
						break
					}
				}
				select {
				case <-d.closed:
				default:
					t.Error("the stream is open after the loop has ended")
				}
				if !errors.Is(last, tc.want) {
					t.Errorf("last error = %v, want %v", last, tc.want)
				}
			})
		})
	}

	t.Run("a stream that takes its time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return slowStop{open(bookmark("11"))}, nil
			}}
			start := time.Now()
			for range (&watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "10"}).Events(t.Context()) {
				break
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("the loop ended %v after it was left, want it to wait for the stream, 1s", took)
			}
		})
	})

	t.Run("nothing is delivered after ctx", func(t *testing.T) {
		var pods []*corev1.Pod
		var added []watch.Event
		for i := range 100 {
			pods = append(pods, pod(fmt.Sprint(i), fmt.Sprint("uid-", i), fmt.Sprint(i+11)))
			added = append(added, watch.Event{Type: watch.Added, Object: pods[i]})
		}
		s := &source{
			list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				return pods, metav1.ListMeta{ResourceVersion: "200"}, nil
			},
			watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) { return open(added...), nil },
		}
		for range 50 { // because select takes what it likes
			for _, start := range []string{"", "10"} {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: start}
				var got []string
				for ev, err := range w.Events(ctx) {
					if err != nil {
						got = append(got, err.Error())
						continue
					}
					got = append(got, string(ev.Type))
					cancel(cause)
				}
				if diff := cmp.Diff([]string{"ADDED", "watcher: the lease was lost"}, got); diff != "" {
					t.Fatalf("from %q (-want +got):\n%s", start, diff)
				}
			}
		}
	})

	t.Run("during a pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return nil, status(403, metav1.StatusReasonForbidden, 0)
			}}
			start := time.Now()
			if _, err := collect(t, &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9"}, time.Second); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("last error = %v, want the end of ctx", err)
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("ended after %v, want 1s", took)
			}
		})
	})
}

func TestMisuse(t *testing.T) {
	silent := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) { return open(), nil }}
	wrong := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
		return open(watch.Event{Type: watch.Added, Object: &corev1.Node{}}), nil
	}}
	nothing := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) { return nil, nil }}
	var noClient typedcorev1.PodInterface
	clientset := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	for _, tc := range []struct {
		name string
		w    *watcher.RetryWatcher[*corev1.Pod]
		want string
	}{
		{"no source", &watcher.RetryWatcher[*corev1.Pod]{}, "RetryWatcher.Source"},
		{"a source of no client", &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](noClient)}, "RetryWatcher.Source"},
		{"a source without an answer", &watcher.RetryWatcher[*corev1.Pod]{Source: nothing, ResourceVersion: "1"}, "the Source returned neither"},
		{"Jitter is no number", &watcher.RetryWatcher[*corev1.Pod]{Source: silent, Jitter: math.NaN()}, "RetryWatcher.Jitter"},
		{"negative BaseDelay", &watcher.RetryWatcher[*corev1.Pod]{Source: silent, BaseDelay: -1}, "RetryWatcher.BaseDelay"},
		{"MaxDelay under BaseDelay", &watcher.RetryWatcher[*corev1.Pod]{Source: silent, BaseDelay: 2, MaxDelay: 1}, "RetryWatcher.MaxDelay"},
		{"negative MaxDelay", &watcher.RetryWatcher[*corev1.Pod]{Source: silent, MaxDelay: -1}, "RetryWatcher.MaxDelay"},
		{"the watch yields another type", &watcher.RetryWatcher[*corev1.Pod]{Source: wrong, ResourceVersion: "1"}, "*v1.Node, not the *v1.Pod"},
		{"the list yields another type", &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](clientset.CoreV1().Nodes())}, "*v1.Node, not the *v1.Pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events, err := collect(t, tc.w, time.Minute)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "watcher: ") {
				t.Errorf("error = %v, want one of watcher that names %q", err, tc.want)
			}
			if len(events) > 0 {
				t.Errorf("events = %v, want none", lines(events))
			}
		})
	}

	t.Run("two loops at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(bookmark("11")), nil
			}}
			w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "10"}
			for range w.Events(t.Context()) {
				if _, err := collect(t, w, time.Minute); err == nil || !strings.Contains(err.Error(), "ranged over already") {
					t.Errorf("error of the inner loop = %v, want a refusal", err)
				}
				break
			}
			if _, err := collect(t, w, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error of a second loop after the first = %v, want it to run", err)
			}
		})
	})
}

// The three kinds of clients fit without a cast or an adapter.
func TestClients(t *testing.T) {
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	t.Run("typed", func(t *testing.T) {
		c := fake.NewClientset(pod("a", "1", ""))
		firstTwo(t, &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](c.CoreV1().Pods("ns"))})
	})
	t.Run("dynamic", func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := corev1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		c := dynamicfake.NewSimpleDynamicClient(scheme, pod("a", "1", ""))
		firstTwo(t, &watcher.RetryWatcher[*unstructured.Unstructured]{Source: watcher.Client[*unstructured.Unstructured](c.Resource(gvr).Namespace("ns"))})
	})
	t.Run("metadata", func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		a := pod("a", "1", "")
		c := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: a.ObjectMeta,
		})
		firstTwo(t, &watcher.RetryWatcher[*metav1.PartialObjectMetadata]{Source: watcher.Client[*metav1.PartialObjectMetadata](c.Resource(gvr).Namespace("ns"))})
	})
}

func firstTwo[T watcher.Object](t *testing.T, w *watcher.RetryWatcher[T]) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		for ev, err := range w.Events(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Type == watcher.Synced {
				break
			}
			got = append(got, string(ev.Type)+" "+ev.Object.GetName())
		}
		if diff := cmp.Diff([]string{"ADDED a"}, got); diff != "" {
			t.Errorf("events before Synced (-want +got):\n%s", diff)
		}
	})
}
