package queue_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/queue"
)

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		q := queue.New(queue.Config[types.NamespacedName]{
			Name: "widgets", MetricsProvider: newProvider(), // with metrics it knows since when keys are ready
			Group:       func(k types.NamespacedName) string { return k.Namespace },
			RateLimiter: queue.FastSlow[types.NamespacedName](time.Minute, time.Hour, 1),
		})
		key := func(ns, name string) types.NamespacedName { return types.NamespacedName{Namespace: ns, Name: name} }
		q.Add(key("x", "run"))
		q.Get()
		q.AddRateLimited(key("x", "run"))
		time.Sleep(time.Second)
		q.Add(key("x", "one"))
		q.Add(key("x", "two"))
		q.Add(key("y", "one"))
		q.AddWith(queue.AddOptions{Priority: 7}, key("x", "urgent"))
		q.AddAfter(key("x", "late"), time.Hour)
		q.AddAfter(key("x", "soon"), time.Minute)

		ready := start.Add(time.Second)
		want := queue.State{
			Name: "widgets", Ready: 4, Running: 1, Delayed: 2,
			Keys: []queue.KeyState{
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
		if _, err := json.Marshal(q.Snapshot()); err != nil {
			t.Errorf("Snapshot as JSON: %v", err)
		}
		q.ShutDown()
	})
}

// The counts are exact, the list is bounded and holds the first keys of each kind.
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
