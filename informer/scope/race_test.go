//go:build race

package scope_test

const steps = 500 // of TestModel; the race detector makes it slow
