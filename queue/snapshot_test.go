package queue_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		q := queue.New(queue.Config[types.NamespacedName]{
			Name: "widgets", MetricsProvider: newProvider(), // with metrics it knows since when keys are ready
			Group:       func(k types.NamespacedName) string { return k.Namespace },
			RateLimiter: workqueue.NewTypedItemFastSlowRateLimiter[types.NamespacedName](time.Minute, time.Hour, 1),
		})
		key := func(ns, name string) types.NamespacedName { return types.NamespacedName{Namespace: ns, Name: name} }
		q.Add(key("x", "run"))
		q.Get()
		q.AddRateLimited(key("x", "run"))
		time.Sleep(time.Second)
		q.Add(key("x", "one"))
		q.Add(key("x", "two"))
		q.Add(key("y", "one"))
		q.AddWith(controllerkit.AddOptions{Priority: 7}, key("x", "urgent"))
		q.AddAfter(key("x", "late"), time.Hour)
		q.AddAfter(key("x", "soon"), time.Minute)

		ready := start.Add(time.Second)
		want := controllerkit.QueueState{
			Name: "widgets", Ready: 4, Running: 1, Delayed: 2,
			Keys: []controllerkit.QueueKey{
				{Key: "x/run", State: "running", Group: "x", Since: start, Until: start.Add(time.Minute), Attempts: 1},
				{Key: "x/urgent", State: "ready", Group: "x", Priority: 7, Since: ready},
				{Key: "x/one", State: "ready", Group: "x", Since: ready},
				{Key: "y/one", State: "ready", Group: "y", Since: ready},
				{Key: "x/two", State: "ready", Group: "x", Since: ready},
				{Key: "x/soon", State: "delayed", Group: "x", Until: ready.Add(time.Minute)},
				{Key: "x/late", State: "delayed", Group: "x", Until: ready.Add(time.Hour)},
			},
		}
		if diff := cmp.Diff(want, q.Snapshot()); diff != "" {
			t.Errorf("Snapshot (-want +got):\n%s", diff)
		}
		want.Keys = []controllerkit.QueueKey{want.Keys[6], want.Keys[0], want.Keys[1]}
		got := q.SnapshotOf(key("x", "late"), key("x", "absent"), key("x", "run"), key("x", "urgent"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("SnapshotOf (-want +got):\n%s", diff)
		}
		if got := q.SnapshotOf(); len(got.Keys) != 0 || got.Ready != 4 {
			t.Errorf("SnapshotOf() of no keys = %+v, want counts and no key", got)
		}
		if _, err := json.Marshal(q.Snapshot()); err != nil {
			t.Errorf("Snapshot as JSON: %v", err)
		}
		q.ShutDown()
	})
}

// TestSince tests Since of a running key without metrics. The queue sets it up to one
// second late: by a timer, or earlier by the first call that needs it. A Get that passes
// over a lower priority reads the clock, and no later call may change that time.
func TestSince(t *testing.T) {
	for _, tc := range []struct {
		name     string
		metrics  bool
		priority int // of the first key
		ask      func(q *queue.Queue[string])
		wait     time.Duration // from Get until ask
		want     time.Duration // Since, from Get on
	}{
		{name: "the timer", wait: time.Hour, want: time.Second},
		{name: "Snapshot comes before", ask: func(q *queue.Queue[string]) { q.Snapshot() }, wait: time.Second / 4, want: time.Second / 4},
		{name: "ShutDown comes before", ask: (*queue.Queue[string]).ShutDown, wait: time.Second / 2, want: time.Second / 2},
		{name: "metrics", metrics: true, wait: time.Hour, want: 0},
		{name: "Get over a lower priority", priority: 1, wait: time.Hour, want: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := queue.Config[string]{Name: "since"}
				if tc.metrics {
					cfg.MetricsProvider = newProvider()
				}
				q := queue.New(cfg)
				defer q.ShutDown()
				q.AddWith(controllerkit.AddOptions{Priority: tc.priority}, "first")
				q.Add("done")
				q.Get()
				q.Get()
				q.Done("done")
				start := time.Now()
				time.Sleep(tc.wait)
				if tc.ask != nil {
					tc.ask(q)
				}
				time.Sleep(time.Hour)
				if !q.ShuttingDown() {
					q.Add("second") // the timer is set anew
				}
				q.Get()
				second := time.Since(start)
				time.Sleep(time.Hour)
				got := q.Snapshot().Keys
				if want := start.Add(tc.want); !got[0].Since.Equal(want) {
					t.Errorf("%s: got since %v, want %v", got[0].Key, got[0].Since.Sub(start), tc.want)
				}
				if q.ShuttingDown() {
					return
				}
				if want := second + time.Second; !tc.metrics && got[1].Since.Sub(start) != want {
					t.Errorf("%s: got since %v, want %v", got[1].Key, got[1].Since.Sub(start), want)
				}
			})
		})
	}
}

// TestSnapshotIsBounded tests that the counts are exact, and that the list is bounded
// and holds the first keys of each state.
//
// It proves CK5.
func TestSnapshotIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[int]{Group: func(key int) string { return fmt.Sprint(key % 150) }})
		const n = 5000
		for i := range n {
			q.Add(i)
		}
		for range n {
			q.Get()
		}
		for i := range n {
			q.Add(n + i)
			q.AddAfter(2*n+i, time.Duration(n-i)*time.Second)
		}
		got := q.Snapshot()
		if got.Ready != n || got.Running != n || got.Delayed != n || len(got.Keys) != 300 {
			t.Fatalf("got %d ready, %d running, %d delayed, %d listed, want %d of each and 300 listed",
				got.Ready, got.Running, got.Delayed, len(got.Keys), n)
		}
		for i, k := range got.Keys {
			want := i // the first to run, in turn
			switch {
			case i >= 200:
				want = 3*n - 1 - (i - 200)
			case i >= 100:
				want = n + i - 100
			}
			if k.Key != fmt.Sprint(want) {
				t.Fatalf("key %d: got %s %s, want %d", i, k.State, k.Key, want)
			}
		}
		q.ShutDown()
	})
}

// TestSnapshotOfHostileKeys tests that a snapshot, which becomes part of pages and
// logs, stays small if keys and groups come from a hostile source.
//
// It proves CK5.
func TestSnapshotOfHostileKeys(t *testing.T) {
	const mebibyte, keys = 1 << 20, 20
	for _, tc := range []struct{ name, text string }{
		{"letters", strings.Repeat("x", mebibyte)},
		{"runes of three bytes", "x" + strings.Repeat("\u20ac", mebibyte/3)},
		{"invalid UTF-8", strings.Repeat("\xff", mebibyte)},
		{"control characters", strings.Repeat("\x1b\r\n", mebibyte/3)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[string]{Group: func(key string) string { return key[:len(key)-3] }})
			for i := range keys {
				q.Add(fmt.Sprintf("%s%03d", tc.text, i))
			}
			page, err := json.Marshal(q.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			// JSON writes a byte as six characters at most.
			if most := keys * (2*6*512 + 200); len(page) > most {
				t.Errorf("the page has %d bytes, want at most %d", len(page), most)
			}
			for _, k := range q.Snapshot().Keys {
				for _, text := range []string{k.Key, k.Group} {
					if !utf8.ValidString(text) || len(text) > 512 || !strings.HasSuffix(text, "\u2026") {
						t.Fatalf("a text of %d bytes is cut to %d bytes: %q", len(tc.text), len(text), text)
					}
				}
			}
		})
	}
	q := queue.New(queue.Config[string]{})
	exact := strings.Repeat("x", 512)
	q.Add(exact)
	if got := q.Snapshot().Keys[0].Key; got != exact {
		t.Errorf("a key of 512 bytes is cut to %d bytes", len(got))
	}
}
