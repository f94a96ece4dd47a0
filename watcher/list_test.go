package watcher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// TestExpiredDeliversTheDifference proves W2.
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
				"ADDED d/4@11 rv=11", "RETRYING rv=11",
				"DELETED b/2@6 synthetic", "DELETED c/3@7 synthetic",
				"MODIFIED a/1@20 synthetic", "ADDED c/9@21 synthetic", "SYNCED synthetic rv=30",
			},
		},
		{
			name: "versions went back", rv: "3", // the storage was restored from a backup
			want: []string{
				"ADDED a/1@5 synthetic", "ADDED b/2@6 synthetic", "ADDED c/3@7 synthetic", "SYNCED synthetic rv=10",
				"ADDED d/4@11 rv=11", "RETRYING rv=11",
				"DELETED b/2@6 synthetic", "DELETED c/3@7 synthetic",
				"MODIFIED a/1@20 synthetic", "ADDED c/9@21 synthetic", "SYNCED synthetic rv=3",
			},
		},
		{
			name: "after a start from a version", start: "10", rv: "30",
			want: []string{
				"ADDED d/4@11 rv=11", "RETRYING rv=11", "RESET synthetic",
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
				tc.want = append(tc.want, "RETRYING rv="+tc.rv, "DELETED a/1@20 synthetic", "SYNCED synthetic rv=40")
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

// TestOptionsAndPages proves W2.
func TestOptionsAndPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists, watches []metav1.ListOptions
		checks := 0
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
			check: func(metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				checks++
				return nil, metav1.ListMeta{}, nil
			},
		}
		var got counts
		w := &watcher.RetryWatcher[*corev1.Pod]{
			Source: s, ResourceVersion: "0", LabelSelector: "app=x", FieldSelector: "spec.nodeName=n", Name: "configmaps", Metrics: &got,
		}
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
		// Two of the lists failed. The watches have no events.
		if got.listed != len(lists)+checks || got.received != len(lists)+checks-2 || got.watched != len(watches) || got.wrong != "" {
			t.Errorf("metrics of %d lists, %d watches, %d received, wrong name %q: want %d, %d and %d",
				got.listed, got.watched, got.received, got.wrong, len(lists)+checks, len(watches), len(lists)+checks-2)
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
