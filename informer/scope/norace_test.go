//go:build !race

package scope_test

const steps = 10_000 // of TestModel
