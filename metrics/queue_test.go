package metrics_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// TestQueuesWithoutANameOfTheirOwn: they share gauges, which neither a new one
// nor ForgetQueue takes from the others; and forgetting takes no name.
//
// Proves M1.
func TestQueuesWithoutANameOfTheirOwn(t *testing.T) {
	m, reg := newMetrics(t)
	depth := func(name string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, x := range f.GetMetric() {
				if f.GetName() == "workqueue_depth" && x.GetLabel()[0].GetValue() == name {
					return x.GetGauge().GetValue()
				}
			}
		}
		return -1
	}
	for i := range 100 {
		m.ForgetQueue(fmt.Sprint("never made ", i))
	}
	for i := range 100 {
		m.NewDepthMetric(fmt.Sprint("q", i)).Inc()
	}
	if got := depth("q99"); got != 1 {
		t.Errorf("depth of the 100th queue = %v, want 1: it has a name of its own", got)
	}
	m.NewDepthMetric("x").Inc()
	m.NewDepthMetric("y").Inc()
	if got := depth("other"); got != 2 {
		t.Errorf("depth of the 101st and 102nd together = %v, want 2", got)
	}
	m.ForgetQueue("x")
	if got := depth("other"); got != 2 {
		t.Errorf("depth of others = %v after ForgetQueue of one of them, want 2", got)
	}
	m.ForgetQueue("q0")
	if got := depth("q0"); got != -1 {
		t.Errorf("depth of q0 = %v after ForgetQueue, want no series", got)
	}
}

// TestQueueOfClientGo tests that if a queue is created again under a name, its gauges start
// at 0, even if the earlier one had keys.
func TestQueueOfClientGo(t *testing.T) {
	m, reg := newMetrics(t)
	newQueue := func() workqueue.TypedRateLimitingInterface[string] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Millisecond, time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "widgets", MetricsProvider: m})
	}
	value := func(name string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				if len(f.GetMetric()) != 1 {
					t.Errorf("%s has %d series, want 1", name, len(f.GetMetric()))
				}
				x := f.GetMetric()[0]
				return x.GetGauge().GetValue() + x.GetCounter().GetValue() + float64(x.GetHistogram().GetSampleCount())
			}
		}
		return -1
	}
	q := newQueue()
	q.Add("a")
	q.Add("a")
	q.Add("b")
	q.AddRateLimited("c")
	k, _ := q.Get()
	q.Done(k)
	for name, want := range map[string]float64{
		"workqueue_adds_total":             2,
		"workqueue_retries_total":          1,
		"workqueue_queue_duration_seconds": 1,
		"workqueue_work_duration_seconds":  1,
	} {
		if got := value(name); got < want { // c may have become ready meanwhile
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := value("workqueue_depth"); got < 1 {
		t.Errorf("depth = %v, want b in it", got)
	}

	// The queue is shut down with keys in it: client-go leaves the gauge as it is.
	q.ShutDown()
	next := newQueue()
	defer next.ShutDown()
	if got := value("workqueue_depth"); got != 0 {
		t.Errorf("depth = %v after a new queue was made under the name, want 0", got)
	}
	for {
		k, down := q.Get() // the old queue's keys, still handed out
		if down {
			break
		}
		q.Done(k)
	}
	if got := value("workqueue_depth"); got != 0 {
		t.Errorf("depth = %v, the old queue still counts", got)
	}
	next.Add("x")
	if got := value("workqueue_depth"); got != 1 {
		t.Errorf("depth = %v, want 1", got)
	}
	m.ForgetQueue("widgets")
	for _, name := range []string{"workqueue_depth", "workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"} {
		if got := value(name); got != -1 {
			t.Errorf("%s = %v after ForgetQueue, want no series", name, got)
		}
	}
	if got := value("workqueue_adds_total"); got < 3 {
		t.Errorf("adds = %v after ForgetQueue, want the counter to stay", got)
	}
}
