package queue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

var benchConfigs = []struct {
	name string
	cfg  queue.Config[types.NamespacedName]
}{
	{"plain", queue.Config[types.NamespacedName]{}},
	{"groups", queue.Config[types.NamespacedName]{Group: func(k types.NamespacedName) string { return k.Namespace }}},
	{"metrics", queue.Config[types.NamespacedName]{Name: "bench", MetricsProvider: newProvider()}},
}

func benchKeys(n int) []types.NamespacedName {
	keys := make([]types.NamespacedName, n)
	for i := range keys {
		keys[i] = types.NamespacedName{Namespace: fmt.Sprint("namespace-", i%100), Name: fmt.Sprint("name-", i)}
	}
	return keys
}

// BenchmarkCycle is one Add, Get and Done in an empty queue.
func BenchmarkCycle(b *testing.B) {
	for _, bc := range benchConfigs {
		b.Run(bc.name, func(b *testing.B) {
			q := queue.New(bc.cfg)
			key := benchKeys(1)[0]
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				q.Add(key)
				k, _, _ := q.GetContext(ctx)
				q.Done(k)
			}
		})
	}
}

// BenchmarkBacklog is the same with many keys ready.
func BenchmarkBacklog(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		for _, bc := range benchConfigs {
			b.Run(fmt.Sprintf("%s-%d", bc.name, n), func(b *testing.B) {
				q := queue.New(bc.cfg)
				q.AddWith(controllerkit.AddOptions{Priority: lowPriority}, benchKeys(n)...)
				b.ReportAllocs()
				for b.Loop() {
					k, _ := q.Get()
					q.AddWith(controllerkit.AddOptions{Priority: lowPriority}, k)
					q.Done(k)
				}
			})
		}
	}
}

// BenchmarkBurst fills the queue and empties it; the figure is per key.
func BenchmarkBurst(b *testing.B) {
	keys := benchKeys(10_000)
	q := queue.New(queue.Config[types.NamespacedName]{})
	b.ReportAllocs()
	for b.Loop() {
		for _, k := range keys {
			q.Add(k)
		}
		for range keys {
			k, _ := q.Get()
			q.Done(k)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/key")
}

// BenchmarkDelay delays a key, with many delayed already, and ends it by Add.
func BenchmarkDelay(b *testing.B) {
	q := queue.New(queue.Config[types.NamespacedName]{})
	defer q.ShutDown()
	keys := benchKeys(100_001)
	for i, k := range keys[1:] {
		q.AddAfter(k, time.Hour+time.Duration(i*7919%len(keys))*time.Second)
	}
	b.ReportAllocs()
	for b.Loop() {
		q.AddAfter(keys[0], 10*time.Hour)
		q.Add(keys[0])
		k, _ := q.Get()
		q.Done(k)
	}
}

// BenchmarkParallel is Add, Get and Done from all processors.
func BenchmarkParallel(b *testing.B) {
	q := queue.New(queue.Config[types.NamespacedName]{})
	keys := benchKeys(1000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			q.Add(keys[i%len(keys)])
			ctx, cancel := context.WithCancel(context.Background())
			if q.Len() == 0 {
				cancel()
			}
			if k, _, ok := q.GetContext(ctx); ok {
				q.Done(k)
			}
			cancel()
		}
	})
}

// BenchmarkSnapshot is a snapshot of many keys.
func BenchmarkSnapshot(b *testing.B) {
	q := queue.New(queue.Config[types.NamespacedName]{Group: func(k types.NamespacedName) string { return k.Namespace }})
	defer q.ShutDown()
	for i, k := range benchKeys(100_000) {
		if i%2 == 0 {
			q.Add(k)
		} else {
			q.AddAfter(k, time.Hour)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		q.Snapshot()
	}
}
