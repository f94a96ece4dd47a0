package rows

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// rotating is the number of keys that take turns.
const rotating = 2000

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name:  "queue/cycle",
			About: "Calls Add, Get and Done for one key after the other, over 2,000 keys in turn.",
			Op:    "cycle",
			Goals: []bench.Goal{
				{Figure: bench.Time, Rival: clientGo, AtMost: 0.85, Stretch: 0.7},
				{Figure: bench.Time, Rival: controllerRuntime, AtMost: 0.06},
				{Figure: bench.Allocs, AtMost: 0},
			},
		},
		strings:                 cycle[string],
		structs:                 cycle[types.NamespacedName],
		besideClientGo:          1_000_000,
		besideControllerRuntime: 600_000,
		handedOut: func(_ *bench.Meter, ops int) tally {
			return tally{keys: rotating, each: ops/rotating + 1}
		},
	})
}

func cycle[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	n := m.N(size)
	t := open(k.keys(rotating))
	defer t.shutDown()
	cycles := func(n int) {
		key := 0
		for range n {
			t.add(key)
			t.done(t.get())
			if key++; key == rotating {
				key = 0
			}
		}
	}
	cycles(rotating) // steady use: the queue has seen every key before
	m.Measure(func() { cycles(n) })
	return n
}
