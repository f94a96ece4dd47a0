//go:build !race

package debug_test

// raceEnabled reports whether the race detector slows the tests down.
const raceEnabled = false
