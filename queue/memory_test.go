package queue_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// TestMemoryAfterABurst measures the memory after a burst of many keys in many groups and
// priorities.
//
// It proves Q9.
func TestMemoryAfterABurst(t *testing.T) {
	withoutRaceDetector(t)
	const burst, groups, priorities = 200_000, 20_000, 1_000
	names := make([]string, groups)
	for i := range names {
		names[i] = fmt.Sprint("group", i)
	}
	keys := make([]int, burst)
	for i := range keys {
		keys[i] = i
	}
	for _, tc := range []struct {
		name string
		add  func(q *queue.Queue[int], key int)
	}{
		// Every key has a group and priority of its own.
		{"ready", func(q *queue.Queue[int], key int) {
			q.AddWith(controllerkit.AddOptions{Priority: (key + key/groups*7) % priorities}, key)
		}},
		{"raised", func(q *queue.Queue[int], key int) {
			q.Add(key)
			q.AddWith(controllerkit.AddOptions{Priority: 1 + key%priorities}, key)
		}},
		{"delayed", func(q *queue.Queue[int], key int) { q.AddAfter(key, time.Hour) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bound := int64(3<<20 + burst + 16*groups)
			q := queue.New(queue.Config[int]{Group: func(key int) string { return names[key%groups] }})
			defer q.ShutDown()
			before := heapInUse()
			for _, key := range keys {
				tc.add(q, key)
			}
			most := heapInUse() - before
			if tc.name == "delayed" {
				for _, key := range keys {
					q.Add(key)
				}
			}
			for range keys {
				key, _ := q.Get()
				q.Done(key)
			}
			left := heapInUse() - before
			t.Logf("%d bytes a key are held at most, %d KiB after", most/int64(burst), left>>10)
			if left > bound {
				t.Errorf("a burst of %d keys that is over holds %d KiB, want at most %d", burst, left>>10, bound>>10)
			}
			runtime.KeepAlive(q)
		})
	}
}

// TestMemoryOfAKey measures the bytes that a key takes, without the bytes of its string:
// with one group for all keys, with a group for each key, and with a priority for each
// key.
//
// It proves Q9.
func TestMemoryOfAKey(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for 2s")
	}
	withoutRaceDetector(t)
	const header = 16 // of a string
	const n = 200_000
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("namespace/name-", i)
	}
	own := func(key string) string { return key }
	for _, tc := range []struct {
		name  string
		group func(key string) string
		add   func(q *queue.Queue[string], key string, i int)
		limit int64
	}{
		{"ready", nil, func(q *queue.Queue[string], key string, _ int) { q.Add(key) }, 110},
		{"delayed", nil, func(q *queue.Queue[string], key string, _ int) { q.AddAfter(key, time.Hour) }, 140},
		{"ready, a group for each key", own, func(q *queue.Queue[string], key string, _ int) { q.Add(key) }, 380},
		{"ready, a priority for each key", nil, func(q *queue.Queue[string], key string, i int) {
			q.AddWith(controllerkit.AddOptions{Priority: i}, key)
		}, 620},
		{"ready, a group and a priority for each key", own, func(q *queue.Queue[string], key string, i int) {
			q.AddWith(controllerkit.AddOptions{Priority: i}, key)
		}, 620},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[string]{Group: tc.group})
			defer q.ShutDown()
			before := heapInUse()
			for i, key := range keys {
				tc.add(q, key, i)
			}
			got := (heapInUse()-before)/int64(n) - header
			t.Logf("%d bytes a key", got)
			if got > tc.limit {
				t.Errorf("each of %d keys takes %d bytes, want at most %d", n, got, tc.limit)
			}
			runtime.KeepAlive(q)
		})
	}
	runtime.KeepAlive(keys)
}

// TestAllocationsOfManyKeys tests that the queue does not allocate, with any number of keys.
// A run has 1024 keys, so that the test finds one allocation in a thousand.
func TestAllocationsOfManyKeys(t *testing.T) {
	withoutRaceDetector(t)
	type namespacedName struct{ Namespace, Name string }
	keys := make([]namespacedName, 1024)
	for i := range keys {
		keys[i] = namespacedName{fmt.Sprint("namespace-", i%100), fmt.Sprint("name-", i)}
	}
	groupOf := func(key namespacedName) string { return key.Namespace }
	priority := func(i int) controllerkit.AddOptions { return controllerkit.AddOptions{Priority: i / 100 % 8} } // every group has all
	for _, tc := range []struct {
		name string
		run  func(q *queue.Queue[namespacedName])
	}{
		{"one at a time", func(q *queue.Queue[namespacedName]) {
			for i, key := range keys {
				q.AddWith(priority(i), key)
				k, _ := q.Get()
				q.Done(k)
			}
		}},
		{"all at once", func(q *queue.Queue[namespacedName]) {
			for i, key := range keys {
				q.AddWith(priority(i), key)
			}
			for range keys {
				k, _ := q.Get()
				q.Done(k)
			}
		}},
		{"all at once, added again while they run", func(q *queue.Queue[namespacedName]) {
			for i, key := range keys {
				q.AddWith(priority(i), key)
			}
			for range keys {
				k, _ := q.Get()
				q.Add(k)
				q.Done(k)
			}
			for range keys {
				k, _ := q.Get()
				q.Done(k)
			}
		}},
		{"some more than before each time", func(q *queue.Queue[namespacedName]) {
			for n := 1; n <= len(keys); n *= 2 {
				for i, key := range keys[len(keys)-n:] {
					q.AddWith(priority(i), key)
				}
				for range n {
					k, _ := q.Get()
					q.Done(k)
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[namespacedName]{Group: groupOf})
			for range 10 {
				tc.run(q)
			}
			if got := testing.AllocsPerRun(100, func() { tc.run(q) }); got != 0 {
				t.Errorf("got %v allocations in a run, want 0", got)
			}
		})
	}
}

// TestAllocationsOfDelays tests that delays, their ends, Get and Done do not allocate.
func TestAllocationsOfDelays(t *testing.T) {
	withoutRaceDetector(t)
	for _, n := range []int{1, 64, 1024} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[int]{})
				defer q.ShutDown()
				run := func() {
					for key := range n {
						q.AddAfter(key, time.Duration(1+key*7919%n)*time.Millisecond)
					}
					for range n {
						key, _ := q.Get() // waits for the next delay to end
						q.Done(key)
					}
				}
				for range 10 {
					run()
				}
				if got := testing.AllocsPerRun(100, run); got != 0 {
					t.Errorf("got %v allocations for %d delays, want 0", got, n)
				}
			})
		})
	}
}

// TestAllocationsAfterABurst tests that the queue does not allocate in steady use after a
// burst of other groups, priorities and delays, e.g. an initial list.
func TestAllocationsAfterABurst(t *testing.T) {
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprint("group", i)
	}
	takeAll := func(q *queue.Queue[int]) {
		for q.Len() > 0 {
			key, _ := q.Get()
			q.Done(key)
		}
	}
	delayed := func(q *queue.Queue[int], n int) {
		for key := range n {
			q.AddAfter(key, time.Hour)
		}
		for key := range n {
			q.Add(key)
		}
		takeAll(q)
	}
	for _, tc := range []struct {
		name          string
		burst, steady func(q *queue.Queue[int])
	}{
		{"groups", func(q *queue.Queue[int]) {
			for key := range names {
				q.Add(key)
			}
			takeAll(q)
		}, func(q *queue.Queue[int]) {
			for key := len(names) - 2048; key < len(names); key++ {
				q.Add(key)
				takeAll(q)
			}
		}},
		{"priorities", func(q *queue.Queue[int]) {
			for i := range 100 {
				q.AddWith(controllerkit.AddOptions{Priority: 1000 + i}, i)
			}
			takeAll(q)
		}, func(q *queue.Queue[int]) {
			for i := range 8 {
				q.AddWith(controllerkit.AddOptions{Priority: i}, 0)
				takeAll(q)
			}
		}},
		{"delays", func(q *queue.Queue[int]) { delayed(q, 3000) }, func(q *queue.Queue[int]) { delayed(q, 1024) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := queue.New(queue.Config[int]{Group: func(key int) string { return names[key] }})
			if tc.name != "groups" {
				q = queue.New(queue.Config[int]{})
			}
			defer q.ShutDown()
			tc.burst(q)
			for range 5 {
				tc.steady(q)
			}
			if got := testing.AllocsPerRun(20, func() { tc.steady(q) }); got != 0 {
				t.Errorf("got %v allocations in a run, want 0", got)
			}
		})
	}
}

// TestMemoryThatIsKept tests that a kept group does not keep a key in memory, and that the
// last keys of a burst do not keep its memory.
//
// It proves Q9.
func TestMemoryThatIsKept(t *testing.T) {
	withoutRaceDetector(t)
	const burst = 100_000
	for _, tc := range []struct {
		name  string
		bound int64
		run   func() (q any)
	}{
		{"groups that are named by a part of the key", 3 << 20, func() any {
			q := queue.New(queue.Config[string]{Group: func(key string) string { return key[:4] }})
			for i := range 2000 {
				q.Add(fmt.Sprintf("%04d%s", i, strings.Repeat("x", 16<<10)))
				key, _ := q.Get()
				q.Done(key)
			}
			return q
		}},
		{"groups with long names", 3 << 20, func() any {
			const mebibyte = 1 << 20
			q := queue.New(queue.Config[int]{Group: func(key int) string { return fmt.Sprint(strings.Repeat("x", mebibyte), key) }})
			for key := range 50 {
				q.Add(key)
				q.Get()
				q.Done(key)
			}
			return q
		}},
		{"keys that are left, of as many priorities", int64(3<<20 + burst), func() any {
			q := queue.New(queue.Config[int]{})
			for key := range burst {
				q.AddWith(controllerkit.AddOptions{Priority: key}, key)
			}
			for range burst - 20 {
				key, _ := q.Get()
				q.Done(key)
			}
			return q
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := heapInUse()
			q := tc.run()
			if left := heapInUse() - before; left > tc.bound {
				t.Errorf("%d KiB are held, want at most %d", left>>10, tc.bound>>10)
			}
			runtime.KeepAlive(q)
		})
	}
}

func TestAllocations(t *testing.T) {
	type namespacedName struct{ Namespace, Name string }
	key := namespacedName{"default", "web"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	plain := queue.New(queue.Config[namespacedName]{})
	full := queue.New(queue.Config[namespacedName]{
		Name: "full", MetricsProvider: newProvider(), Group: func(k namespacedName) string { return k.Namespace },
	})
	keys := make([]namespacedName, 100)
	for i := range keys {
		keys[i] = namespacedName{fmt.Sprint("ns", i%10), fmt.Sprint("web", i)}
	}
	for _, tc := range []struct {
		name string
		run  func()
	}{
		{"Add Get Done", func() {
			plain.Add(key)
			k, _ := plain.Get()
			plain.Done(k)
		}},
		{"Add GetContext Done", func() {
			plain.Add(key)
			k, _, _ := plain.GetContext(ctx)
			plain.Done(k)
		}},
		{"Add Get Add Done Get Done", func() {
			plain.Add(key)
			k, _ := plain.Get()
			plain.Add(k)
			plain.Done(k)
			plain.Get()
			plain.Done(k)
		}},
		{"with metrics, groups and a priority", func() {
			full.AddWith(controllerkit.AddOptions{Priority: 5}, key)
			k, _, _ := full.GetWithPriority()
			full.Done(k)
		}},
		{"100 keys, 10 groups, 3 priorities", func() {
			for i, key := range keys {
				full.AddWith(controllerkit.AddOptions{Priority: i % 3}, key)
			}
			for range keys {
				k, _ := full.Get()
				full.Done(k)
			}
		}},
		{"a delay and its end by Add", func() {
			plain.AddAfter(key, time.Hour)
			plain.Add(key)
			k, _ := plain.Get()
			plain.Done(k)
		}},
	} {
		if got := testing.AllocsPerRun(200, tc.run); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", tc.name, got)
		}
	}
}

// TestMemory tests that the queue keeps no memory of finished keys.
//
// It proves Q9.
func TestMemory(t *testing.T) {
	withoutRaceDetector(t)
	q := queue.New(queue.Config[string]{Group: func(key string) string { return key }})
	before := heapInUse()
	for i := range 100_000 {
		key := fmt.Sprint("key", i)
		q.AddWith(controllerkit.AddOptions{Priority: i}, key)
		q.Get()
		q.AddRateLimited(key)
		q.Forget(key)
		q.Done(key)
		q.Add(key)
		q.Get()
		q.Done(key)
	}
	if after := heapInUse(); after > before+1<<20 {
		t.Errorf("100000 finished keys hold %d KiB", (after-before)>>10)
	}

	// Nor does a burst stay, but for the room in the map, which Go does not give
	// back: less than 100 bytes for such a key, of about 300.
	const burst = 100_000
	ints := queue.New(queue.Config[int]{})
	before = heapInUse()
	for i := range burst {
		ints.Add(i)
	}
	for range burst {
		key, _ := ints.Get()
		ints.Done(key)
	}
	if after := heapInUse(); after > before+burst*100 {
		t.Errorf("after a burst %d finished keys hold %d bytes each", burst, (after-before)/burst)
	}
	runtime.KeepAlive(ints)
	runtime.KeepAlive(q)
}
