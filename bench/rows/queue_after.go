package rows

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/bench"
)

// delayedKeys is how many keys are delayed at once.
const delayedKeys = 100_000

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name: "queue/after",
			About: "A new queue gets 100,000 keys by AddAfter, with delays that differ and do not end. The time runs until the queue has " +
				"sorted in all of them: the rivals do that in a goroutine, in the order of the calls, so the time ends when a marker that was " +
				"added last, with a delay of 1 ns, is handed out. That costs each queue one short timer and one wake-up in 100,000 keys.",
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
		// In no order, and as far apart as the resyncs of a day.
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
