package rows

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

const (
	producers  = 4
	workers    = 64
	workedKeys = 100_000
)

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name: "queue/workers",
			About: "Four goroutines add 100,000 keys to a new queue while 64 workers call Get and Done. The time ends when all of them have ended. The scheduling differs " +
				"from run to run, so consider the spread.",
			Op:    "key",
			Goals: []bench.Goal{{Figure: bench.Time, Rival: clientGo, AtMost: 1}},
		},
		strings:                 fanOut[string],
		structs:                 fanOut[types.NamespacedName],
		besideClientGo:          5,
		besideControllerRuntime: 2,
		handedOut: func(m *bench.Meter, ops int) tally {
			n := m.N(workedKeys)
			return tally{keys: n, each: ops / n}
		},
	})
}

// fanOut does size rounds.
func fanOut[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	return fanOutOf(m, k, open, size, workers)
}

func fanOutOf[K comparable](m *bench.Meter, k *kind[K], open opener[K], size, workers int) int {
	n := m.N(workedKeys)
	for range size {
		t := open(k.keys(n))
		m.Measure(func() {
			// A counter of the keys would add contention. Instead the queue returns the
			// marker after all keys, and each worker passes it on until the last one
			// has it.
			var added, worked sync.WaitGroup
			var left atomic.Int32
			left.Store(int32(workers))
			for range workers {
				worked.Go(func() {
					for {
						key := t.get()
						if key != k.marker {
							t.done(key)
							continue
						}
						if left.Add(-1) > 0 {
							t.addMarker(key)
						}
						t.done(key)
						return
					}
				})
			}
			for p := range producers {
				added.Go(func() {
					for key := p; key < n; key += producers {
						t.add(key)
					}
				})
			}
			added.Wait()
			t.addMarker(k.marker)
			worked.Wait()
		})
		t.shutDown()
	}
	return size * n
}
