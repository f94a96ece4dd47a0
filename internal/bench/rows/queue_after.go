package rows

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// delayedKeys is the number of keys that a queue delays at once.
const delayedKeys = 100_000

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name: "queue/after",
			About: "Adds 100,000 keys to a new queue by AddAfter, with different delays that do not pass during the run. The time ends when the queue has sorted in all " +
				"keys. The rivals sort in a goroutine, in the order of the calls, so the row adds a marker last, with a delay of 1 ns, and stops the time when Get " +
				"returns it. The marker costs each queue one short timer and one wake-up per 100,000 keys.",
			Op:    "key",
			Goals: []bench.Goal{{Figure: bench.Time, Rival: clientGo, AtMost: 0.5}},
		},
		strings:                 after[string],
		structs:                 after[types.NamespacedName],
		besideClientGo:          4,
		besideControllerRuntime: 2,
		handedOut:               allDelayed,
	})
}

func allDelayed(m *bench.Meter, ops int) tally {
	n := m.N(delayedKeys)
	return tally{keys: n, each: ops / n, left: ops / n}
}

func after[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	return delay(m, k, open, size, func(t target[K], key int) {
		// Unordered delays, spread like the resyncs of a day.
		t.addAfter(key, time.Hour+time.Duration(key*7919%delayedKeys)*time.Second)
	})
}

// delay does size rounds.
func delay[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int, add func(t target[K], key int)) int {
	n := m.N(delayedKeys)
	for range size {
		t := open(k.keys(n))
		m.Measure(func() {
			for key := range n {
				add(t, key)
			}
			t.addMarkerSoon(k.marker)
			t.done(t.get())
		})
		t.shutDown()
	}
	return size * n
}
