package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/watcher"
)

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

// Whoever saves the position at the end of a process must not save "" when the loop
// had no time to begin.
//
// Proves W5.
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

// TestLastResourceVersion proves W5.
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
// Proves W6.
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
		{"a nil pointer as source", &watcher.RetryWatcher[*corev1.Pod]{Source: (*source)(nil)}, "RetryWatcher.Source is nil"},
		{"a source of a nil pointer", &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod]((*struct{ typedcorev1.PodInterface })(nil))}, "RetryWatcher.Source is nil"},
		{"a source of no client", &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](noClient)}, "RetryWatcher.Source"},
		{"a source without an answer", &watcher.RetryWatcher[*corev1.Pod]{Source: nothing, ResourceVersion: "1"}, "RetryWatcher.Source returned neither"},
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
				if _, err := collect(t, w, time.Minute); err == nil || !strings.Contains(err.Error(), "already running") {
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

func firstTwo[T controllerkit.Object](t *testing.T, w *watcher.RetryWatcher[T]) {
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
