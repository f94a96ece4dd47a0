package lab

import (
	"math/rand/v2"
	"os"
	"testing"
)

// Moments returns the moments at which a test kills a process: moment n is before or after a
// write, which are counted from 1. In make test every second write has one moment, before and after
// the write in turn; chance decides which of the first two writes begins, and with which. With
// EXPLORE_BUDGET each write has both.
func Moments(t *testing.T) func(n int) (write int, late bool) {
	t.Helper()
	if os.Getenv("EXPLORE_BUDGET") != "" {
		return func(n int) (int, bool) { return n/2 + 1, n%2 == 1 }
	}
	first, late := 1+rand.IntN(2), rand.IntN(2)
	t.Logf("the first kill is at write %d, after it: %v", first, late == 1)
	return func(n int) (int, bool) { return first + 2*n, (n+late)%2 == 1 }
}
