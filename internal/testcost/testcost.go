// Package testcost measures what a function costs, for tests that give it large or hostile
// input.
package testcost

import (
	"runtime"
	"testing"
	"time"
)

// Object is the size of the largest object, in bytes, that etcd stores by default.
const Object = 3 << 19

// Of returns the time that f takes and the bytes that it allocates. It counts the bytes of
// other goroutines too. In a synctest bubble the time is the bubble's.
func Of(f func()) (took time.Duration, bytes uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	f()
	took = time.Since(start)
	runtime.ReadMemStats(&after)
	return took, after.TotalAlloc - before.TotalAlloc
}

// Linear fails the test if f, whose input has size bytes, takes 10s or allocates more than
// 8 MiB and perByte bytes for each byte of input. name names f in the error.
func Linear(t testing.TB, name string, size, perByte int, f func()) {
	t.Helper()
	took, bytes := Of(f)
	if most := uint64(8<<20 + perByte*size); bytes > most {
		t.Errorf("%s of %d bytes allocates %d bytes, want at most %d", name, size, bytes, most)
	}
	if took > 10*time.Second { // quadratic work takes minutes; a busy machine some seconds
		t.Errorf("%s of %d bytes takes %v", name, size, took)
	}
}
