package rows

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name:  "queue/metrics",
			About: "Like queue/cycle, but all queues have metrics. The library and client-go use the library's package metrics, and controller-runtime uses its own.",
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
