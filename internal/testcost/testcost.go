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

// The bounds of Cheap.
const (
	maxBytes     = 32 << 20
	maxEncodings = 20
	always       = 50 * time.Millisecond
)

// Cheap fails the test if f allocates more than 32 MiB, or takes more than 50ms and the time
// of 20 calls of encode, which encodes the object that f reads. name names f in the error. f
// and encode run again if the time was too long, because other processes add to it. The race
// detector changes the cost, so with it Cheap checks the memory only, against 128 MiB.
func Cheap(t testing.TB, name string, encode, f func()) {
	t.Helper()
	var took, most time.Duration
	limit := uint64(maxBytes)
	if raceEnabled {
		limit *= 4 // the race detector makes each sync.Pool forget some of its values
	}
	for range 3 {
		begin := CPU()
		_, bytes := Of(f)
		if took = CPU() - begin; bytes > limit {
			t.Errorf("%s allocates %d bytes, want at most %d", name, bytes, limit)
			return
		}
		if took <= always || raceEnabled {
			return
		}
		begin = CPU()
		encode()
		if most = maxEncodings * (CPU() - begin); took <= most {
			return
		}
	}
	t.Errorf("%s takes %v of CPU, want at most %v, the time of %d encodings", name, took, most, maxEncodings)
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
