package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/metrics"
)

func init() {
	bench.Register(bench.Row{
		Name: "metrics/reconcile",
		About: "Counting a reconcile that succeeded: a worker that starts and ends, the result, and the duration. The library calls its package metrics and also " +
			"observes the latency from an event to the success, which controller-runtime has no metric of. controller-runtime's calls are those of its controller: they look up the series " +
			"of the controller in its registry's metrics each time. Both have classic and native histograms. The durations are from 20 µs to 2 s.",
		Op: "reconcile",
		Goals: []bench.Goal{
			{Figure: bench.Time, Rival: controllerRuntime, AtMost: 0.25},
			{Figure: bench.Allocs, AtMost: 0},
		},
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			m, err := metrics.New(prometheus.NewRegistry())
			if err != nil {
				return nil, nil, err
			}
			m.ReconcileWorkers(queueName, 1)
			theirs, err := newRuntimeMetrics()
			if err != nil {
				return nil, nil, err
			}
			counting := func(name, module string, count func(context.Context, time.Duration)) bench.Contender {
				return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, meter *bench.Meter) (int, error) {
					n := meter.N(1_000_000)
					for _, d := range countedDurations() {
						count(ctx, d)
					}
					durations := countedDurations()
					meter.Measure(func() {
						for i := range n {
							count(ctx, durations[i%len(durations)])
						}
					})
					return n, nil
				}}
			}
			return []bench.Pair{{
				Ours: counting("controllerkit", "", func(ctx context.Context, d time.Duration) {
					m.ReconcileStarted(queueName)
					m.ReconcileFinished(ctx, queueName, "success", d, d)
				}),
				Theirs: counting(controllerRuntime, "sigs.k8s.io/controller-runtime", func(_ context.Context, d time.Duration) {
					theirs.active.WithLabelValues(queueName).Add(1)
					theirs.total.WithLabelValues(queueName, "success").Inc()
					theirs.time.WithLabelValues(queueName).Observe(d.Seconds())
					theirs.active.WithLabelValues(queueName).Add(-1)
				}),
			}}, nil, nil
		},
	})
}

func countedDurations() []time.Duration {
	return []time.Duration{20 * time.Microsecond, time.Millisecond, 7 * time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second}
}

// runtimeMetrics are the metrics of controller-runtime's controllers, from its registry.
type runtimeMetrics struct {
	active *prometheus.GaugeVec
	total  *prometheus.CounterVec
	time   *prometheus.HistogramVec
}

func newRuntimeMetrics() (runtimeMetrics, error) {
	var m runtimeMetrics
	controller := []string{"controller"}
	err := errors.Join(
		ofRuntime(&m.active, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "controller_runtime_active_workers", Help: "Number of currently used workers per controller"}, controller)),
		ofRuntime(&m.total, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_runtime_reconcile_total", Help: "Total number of reconciliations per controller"}, []string{"controller", "result"})),
		ofRuntime(&m.time, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "controller_runtime_reconcile_time_seconds", Help: "Length of time per reconciliation per controller"}, controller)),
	)
	return m, err
}

// ofRuntime sets into to the collector that controller-runtime has registered under the
// description of like.
func ofRuntime[V prometheus.Collector](into *V, like V) error {
	err := crmetrics.Registry.Register(like)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if v, ok := already.ExistingCollector.(V); ok {
			*into = v
			return nil
		}
	}
	return fmt.Errorf("controller-runtime has no such metric: %w", err)
}
