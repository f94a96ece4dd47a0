package lab

import (
	"math/rand/v2"
	"os"
	"testing"
)

// Moments returns the moments at which a test kills a process: moment n is before or after a
// write, which are counted from 1. In make test each write has one moment, at random the
// first before or after it, and the next in turn. With EXPLORE_BUDGET it has both.
func Moments(t *testing.T) func(n int) (write int, late bool) {
	t.Helper()
	if os.Getenv("EXPLORE_BUDGET") != "" {
		return func(n int) (int, bool) { return n/2 + 1, n%2 == 1 }
	}
	first := rand.IntN(2)
	t.Logf("the first kill is after the write: %v", first == 1)
	return func(n int) (int, bool) { return n + 1, (n+first)%2 == 1 }
}
