package rows

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// DispatchCases returns the cases of reconcile/dispatch.
func DispatchCases() (names []string) {
	for _, c := range dispatchCases() {
		names = append(names, c.name)
	}
	return names
}

// Loops returns the names of the contenders of the rows about reconcile.
func Loops() []string { return slices.Sorted(maps.Keys(loops())) }

// Dispatched reports how a controller handled the events of one case.
type Dispatched struct {
	Ops       int      // as reported to the runner
	Events    int      // of all keys
	Reconcile int      // calls
	Wrong     []string // keys whose number of reconciles differs from their number of events
	Early     int      // reconciles that had not ended when the last measurement ended

	Deadlines int // calls whose context has a deadline
	Loggers   int // calls whose logger has the key
	Counted   int // reconciles without an error, by the metrics
	Added     int // keys added to the queue, by the metrics
}

// Dispatch does the work of a case with a controller. Time must be synctest's.
func Dispatch(t *testing.T, contender, name string) (d Dispatched) {
	t.Helper()
	c := dispatchCases()[slices.Index(DispatchCases(), name)]
	reconciled := map[types.NamespacedName]int{}
	events := map[types.NamespacedName]int{}
	look := func(ctx context.Context, key types.NamespacedName) { // there is one worker
		d.Reconcile++
		reconciled[key]++
		if _, ok := ctx.Deadline(); ok {
			d.Deadlines++
		}
		sink, ok := logr.FromContextOrDiscard(ctx).GetSink().(*quiet)
		if ok && strings.Contains(fmt.Sprint(sink.values...), key.Name) {
			d.Loggers++
		}
	}
	// synctest does not report a missing reconcile as a deadlock, because the rivals'
	// queues have tickers.
	lost := time.AfterFunc(longest, func() { panic("an event was not followed by a reconcile") })
	defer lost.Stop()
	var gatherer prometheus.Gatherer
	var counted, added int
	var calls *noOp
	ops, err := dispatch(t.Context(), &bench.Meter{Quick: true}, func(ctx context.Context, w *noOp) (*running, error) {
		calls = w
		r, err := loops()[contender](ctx, w)
		if err == nil && r.metrics != nil {
			gatherer = r.metrics
			counted, added = counts(t, gatherer) // controller-runtime's metrics are global
		}
		return r, err
	}, c, look)
	if err != nil {
		t.Error(err)
	}
	if gatherer != nil {
		d.Counted, d.Added = counts(t, gatherer)
		d.Counted -= counted
		d.Added -= added
	}
	d.Early = -int(calls.left.Load())
	d.Ops, d.Events = ops, staged+ops
	for i := range d.Events {
		events[stageKey(i)]++
	}
	for key, n := range events {
		if reconciled[key] != n {
			d.Wrong = append(d.Wrong, fmt.Sprintf("%v: %d times for %d events", key, reconciled[key], n))
		}
	}
	return d
}

// counts returns the number of reconciles without an error and the number of adds in
// the metrics.
func counts(t *testing.T, g prometheus.Gatherer) (counted, added int) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			n := int(metric.GetCounter().GetValue())
			switch name := family.GetName(); {
			case strings.HasSuffix(name, "_reconcile_total") && labels["result"] == "success" && labels["controller"] == queueName:
				counted += n
			case name == "workqueue_adds_total" && labels["name"] == queueName:
				added += n
			}
		}
	}
	return counted, added
}
