package rows

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/bench"
)

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name: "queue/metrics",
			About: "As queue/cycle, but all queues have metrics: the library's package metrics for the library and for client-go, " +
				"and controller-runtime's for controller-runtime.",
			Op:    "cycle",
			Goals: []bench.Goal{{Figure: bench.Allocs, AtMost: 0}},
		},
		strings:                 cycle[string],
		structs:                 cycle[types.NamespacedName],
		metrics:                 true,
		besideClientGo:          1_000_000,
		besideControllerRuntime: 600_000,
		handedOut: func(_ *bench.Meter, ops int) tally {
			return tally{keys: rotating, each: ops/rotating + 1}
		},
	})
}
