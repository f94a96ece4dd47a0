//go:build race

package scope_test

const steps = 1_000 // of TestModel; the race detector makes it slow
