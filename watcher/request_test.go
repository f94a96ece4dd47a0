package watcher_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// delayer is an API server that delays the first requests of a verb.
type delayer struct {
	verb       string // list or watch
	delays     int
	retryAfter time.Duration
	hangs      bool // those after the delays are not responded to

	mu       sync.Mutex // guards the fields below
	begin    time.Time
	requests []string // with their times
	seen     int
}

// log returns the requests.
func (d *delayer) log() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.requests)
}

// delayed records a request and reports whether it is one to delay.
func (d *delayer) delayed(verb string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests = append(d.requests, verb+" at "+time.Since(d.begin).String())
	if verb == d.verb {
		d.seen++
	}
	return verb == d.verb && d.seen <= d.delays
}

func (d *delayer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := "list"
	if r.URL.Query().Has("watch") {
		verb = "watch"
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case d.delayed(verb):
		w.Header().Set("Retry-After", strconv.Itoa(int(d.retryAfter.Seconds())))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case verb == d.verb && d.hangs:
		<-r.Context().Done()
		return
	}
	if verb == "list" {
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10"},"items":[]}`)
		return
	}
	_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"11"}}}`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// client-go repeats a request that the server delays, and does not return. The consumer
// learns of it, and the watcher waits as long as the server asks.
//
// Proves W4.
func TestDelayedRequests(t *testing.T) {
	const silence = 3 * time.Minute
	for _, tc := range []struct {
		name   string
		server *delayer
		want   []string // events, with their times
		calls  []string
	}{
		{
			name:   "a watch",
			server: &delayer{verb: "watch", delays: 2, retryAfter: 30 * time.Second},
			want:   []string{"SYNCED at 0s", "RETRYING at 1s", "RETRYING at 31s", "BOOKMARK at 1m0s"},
			// The watch took more than a second, so the server may be another.
			calls: []string{"list at 0s", "watch at 0s", "watch at 30s", "watch at 1m0s", "list at 1m0s"},
		},
		{
			name:   "a watch, every two seconds",
			server: &delayer{verb: "watch", delays: 4, retryAfter: 2 * time.Second},
			want:   []string{"SYNCED at 0s", "RETRYING at 1s", "RETRYING at 3s", "RETRYING at 5s", "RETRYING at 7s", "BOOKMARK at 8s"},
			calls:  []string{"list at 0s", "watch at 0s", "watch at 2s", "watch at 4s", "watch at 6s", "watch at 8s", "list at 8s"},
		},
		{
			name:   "a watch, for longer than the silence timeout",
			server: &delayer{verb: "watch", delays: 1, retryAfter: 2 * silence},
			want:   []string{"SYNCED at 0s", "RETRYING at 1s", "BOOKMARK at 6m0s"},
			calls:  []string{"list at 0s", "watch at 0s", "watch at 6m0s", "list at 6m0s"},
		},
		{
			name:   "a watch that is silent after that",
			server: &delayer{verb: "watch", delays: 1, retryAfter: time.Minute, hangs: true},
			want:   []string{"SYNCED at 0s", "RETRYING at 1s", "RETRYING at 4m0s stalled"},
			calls:  []string{"list at 0s", "watch at 0s", "watch at 1m0s"},
		},
		{
			name:   "a list",
			server: &delayer{verb: "list", delays: 3, retryAfter: 2 * time.Minute},
			want:   []string{"RETRYING at 2m0s", "RETRYING at 4m0s", "RETRYING at 6m0s", "SYNCED at 6m0s", "BOOKMARK at 6m0s"},
			calls:  []string{"list at 0s", "list at 2m0s", "list at 4m0s", "list at 6m0s", "watch at 6m0s"},
		},
		{
			name:   "a list that is silent after that",
			server: &delayer{verb: "list", delays: 1, retryAfter: time.Minute, hangs: true},
			want:   []string{"RETRYING at 1m0s", "RETRYING at 4m0s stalled"},
			calls:  []string{"list at 0s", "list at 1m0s"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				tc.server.begin = begin
				client := serve(t, tc.server.ServeHTTP)
				w := &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("ns"))}
				var got []string
				for ev, err := range w.Events(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					line := string(ev.Type) + " at " + time.Since(begin).String()
					if errors.Is(ev.Err, watcher.ErrStalled) {
						line += " stalled"
					} else if ev.Err != nil && !strings.Contains(ev.Err.Error(), "repeats") {
						t.Errorf("%s: Err = %v, want one that says that the request is repeated", line, ev.Err)
					}
					if got = append(got, line); len(got) == len(tc.want) {
						break
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.calls, tc.server.log()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// client-go gives up after ten repetitions. The pause that the server asked for is kept
// and nothing is listed.
//
// Proves W4.
func TestDelayedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &delayer{verb: "watch", delays: 11, retryAfter: 40 * time.Second, begin: time.Now()}
		client := serve(t, server.ServeHTTP)
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("ns")), ResourceVersion: "10"}
		returned := 0
		for ev, err := range w.Events(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Type != watcher.Retrying {
				break
			}
			if apierrors.IsTooManyRequests(ev.Err) {
				returned++
				if ev.RetryAfter < 40*time.Second || ev.RetryAfter > 41*time.Second {
					t.Errorf("RetryAfter = %v, want the 40s of the server", ev.RetryAfter)
				}
			}
		}
		if lists := slices.IndexFunc(server.log(), func(r string) bool { return strings.HasPrefix(r, "list") }); lists >= 0 && lists < 11 {
			t.Errorf("requests = %q, want no list between the watches", server.log())
		}
		if returned != 1 {
			t.Errorf("%d events with the server's status, want 1", returned)
		}
	})
}

// slowEnd is a Source whose Watch takes another second to return.
type slowEnd struct{ watcher.Source[*corev1.Pod] }

func (s slowEnd) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	defer time.Sleep(time.Second)
	return s.Source.Watch(ctx, opts)
}

// A consumer that leaves the loop while the client waits ends the request. The loop ends
// after the request has returned.
//
// Proves W6.
func TestLeftWhileDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &delayer{verb: "watch", delays: 1, retryAfter: time.Hour, begin: time.Now()}
		client := serve(t, server.ServeHTTP)
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: slowEnd{watcher.Client[*corev1.Pod](client.CoreV1().Pods("ns"))}, ResourceVersion: "10"}
		start := time.Now()
		for ev := range w.Events(t.Context()) {
			if ev.Type != watcher.Retrying {
				t.Errorf("event = %v, want Retrying", ev.Type)
			}
			break
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("the loop ended after %v, want 1s until Retrying and 1s for the request", took)
		}
	})
}

// contexts is a Source that keeps the contexts of its calls.
type contexts struct {
	*source
	all []context.Context
}

func (c *contexts) List(ctx context.Context, opts metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	c.all = append(c.all, ctx)
	return c.source.List(ctx, opts)
}

func (c *contexts) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	c.all = append(c.all, ctx)
	return c.source.Watch(ctx, opts)
}

// The context of a list and of a watch ends with it. Otherwise the context of a long
// loop would keep all of them.
func TestRequestContextsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &contexts{source: &source{watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
			st := open(bookmark(strconv.Itoa(10 + n)))
			time.AfterFunc(2*time.Minute, st.Stop)
			return st, nil
		}}}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
		for ev := range w.Events(t.Context()) {
			if ev.ResourceVersion == "12" {
				break
			}
		}
		for i, ctx := range s.all[:len(s.all)-2] { // without the second watch, and its check
			if ctx.Err() == nil {
				t.Errorf("the context of request %d, %v, goes on", i, s.calls)
			}
		}
	})
}
