package rows

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Figures of the row. A quantile is one number for each run.
const (
	cycleMedian = "ns p50"
	cycleTail   = "ns p99"
)

const (
	pollPeriod  = 100 * time.Millisecond
	waitingKeys = 100_000 // keys that wait in the queue of the page
)

func init() {
	bench.Register(bench.Row{
		Name: "debug/cycle",
		About: fmt.Sprintf("The time from an event to the end of its reconcile, which is empty. The events follow one another, in a controller with the page of package debug and %d "+
			"keys that wait. One contender's page is read every %v over HTTP, as JSON and as HTML in turn, and the other's is not. The control compares a controller with itself, so its spread is the noise of the machine. The figures are quantiles over the cycles of a run.",
			waitingKeys, pollPeriod),
		Op:    "cycle",
		Goals: []bench.Goal{{Figure: cycleTail, Rival: "the page is not read", AtMost: 1.05}},
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			return []bench.Pair{{
				Ours:   bench.Contender{Name: "the page is read", Run: pageCycles(true)},
				Theirs: bench.Contender{Name: "the page is not read", Run: pageCycles(false)},
			}, {
				Case:   "control",
				Ours:   bench.Contender{Name: "the page is not read", Run: pageCycles(false)},
				Theirs: bench.Contender{Name: "the same", Run: pageCycles(false)},
			}}, nil, nil
		},
	})
}

// pageCycles measures the cycles of a controller with a page.
func pageCycles(read bool) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (int, error) {
		q := queue.New(queue.Config[types.NamespacedName]{Name: queueName})
		defer q.ShutDown()
		for i := range m.N(waitingKeys) {
			q.AddAfter(types.NamespacedName{Namespace: "waiting", Name: fmt.Sprint("name-", i)}, time.Hour)
		}
		done := make(chan struct{}, 1)
		page := &debug.Page{}
		c := page.Controller(queueName)
		l := &reconcile.Controller[types.NamespacedName]{
			Name: queueName, Queue: q, Workers: reconcilers, Timeout: callTimeout,
			Reconcile: func(context.Context, types.NamespacedName) (reconcile.Result, error) {
				done <- struct{}{}
				return reconcile.Result{}, nil
			},
		}
		c.Queue, c.Loop, l.Hook = q, l, c.Hook(nil)
		source := c.Source("configmaps", l.Source("configmaps"))
		stop := start(logr.NewContext(ctx, logr.New(&quiet{})), l.Run)

		server := httptest.NewServer(page)
		defer server.Close()
		polling, end := context.WithCancel(ctx)
		var polls sync.WaitGroup
		var failed error // read after polls.Wait
		if read {
			polls.Go(func() { failed = poll(polling, server.URL) })
		}
		n := m.N(1_000_000)
		times := make([]time.Duration, n)
		m.Measure(func() {
			for i := range times {
				begin := time.Now()
				source.Add(stageKey(i))
				<-done
				times[i] = time.Since(begin)
			}
		})
		end()
		polls.Wait()
		if err := stop(); err != nil || failed != nil {
			return 0, fmt.Errorf("loop: %w, page: %w", err, failed)
		}
		slices.Sort(times)
		m.Count(cycleMedian, float64(quantile(times, 0.5))*float64(n))
		m.Count(cycleTail, float64(quantile(times, 0.99))*float64(n))
		return n, nil
	}
}

// poll reads the page until ctx is done.
func poll(ctx context.Context, url string) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for i := 0; ; i++ {
		address := url
		if i%2 == 0 {
			address += "?format=json"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
