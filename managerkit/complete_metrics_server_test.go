package managerkit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	ctrl "sigs.k8s.io/controller-runtime"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerMetrics: the families of controller-runtime have the values of the loop, the queue
// and the Elector, and those of package metrics stand beside them.
func TestServerMetrics(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	done := make(chan string, 100)
	loop := &reconcile.Controller[ctrl.Request]{Workers: 3, Hook: func(ctx context.Context, key ctrl.Request) (context.Context, func(string, error)) {
		return ctx, func(string, error) { done <- key.Name }
	}}
	var once atomic.Bool
	complete(t, mgr, "mk-metrics", loop, func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
		switch req.Name {
		case "error":
			if !once.Swap(true) {
				return ctrl.Result{RequeueAfter: time.Hour}, errors.New("oh") // the error decides
			}
		case "terminal":
			return ctrl.Result{}, crreconcile.TerminalError(errors.New("oh"))
		case "later":
			return ctrl.Result{RequeueAfter: time.Hour}, nil
		}
		return ctrl.Result{}, nil
	})
	for _, name := range []string{"error", "terminal", "later"} {
		createConfigMap(t, namespace, name)
	}
	stop := startManager(t, mgr)
	for got := (map[string]int{}); got["error"] < 2 || got["terminal"] < 1 || got["later"] < 1; {
		got[receive(t, done, "call")]++
	}
	// The first Metrics of a process and a later one feed the same series.
	m, err := managerkit.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	m.LeaderStatus("mk-metrics", true)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got := gather(t, "mk-metrics")
	for series, want := range map[string]float64{
		`controller_runtime_reconcile_total{result=error}`:         2,
		`controller_runtime_reconcile_total{result=requeue_after}`: 1,
		`controller_runtime_reconcile_errors_total`:                2,
		`controller_runtime_terminal_reconcile_errors_total`:       1,
		`controller_runtime_reconcile_panics_total`:                0,
		`controller_runtime_active_workers`:                        0,
		`controller_reconcile_total{result=terminal}`:              1,
		`leader_election_master_status`:                            1,
		`workqueue_depth{priority=}`:                               0,
		`workqueue_retries_total`:                                  1,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", series, v, ok, want)
		}
	}
	for _, series := range []string{`controller_runtime_reconcile_time_seconds`, `workqueue_queue_duration_seconds`, `workqueue_work_duration_seconds`, `workqueue_adds_total`} {
		if got[series] < 4 {
			t.Errorf("%s = %v, want 4 or more", series, got[series])
		}
	}
	m.LeaderStatus("mk-metrics", false)
	if t.Failed() {
		t.Log(got)
	}
}

// TestMetricsResults: each result of the loop counts in its families of controller-runtime.
func TestMetricsResults(t *testing.T) {
	m, err := managerkit.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	const name = "mk-results"
	m.ReconcileWorkers(name, 3)
	for result, families := range map[string][]string{
		"success":  {"controller_runtime_reconcile_total{result=success}"},
		"requeue":  {"controller_runtime_reconcile_total{result=requeue_after}"},
		"terminal": {"controller_runtime_terminal_reconcile_errors_total", "controller_runtime_reconcile_errors_total", "controller_runtime_reconcile_total{result=error}"},
		"panic":    {"controller_runtime_reconcile_panics_total", "controller_runtime_reconcile_errors_total", "controller_runtime_reconcile_total{result=error}"},
		"timeout":  {"controller_runtime_reconcile_timeouts_total", "controller_runtime_reconcile_errors_total", "controller_runtime_reconcile_total{result=error}"},
		"error":    {"controller_runtime_reconcile_errors_total", "controller_runtime_reconcile_total{result=error}"},
	} {
		before := gather(t, name)
		m.ReconcileStarted(name)
		m.ReconcileFinished(t.Context(), name, result, time.Second, -1)
		var got []string
		for series, v := range gather(t, name) {
			if strings.HasPrefix(series, "controller_runtime_") && v == before[series]+1 {
				got = append(got, series)
			}
		}
		want := append(families, "controller_runtime_reconcile_time_seconds")
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s counts in %q, want %q", result, got, want)
		}
	}
	if got := gather(t, name)["controller_runtime_max_concurrent_reconciles"]; got != 3 {
		t.Errorf("workers %v, want 3", got)
	}
}

// gather returns the values, and the counts of histograms, of the series of a controller.
func gather(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			mine, rest := false, ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "name" || l.GetName() == "controller" {
					mine = mine || l.GetValue() == name
				} else {
					rest = "{" + l.GetName() + "=" + l.GetValue() + "}"
				}
			}
			if mine {
				all[f.GetName()+rest] = value(m)
			}
		}
	}
	return all
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return float64(m.GetHistogram().GetSampleCount())
}
