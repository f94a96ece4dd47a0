package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// After a watch that broke, the watcher compares the server's state with the delivered
// one. What it asks for depends on the size of the collection.
//
// Proves W3.
func TestRestoredServer(t *testing.T) {
	many := func(objects ...*corev1.Pod) []*corev1.Pod {
		for i := range 101 {
			objects = append(objects, pod(fmt.Sprint("p", i), fmt.Sprint("u", i), fmt.Sprint(i+100)))
		}
		return objects
	}
	unscoped := func(object *corev1.Pod) *corev1.Pod { object.Namespace = ""; return object }
	modified := watch.Event{Type: watch.Modified, Object: pod("a", "1", "301")}
	deleted := watch.Event{Type: watch.Deleted, Object: pod("a", "1", "301")}
	type response struct {
		items []*corev1.Pod
		rv    string
		err   error
	}
	pods := func(rv string, items ...*corev1.Pod) response { return response{items: items, rv: rv} }
	forbidden := response{err: status(http.StatusForbidden, metav1.StatusReasonForbidden, 0)}
	for _, tc := range []struct {
		name      string
		start     string
		listed    []*corev1.Pod
		events    []watch.Event
		responses []response
		asked     []string // the field selectors of the requests
		restored  bool
	}{
		{
			name:   "nothing has changed",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "301"))},
			asked:     []string{"now app=x"},
		},
		{
			name:   "changed since",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "390"), pod("b", "2", "395")), pods("301", pod("a", "1", "301"))},
			asked:     []string{"now app=x", "at 301 app=x"},
		},
		{
			name:   "the position is in the future",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("299", pod("a", "1", "301"))},
			asked:     []string{"now app=x"}, restored: true,
		},
		{
			name:   "the position was passed",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "5")), pods("301", pod("a", "1", "5"))},
			asked:     []string{"now app=x", "at 301 app=x"}, restored: true,
		},
		{
			name:   "no object, then one",
			events: []watch.Event{{Type: watch.Bookmark, Object: pod("", "", "301")}},
			responses: []response{
				pods("400", pod("b", "2", "250")), pods("301", pod("b", "2", "250")),
			},
			asked: []string{"now app=x", "at 301 app=x"}, restored: true,
		},
		{
			name:   "one object of another UID",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "2", "301")), pods("301", pod("a", "2", "301"))},
			asked:     []string{"now app=x", "at 301 app=x"}, restored: true,
		},
		{
			name:   "a large collection, nothing has changed",
			listed: many(pod("a", "1", "5")), events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "301"))},
			asked:     []string{"now app=x,metadata.name=a,metadata.namespace=ns"},
		},
		{
			name:   "a large collection of a cluster-scoped kind",
			listed: many(unscoped(pod("a", "1", "5"))), events: []watch.Event{{Type: watch.Modified, Object: unscoped(pod("a", "1", "301"))}},
			responses: []response{pods("400", unscoped(pod("a", "1", "301")))},
			asked:     []string{"now app=x,metadata.name=a"},
		},
		{
			name:   "a large collection, the position was passed",
			listed: many(pod("a", "1", "5")), events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "5")), pods("301", pod("a", "1", "5"))},
			asked:     []string{"now app=x,metadata.name=a,metadata.namespace=ns", "at 301 app=x,metadata.name=a,metadata.namespace=ns"}, restored: true,
		},
		{
			name:   "a large collection, a deletion was lost",
			listed: many(pod("a", "1", "5")), events: []watch.Event{deleted},
			responses: []response{pods("400", pod("p100", "u100", "200")), pods("301", pod("a", "1", "5"))},
			asked:     []string{"now app=x,metadata.name=p100,metadata.namespace=ns", "at 301 app=x,metadata.name=a,metadata.namespace=ns"}, restored: true,
		},
		{
			name:   "a large collection, a deletion is still there",
			listed: many(pod("a", "1", "5")), events: []watch.Event{deleted},
			responses: []response{pods("400", pod("p100", "u100", "200")), pods("301")},
			asked:     []string{"now app=x,metadata.name=p100,metadata.namespace=ns", "at 301 app=x,metadata.name=a,metadata.namespace=ns"},
		},
		{
			name:   "a large collection, an old deletion",
			listed: many(pod("a", "1", "5")), events: []watch.Event{
				deleted, {Type: watch.Added, Object: pod("c", "3", "302")},
			},
			responses: []response{pods("400", pod("c", "3", "302"))},
			asked:     []string{"now app=x,metadata.name=c,metadata.namespace=ns"},
		},
		{
			name:  "a start from a version, nothing delivered",
			start: "300", events: []watch.Event{{Type: watch.Bookmark, Object: pod("", "", "301")}},
			responses: []response{pods("400", pod("b", "2", "250"))},
			asked:     []string{"now app=x"},
		},
		{
			name:  "a start from a version, the position is in the future",
			start: "300", events: []watch.Event{{Type: watch.Bookmark, Object: pod("", "", "301")}},
			responses: []response{pods("299", pod("b", "2", "250"))},
			asked:     []string{"now app=x"}, restored: true,
		},
		{
			name:  "a start from a version, only a deletion delivered",
			start: "300", events: []watch.Event{deleted},
			responses: []response{pods("400"), pods("301", pod("a", "1", "5"))},
			asked:     []string{"now app=x", "at 301 app=x,metadata.name=a,metadata.namespace=ns"}, restored: true,
		},
		{
			name:  "a start from a version, one object delivered of which nobody knows how many there are",
			start: "300", events: []watch.Event{modified},
			responses: []response{pods("400", pod("a", "1", "301"))},
			asked:     []string{"now app=x,metadata.name=a,metadata.namespace=ns"},
		},
		{
			name:   "the present may not be read",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{forbidden},
			asked:     []string{"now app=x"},
		},
		{
			name:   "the past may not be read",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400"), {err: status(http.StatusBadRequest, metav1.StatusReasonBadRequest, 0)}},
			asked:     []string{"now app=x", "at 301 app=x"},
		},
		{
			name:   "the past is not supported",
			listed: []*corev1.Pod{pod("a", "1", "5")}, events: []watch.Event{modified},
			responses: []response{pods("400"), pods("400")},
			asked:     []string{"now app=x", "at 301 app=x"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				s := &source{
					list: func(n int, _ metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						return tc.listed, metav1.ListMeta{ResourceVersion: "300"}, nil
					},
					watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
						if n > 1 {
							return open(), nil
						}
						st := open(tc.events...)
						time.AfterFunc(2*time.Minute, st.Stop)
						return st, nil
					},
					check: func(opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						when := "now "
						if opts.ResourceVersion != "" {
							when = "at " + opts.ResourceVersion + " "
						}
						if exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact; exact != (opts.ResourceVersion != "") || opts.LabelSelector != "l=y" {
							t.Errorf("options = %+v, want the exact version, and the label selector", opts)
						}
						asked = append(asked, when+opts.FieldSelector)
						r := response{err: errors.New("one request too many")}
						if len(asked) <= len(tc.responses) {
							r = tc.responses[len(asked)-1]
						}
						return r.items, metav1.ListMeta{ResourceVersion: r.rv}, r.err
					},
				}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: tc.start, FieldSelector: "app=x", LabelSelector: "l=y"}
				events, _ := collect(t, w, 3*time.Minute)
				var retries []watcher.Event[*corev1.Pod]
				for _, ev := range events {
					if ev.Type == watcher.Retrying {
						retries = append(retries, ev)
					}
				}
				if diff := cmp.Diff(tc.asked, asked); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				switch {
				case !tc.restored && len(retries) > 0:
					t.Errorf("%v: %v, want no failure", retries[0].Type, retries[0].Err)
				case tc.restored && (len(retries) != 1 || !errors.Is(retries[0].Err, watcher.ErrRestored)):
					t.Errorf("failures = %v, want one, ErrRestored", retries)
				case tc.restored && events[len(events)-1].Type != watcher.Synced:
					t.Errorf("last event = %v, want a list after ErrRestored", events[len(events)-1].Type)
				}
			})
		})
	}
}

// A watch that ends at the time that it asked for, and is followed by another within a
// second, needs no check. Each other one does, until a check has passed.
func TestWhenTheServerIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name  string
		watch func(n int, opts metav1.ListOptions) (watch.Interface, error)
		fails bool // the first check
		want  string
	}{
		{
			name: "ended in time",
			watch: func(_ int, opts metav1.ListOptions) (watch.Interface, error) {
				st := open()
				time.AfterFunc(time.Duration(*opts.TimeoutSeconds)*time.Second, st.Stop)
				return st, nil
			},
			want: "watch watch watch",
		},
		{
			name: "ended two seconds early",
			watch: func(_ int, opts metav1.ListOptions) (watch.Interface, error) {
				st := open()
				time.AfterFunc(time.Duration(*opts.TimeoutSeconds-2)*time.Second, st.Stop)
				return st, nil
			},
			want: "watch watch check watch check",
		},
		{
			name: "the next one takes two seconds to begin",
			watch: func(n int, opts metav1.ListOptions) (watch.Interface, error) {
				if n > 1 {
					time.Sleep(2 * time.Second)
				}
				st := open()
				time.AfterFunc(time.Duration(*opts.TimeoutSeconds)*time.Second, st.Stop)
				return st, nil
			},
			want: "watch watch check watch check",
		},
		{
			name: "watches are refused",
			watch: func(n int, _ metav1.ListOptions) (watch.Interface, error) {
				if n < 4 {
					return nil, errors.New("refused")
				}
				return open(), nil
			},
			want: "watch watch watch watch check",
		},
		{
			name: "the check fails",
			watch: func(n int, _ metav1.ListOptions) (watch.Interface, error) {
				if n == 1 {
					return closing(), nil
				}
				return open(), nil
			},
			fails: true,
			want:  "watch watch check watch check",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{
					watch: func(_ context.Context, n int, opts metav1.ListOptions) (watch.Interface, error) {
						return tc.watch(n, opts)
					},
					check: func(metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
						if tc.fails {
							tc.fails = false
							return nil, metav1.ListMeta{}, errors.New("reset")
						}
						return nil, metav1.ListMeta{ResourceVersion: "20"}, nil
					},
				}
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9", SilenceTimeout: -1}
				_, _ = collect(t, w, 20*time.Minute)
				var calls []string
				for _, c := range s.calls {
					calls = append(calls, c.Verb)
				}
				if got := strings.Join(calls, " "); !strings.HasPrefix(got, tc.want) || strings.Contains(got, "check check") {
					t.Errorf("calls = %s, want %s", got, tc.want)
				}
			})
		})
	}
}
