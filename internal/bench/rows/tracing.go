package rows

import (
	"context"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/tracing"
)

// leftOut is a Ratio that samples no call of a run.
const leftOut = 1e-12

// hook is a Hook of a reconcile.Controller.
type hook = func(context.Context, types.NamespacedName) (context.Context, func(string, error))

func init() {
	bench.Register(bench.Row{
		Name: "tracing/unsampled",
		About: "What tracing adds to a reconcile that is not sampled: the Hook, alone and with the predicate of an event before it. The event is that of an object with the annotation of an " +
			"earlier trace. The rival is the same controller whose provider samples nothing.",
		Op: "reconcile",
		Goals: []bench.Goal{
			{Figure: bench.Time, AtMost: 150},
			{Figure: bench.Allocs, AtMost: 1},
		},
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			var pairs []bench.Pair
			for _, event := range []bool{false, true} {
				name := map[bool]string{false: "no event", true: "an event"}[event]
				pairs = append(pairs, bench.Pair{
					Case:   name,
					Ours:   bench.Contender{Name: "Ratio", Run: unsampled(leftOut, event)},
					Theirs: bench.Contender{Name: "NeverSample", Run: unsampled(0, event)},
				})
			}
			return pairs, nil, nil
		},
	})
}

// unsampled measures calls that are not sampled, by Ratio or, if that is 0, by the provider.
func unsampled(ratio float64, event bool) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (int, error) {
		sampler := sdktrace.AlwaysSample()
		if ratio == 0 {
			sampler = sdktrace.NeverSample()
		}
		t := &tracing.Controller[types.NamespacedName]{Name: queueName, Provider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)), Ratio: ratio}
		note := tracing.Events(t, enqueue.KeyOf[*corev1.ConfigMap])
		var before, after corev1.ConfigMap
		for n, obj := range []*corev1.ConfigMap{&before, &after} {
			obj.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "blue", ResourceVersion: fmt.Sprint(n + 1)}
			obj.Annotations = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		}
		e, key := enqueue.Event[*corev1.ConfigMap]{Old: &before, New: &after}, types.NamespacedName{Namespace: "default", Name: "blue"}
		ctx = klog.NewContext(ctx, klog.Background())
		var run hook = t.Hook
		n, sampled := m.N(2_000_000), 0
		m.Measure(func() {
			for range n {
				if event {
					note(e)
				}
				call, end := run(ctx, key)
				if end != nil {
					end("success", nil)
				}
				if trace.SpanContextFromContext(call).IsSampled() {
					sampled++
				}
			}
		})
		if sampled > 0 {
			return 0, fmt.Errorf("%d of %d calls were sampled", sampled, n)
		}
		return n, nil
	}
}
