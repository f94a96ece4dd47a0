package rows

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// backlogKeys is the number of keys that are ready at once.
const backlogKeys = 100_000

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name:  "queue/backlog",
			About: "Adds 100,000 keys to a new queue, each twice, and then calls Get and Done for each key.",
			Op:    "key",
			Goals: []bench.Goal{
				{Figure: bench.Time, Rival: clientGo, AtMost: 0.85, Stretch: 0.7},
				{Figure: bench.Time, Rival: controllerRuntime, AtMost: 0.10},
			},
		},
		strings:                 backlog[string],
		structs:                 backlog[types.NamespacedName],
		besideClientGo:          5,
		besideControllerRuntime: 2,
		handedOut: func(m *bench.Meter, ops int) tally {
			n := m.N(backlogKeys)
			return tally{keys: n, each: ops / n}
		},
	})
}

// backlog does size rounds.
func backlog[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	return backlogOf(m, k, open, size, m.N(backlogKeys))
}

func backlogOf[K comparable](m *bench.Meter, k *kind[K], open opener[K], size, n int) int {
	for range size {
		t := open(k.keys(n))
		m.Measure(func() {
			for range 2 {
				for key := range n {
					t.add(key)
				}
			}
			for range n {
				t.done(t.get())
			}
		})
		t.shutDown()
	}
	return size * n
}
