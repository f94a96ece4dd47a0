// Package testcost measures what a function costs, for tests that give it large or hostile
// input.
package testcost

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
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

// Freed reports whether gone becomes true after some garbage collections. One or two do not
// free all garbage: with the race detector on, an object can outlive a dozen.
func Freed(gone func() bool) bool {
	for range 1000 {
		runtime.GC()
		if gone() {
			return true
		}
	}
	return false
}

// The bounds of Cheap and Linear.
const (
	maxBytes     = 32 << 20
	maxEncodings = 20
	maxTexts     = 200
	always       = 50 * time.Millisecond
	attempts     = 10 // of 3 each could include a collection of what the process made before
)

// Cheap fails the test if f allocates more than 32 MiB, or takes more than 50ms and the time
// of 20 calls of encode, which encodes the object that f reads. name names f in the error. f
// and encode run again if the time was too long, because other processes add to it. The race
// detector changes the cost, so with it Cheap checks the memory only, against 128 MiB.
func Cheap(t testing.TB, name string, encode, f func()) {
	t.Helper()
	limit := uint64(maxBytes)
	if raceEnabled {
		limit *= 4 // the race detector makes each sync.Pool forget some of its values
	}
	check(t, name, limit, maxEncodings, raceEnabled, encode, f)
}

// Linear fails the test if f, whose input has size bytes, allocates more than 8 MiB and perByte
// bytes for each byte of input. It also fails the test if f takes more than 50ms and the time of
// 200 encodings of a text of that size. Quadratic work takes thousands. name names f in the
// error. f runs again if the time was too long.
func Linear(t testing.TB, name string, size, perByte int, f func()) {
	t.Helper()
	encode := func() { _, _ = json.Marshal(strings.Repeat("x", size)) }
	check(t, fmt.Sprintf("%s of %d bytes", name, size), uint64(8<<20+perByte*size), maxTexts, false, encode, f)
}

// fastest returns the CPU time of the fastest of some calls. One alone can include a garbage
// collection, which other work of the process has caused.
func fastest(f func()) time.Duration {
	least := time.Duration(math.MaxInt64)
	for range 5 {
		begin := CPU()
		f()
		least = min(least, CPU()-begin)
	}
	return least
}

// check fails the test if f allocates more than limit bytes, or takes more CPU time than always
// and the given number of calls of encode. The time does not count if untimed is true.
func check(t testing.TB, name string, limit uint64, encodings int, untimed bool, encode, f func()) {
	t.Helper()
	var took, most time.Duration
	for range attempts {
		begin := CPU()
		_, bytes := Of(f)
		if took = CPU() - begin; bytes > limit {
			t.Errorf("%s allocates %d bytes, want at most %d", name, bytes, limit)
			return
		}
		if took <= always || untimed {
			return
		}
		if most = time.Duration(encodings) * fastest(encode); took <= most {
			return
		}
	}
	t.Errorf("%s takes %v of CPU, want at most %v, the time of %d encodings", name, took, most, encodings)
}
