package rows

import (
	"runtime"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// heldKeys is the number of keys in the measured queue.
const heldKeys = 1_000_000

func init() {
	registerQueue(queueRow{
		Row: bench.Row{
			Name:  "queue/memory",
			About: "Heap bytes of a new queue with 1,000,000 ready keys, after a garbage collection. The bytes of the key strings are not counted.",
			Op:    "key",
			Goals: []bench.Goal{{Figure: heap, AtMost: 200}},
		},
		strings:                 memory[string],
		structs:                 memory[types.NamespacedName],
		besideClientGo:          heldKeys,
		besideControllerRuntime: heldKeys,

		handedOut: func(m *bench.Meter, _ int) tally { return tally{keys: m.N(heldKeys), each: 1, left: 1} },
	})
}

// heap is the figure of the heap after a garbage collection.
const heap = "heap B"

func memory[K comparable](m *bench.Meter, k *kind[K], open opener[K], size int) int {
	n := m.N(size)
	keys := k.keys(n)
	before := alive()
	t := open(keys)
	for key := range n {
		t.add(key)
	}
	held := t.len() // len waits until controller-runtime's queue has taken all keys
	m.Count(heap, float64(alive()-before))
	runtime.KeepAlive(keys)
	t.shutDown()
	return held
}

// alive returns the bytes of the heap that are in use.
func alive() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one only unlinks some objects, for example in a sync.Pool
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
