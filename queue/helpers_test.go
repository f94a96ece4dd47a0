package queue_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/queue"
)

// fixedLimiter has the same delay for every key. If call is not nil, each method calls it.
type fixedLimiter[K comparable] struct {
	delay time.Duration
	call  func()
}

func (l *fixedLimiter[K]) called() {
	if l.call != nil {
		l.call()
	}
}

func (l *fixedLimiter[K]) When(K) time.Duration { l.called(); return l.delay }
func (l *fixedLimiter[K]) Forget(K)             { l.called() }
func (l *fixedLimiter[K]) NumRequeues(K) int    { l.called(); return 7 }

// take returns the keys that are ready now, in order, and finishes them.
func take[K comparable](q *queue.Queue[K]) (keys []K) {
	for q.Len() > 0 {
		key, _ := q.Get()
		keys = append(keys, key)
		q.Done(key)
	}
	return keys
}

// usable fails the test if Add, Get and Done of a key do not work, or if the queue then holds
// another number of keys than left. If the queue is locked, it gives up after a minute.
func usable[K comparable](t *testing.T, q *queue.Queue[K], key K, left int) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Add(key)
		if got, _, ok := q.GetContext(context.Background()); !ok || got != key {
			t.Errorf("after Add %v: GetContext returned %v, %v", key, got, ok)
		}
		q.Done(key)
		if pending := q.Pending(); len(pending) != left {
			t.Errorf("the queue holds %v, want %d keys", pending, left)
		}
	}()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		t.Fatal("the queue is locked")
	}
}

// panics calls f and reports whether f panicked.
func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// provides is a provider that has no metric of one kind.
type provides struct {
	*provider
	without string
}

func (p provides) NewDepthMetric(name string) workqueue.GaugeMetric {
	if p.without == "NewDepthMetric" {
		return nil
	}
	return p.provider.NewDepthMetric(name)
}

func (p provides) NewRetriesMetric(name string) workqueue.CounterMetric {
	if p.without == "NewRetriesMetric" {
		return nil
	}
	return p.provider.NewRetriesMetric(name)
}

// heapInUse returns the bytes of reachable memory.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // frees the memory of finalizers and pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// withoutRaceDetector skips a test that measures memory, or whose goroutines take turns. The
// race detector would make it slow and find nothing: make test runs it without.
func withoutRaceDetector(t *testing.T) {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	if ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("make test runs this test without the race detector")
	}
}

// metric is any of the metrics of a workqueue.MetricsProvider.
type metric struct {
	mu    sync.Mutex
	value float64
	seen  []float64
}

func (m *metric) Inc() { m.add(1) }
func (m *metric) Dec() { m.add(-1) }
func (m *metric) add(d float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value += d
}
func (m *metric) Set(v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value = v
}
func (m *metric) Observe(v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) < cap(m.seen) {
		m.seen = append(m.seen, v)
	}
}
func (m *metric) get() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value
}

type provider struct {
	names                                                    map[string]bool
	depth, adds, retries, latency, work, unfinished, longest metric
}

func newProvider() *provider {
	p := &provider{names: map[string]bool{}}
	p.latency.seen = make([]float64, 0, 100)
	p.work.seen = make([]float64, 0, 100)
	return p
}

func (p *provider) NewDepthMetric(name string) workqueue.GaugeMetric {
	p.names[name] = true
	return &p.depth
}
func (p *provider) NewAddsMetric(string) workqueue.CounterMetric           { return &p.adds }
func (p *provider) NewRetriesMetric(string) workqueue.CounterMetric        { return &p.retries }
func (p *provider) NewLatencyMetric(string) workqueue.HistogramMetric      { return &p.latency }
func (p *provider) NewWorkDurationMetric(string) workqueue.HistogramMetric { return &p.work }
func (p *provider) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return &p.unfinished
}
func (p *provider) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return &p.longest
}

type values struct{ Depth, Adds, Retries, Unfinished, Longest float64 }

func (p *provider) values() values {
	return values{p.depth.get(), p.adds.get(), p.retries.get(), p.unfinished.get(), p.longest.get()}
}

// common has the methods of both queues.
type common = workqueue.TypedRateLimitingInterface[string]

func namespace(key string) string { return strings.Split(key, "/")[0] }

// lowPriority is the priority of package enqueue for initial lists.
const lowPriority = -100
