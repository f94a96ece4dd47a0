//go:build !race

package reads_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// TestMemory: a million reads take at most 120 bytes each, and nothing after they are forgotten.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 6s and 200 MB")
	}
	const keys, each = 333_334, 3
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	before := heap()
	ctx := t.Context()
	for k := range keys {
		call := tr.Begin(ctx, name{Namespace: fmt.Sprint("namespace-", k%1000), Name: fmt.Sprint("an-object-of-mine-", k)})
		for i := range each {
			_, _ = r.Get(call, "namespace", fmt.Sprint(strings.Repeat("n", 200), k, "-", i))
		}
		call.End(true)
	}
	n := tr.Len()
	perRead := float64(heap()-before) / float64(n)
	t.Logf("%d reads of %d keys take %.1f bytes each", n, keys, perRead)
	if n != keys*each || perRead > 120 {
		t.Errorf("%d reads take %.1f bytes each, want %d and at most 120", n, perRead, keys*each)
	}
	for k := range keys {
		tr.Begin(ctx, name{Namespace: fmt.Sprint("namespace-", k%1000), Name: fmt.Sprint("an-object-of-mine-", k)}).End(true)
	}
	if n, left := tr.Len(), heap()-before; n != 0 || left > 1<<20 {
		t.Errorf("%d reads and %d bytes are left", n, left)
	}
	runtime.KeepAlive(r)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
