package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// metricsCycle runs two keys and returns the metrics at each step.
func metricsCycle(q common, p *provider) (steps []values) {
	step := func() {
		synctest.Wait()
		steps = append(steps, p.values())
	}
	q.Add("a")
	q.Add("a") // the same add
	q.Add("b")
	step()
	time.Sleep(3 * time.Second)
	q.Get()
	step()
	q.Add("a") // to run again
	q.Add("a")
	step()
	time.Sleep(2 * time.Second)
	q.Get()
	time.Sleep(2*time.Second + time.Millisecond)
	step()
	q.Done("a")
	time.Sleep(500 * time.Millisecond) // client-go's gauges see Done at their next tick
	step()
	q.Get()
	q.AddRateLimited("b")
	q.Done("a")
	q.Done("b")
	time.Sleep(500 * time.Millisecond)
	step()
	time.Sleep(time.Second)
	step()
	q.Get()
	q.Done("b")
	time.Sleep(500 * time.Millisecond)
	step()
	return steps
}

// TestMetricsAreThoseOfClientGo tests that both queues have the same metrics if the same
// keys run in the same way.
//
// It proves Q10.
func TestMetricsAreThoseOfClientGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func() workqueue.TypedRateLimiter[string] {
			return workqueue.NewTypedItemFastSlowRateLimiter[string](time.Second, time.Second, 1)
		}
		theirs, ours := newProvider(), newProvider()
		q := workqueue.NewTypedRateLimitingQueueWithConfig(limiter(), workqueue.TypedRateLimitingQueueConfig[string]{Name: "q", MetricsProvider: theirs})
		want := metricsCycle(q, theirs)
		q.ShutDown()
		own := queue.New(queue.Config[string]{Name: "q", MetricsProvider: ours, RateLimiter: limiter()})
		got := metricsCycle(own, ours)
		own.ShutDown()
		// Their gauges are of the last tick, at most half a second ago; so are ours.
		near := cmpopts.EquateApprox(0, 0.51)
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("values after each step (-client-go +queue):\n%s", diff)
		}
		if diff := cmp.Diff(theirs.latency.seen, ours.latency.seen, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			t.Errorf("queue durations (-client-go +queue):\n%s", diff)
		}
		if diff := cmp.Diff(theirs.work.seen, ours.work.seen, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			t.Errorf("work durations (-client-go +queue):\n%s", diff)
		}
		if diff := cmp.Diff(theirs.names, ours.names); diff != "" {
			t.Errorf("names (-client-go +queue):\n%s", diff)
		}
	})
}

// TestRetriesCountRetriesOnly proves Q10.
func TestRetriesCountRetriesOnly(t *testing.T) {
	p := newProvider()
	q := queue.New(queue.Config[string]{Name: "q", MetricsProvider: p})
	defer q.ShutDown()
	q.Add("a")
	q.AddAfter("b", time.Hour)
	q.AddWith(controllerkit.AddOptions{After: time.Hour}, "c")
	if got := p.retries.get(); got != 0 {
		t.Errorf("after adds with and without a delay: got %v retries, want 0", got)
	}
	q.AddRateLimited("d")
	q.AddWith(controllerkit.AddOptions{RateLimited: true}, "e", "f")
	if got := p.retries.get(); got != 3 {
		t.Errorf("after rate-limited adds of 3 keys: got %v retries, want 3", got)
	}
}

// TestGaugesOfAHangingKey tests that the gauges show a hanging key while other keys start and
// end all the time.
func TestGaugesOfAHangingKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider()
		q := queue.New(queue.Config[string]{Name: "q", MetricsProvider: p})
		q.Add("hangs")
		q.Get()
		for range 1000 {
			q.Add("quick")
			q.Get()
			time.Sleep(10 * time.Millisecond)
			q.Done("quick")
		}
		synctest.Wait()
		if got := p.longest.get(); got < 9.5 || got > 10 {
			t.Errorf("longest running after 10 s: got %v s", got)
		}
		// Only the timer refreshes the gauges: the cost of each key would otherwise grow with
		// the number of running keys.
		p.longest.Set(-1)
		q.Add("quick")
		q.Get()
		q.Done("quick")
		if got := p.longest.get(); got != -1 {
			t.Errorf("the start or end of a key refreshed the gauge to %v", got)
		}
		q.Done("hangs")
		if got := p.values(); got.Longest != 0 || got.Unfinished != 0 {
			t.Errorf("gauges when nothing runs: got %+v, want 0", got)
		}
		// Nothing runs: no timer either, or it would set the gauge again.
		p.longest.Set(-1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := p.longest.get(); got != -1 {
			t.Errorf("the gauge was refreshed to %v although nothing runs", got)
		}
		// And they go on when something runs again.
		q.Add("hangs")
		q.Get()
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if got := p.longest.get(); got != 10 {
			t.Errorf("longest running after 10 s: got %v s, want 10", got)
		}
		q.ShutDown()
	})
}

// TestGaugesOfKeysThatFollow tests that the gauges are 0 if no key runs, and that they show a
// slow key within half a second.
//
// It proves Q10.
func TestGaugesOfKeysThatFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider()
		q := queue.New(queue.Config[string]{Name: "q", MetricsProvider: p})
		defer q.ShutDown()
		for i := range 200 {
			pause, ran := time.Duration(i*37%700)*time.Millisecond, time.Duration(i*61%1500)*time.Millisecond
			time.Sleep(pause)
			synctest.Wait()
			if got := p.values(); got.Longest != 0 || got.Unfinished != 0 {
				t.Fatalf("key %d, %v after the last Done: got %+v, want 0", i, pause, got)
			}
			q.Add("a")
			q.Get()
			time.Sleep(ran)
			synctest.Wait()
			if got := p.longest.get(); got > ran.Seconds() || got < (ran-500*time.Millisecond).Seconds() {
				t.Fatalf("key %d: longest running after %v: got %v s", i, ran, got)
			}
			q.Done("a")
			if got := p.values(); got.Longest != 0 || got.Unfinished != 0 {
				t.Fatalf("key %d: gauges after Done: got %+v, want 0", i, got)
			}
		}
	})
}

// The time of all running keys together is more than a time.Duration holds when
// 1000 of them hang for four months, or five for a century.
//
// It proves Q10.
func TestUnfinishedWorkOfManyHangingKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const century = 100 * 365 * 24 * time.Hour
		p := newProvider()
		q := queue.New(queue.Config[int]{Name: "q", MetricsProvider: p})
		for key := range 6 {
			q.Add(key)
			q.Get()
		}
		q.ShutDown() // the gauges are set at each Done from here on, and not every half second
		time.Sleep(century)
		q.Done(0)
		if got, want := p.unfinished.get(), 5*century.Seconds(); got != want {
			t.Errorf("unfinished work of 5 keys after a century: got %v s, want %v", got, want)
		}
	})
}

// TestShutDownStopsTheTimers proves Q8.
func TestShutDownStopsTheTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider()
		q := queue.New(queue.Config[string]{Name: "q", MetricsProvider: p})
		q.Add("a")
		q.Get()
		q.AddAfter("b", time.Second)
		q.ShutDown()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := p.longest.get(); got != 0 {
			t.Errorf("the gauge was refreshed to %v after ShutDown", got)
		}
		if n := q.Len(); n != 0 {
			t.Errorf("%d keys are ready: a delay ended after ShutDown", n)
		}
		q.Done("a")
		if got := p.values(); got.Longest != 0 || got.Unfinished != 0 {
			t.Errorf("gauges after the last Done: got %+v, want 0", got)
		}
	})
}

// TestTimersAreStopped proves Q8.
func TestTimersAreStopped(t *testing.T) {
	for name, stop := range map[string]func(q *queue.Queue[string]){
		"none":     nil,
		"ShutDown": (*queue.Queue[string]).ShutDown,
		"Drain": func(q *queue.Queue[string]) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_, _ = q.Drain(ctx)
		},
	} {
		for _, provider := range []workqueue.MetricsProvider{nil, newProvider()} {
			t.Run(fmt.Sprintf("%s, metrics %v", name, provider != nil), func(t *testing.T) {
				q := queue.New(queue.Config[string]{Name: "q", MetricsProvider: provider})
				q.Add("a")
				q.Get()
				if stop != nil {
					stop(q)
				}
				if set := q.StopTimers(); set != (stop == nil) {
					t.Errorf("a timer for the running key: %v, want %v", set, stop == nil)
				}
				q = queue.New(queue.Config[string]{Name: "q", MetricsProvider: provider})
				q.AddAfter("a", time.Hour)
				if stop != nil {
					stop(q)
				}
				if set := q.StopTimers(); set != (stop == nil) {
					t.Errorf("a timer for the delay: %v, want %v", set, stop == nil)
				}
			})
		}
	}
}

func TestNoNameNoMetrics(t *testing.T) {
	p := newProvider()
	q := queue.New(queue.Config[string]{MetricsProvider: p})
	q.Add("a")
	if len(p.names) != 0 || p.adds.get() != 0 {
		t.Errorf("a queue without a name made metrics: %v", p.names)
	}
}
