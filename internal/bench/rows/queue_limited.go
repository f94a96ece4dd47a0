package rows

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name: "queue/limited",
			About: "Like queue/after, but with AddRateLimited: each key fails for the first time. Every queue uses the exponential limiter of its own library, from one " +
				"hour up (controller-runtime uses client-go's). Only the library's limiter has jitter.",
			Op:    "key",
			Goals: []bench.Goal{{Figure: bench.Time, Rival: clientGo, AtMost: 0.5}},
		},
		strings:                 limited[string],
		structs:                 limited[types.NamespacedName],
		besideClientGo:          3,
		besideControllerRuntime: 2,
		handedOut:               allDelayed,
	})
}

func limited[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	return delay(m, k, open, size, target[K].addRateLimited)
}
